"""Hostile Parquet files of episodes: told in one sentence, nothing imported, no memory filled."""

import resource
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mcnn_ray.cli import main
from mcnn_ray.errors import ArtifactError
from mcnn_ray.rollout.records import read_records, read_rollout, read_rollouts

ROW = {
    "member": "m",
    "task": "pen-expert-v1",
    "episode_seed": 7,
    "episode_return": 0.1,
    "normalised_score": None,
    "success": None,
    "length": 1,
    "most_isolated_distance": None,
    "mean_memory_weight": None,
    "simulator": "s",
    "versions": [("mujoco", "3")],
    "wall_s": 1.0,
    "actions": [[0.0] * 24],
}
TYPES = {
    **dict.fromkeys(("normalised_score", "most_isolated_distance", "mean_memory_weight"), pa.float64()),
    "success": pa.bool_(),
    "versions": pa.map_(pa.string(), pa.string()),
    "actions": pa.list_(pa.list_(pa.float32())),
}


def write(path, **changed):
    columns = {name: pa.array([value], TYPES.get(name)) for name, value in ROW.items()} | changed
    pq.write_table(pa.table({name: column for name, column in columns.items() if column is not None}), path)
    return path


def test_sound_file_of_this_layout_is_read(tmp_path):
    assert read_rollout(write(tmp_path / "e.parquet"), None).record.episode_seed == 7


@pytest.mark.parametrize(
    "changed",
    [
        {"episode_seed": pa.array(["7"])},
        {"episode_return": pa.array(["much"])},
        {"versions": pa.array([[["a", "b", "c"]]])},
        {"task": pa.array([7])},
        {"member": pa.array([b"m"])},
        {"actions": pa.array(["up"])},
        {"actions": pa.array([[[0.0], [0.0, 1.0]]], TYPES["actions"])},
        {"actions": None},
        {"episode_seed": None},
    ],
)
def test_columns_of_other_kinds_are_refused(tmp_path, changed):
    path = write(tmp_path / "e.parquet", **changed)
    for read in (read_rollouts, lambda path: read_rollout(path, 7)):
        with pytest.raises(ArtifactError, match=r"e\.parquet"):
            read(path)


def test_small_file_of_many_equal_rows_is_refused_by_its_declared_count(tmp_path, monkeypatch):
    path = tmp_path / "e.parquet"
    rows = 20_000_000
    pq.write_table(pa.table({"episode_seed": pa.repeat(pa.scalar(7), rows)}), path, row_group_size=rows)
    assert path.stat().st_size < 2**18
    # A machine with half a GiB free: files for larger ones take minutes to write.
    monkeypatch.setattr("mcnn_ray.rollout.records.check_fits_memory", half_a_gib)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in (read_records, read_rollouts):
        with pytest.raises(ArtifactError, match=r"it takes .* GiB of memory"):
            read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def half_a_gib(size_bytes):
    if size_bytes > 2**29:
        raise ValueError(f"it takes {size_bytes / 2**30} GiB of memory")


def test_pickle_in_place_of_episodes_does_not_run(tmp_path, payload):
    (tmp_path / "e.parquet").write_bytes(payload.pickled())
    with pytest.raises(ArtifactError, match="not a readable Parquet file"):
        read_records(tmp_path / "e.parquet")


def test_pickled_type_in_a_file_is_not_unpickled(tmp_path, payload):
    metadata = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": payload.pickled()}
    field = pa.field("task", pa.string(), metadata=metadata)
    path = write(tmp_path / "e.parquet")
    table = pq.read_table(path)
    table = table.set_column(1, field, table.column("task"))
    pq.write_table(table, path)
    read_rollouts(path)


def test_module_that_a_record_names_for_its_environment_is_not_imported_unasked(tmp_path, payload, monkeypatch, capsys):
    (tmp_path / "hostile_records.py").write_text(f"open({str(payload.witness)!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(tmp_path / "e.parquet", task=pa.array(["hostile_records:Env-v0@me/x-v0"]))
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(path)])
    assert ended.value.code == 1
    assert "pass --trust-module hostile_records if you trust that module" in " ".join(capsys.readouterr().err.split())
    assert "hostile_records" not in sys.modules
