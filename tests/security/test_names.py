"""Names from files and flags stay in their folders; configuration files cannot fill memory or hang."""

import os
import subprocess
import sys
import time

import pytest

from mcnn_ray.artifacts import remove_leftovers, write_json
from mcnn_ray.config import SweepConfig
from mcnn_ray.config_file import read_sweep_file
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.sweep.plan import earlier_start
from mcnn_ray.sweep.studies import open_studies

HOSTILE = ["..", "../x", "/x", "a/b", "a\\..", "", ".", "~", "a\0b", "a" * 300, "mlflow.db", "cache", "-rf", "x\n"]


@pytest.mark.parametrize("name", HOSTILE)
def test_sweep_names_that_leave_the_storage_or_take_its_places_are_refused(name):
    with pytest.raises(ConfigError, match="name"):
        SweepConfig.parse({"task": "pen-expert-v1", "name": name}, "flags")


@pytest.mark.parametrize("task", ["../../x@me/x-v0", "/etc@me/x-v0", "..@..", "a/../../b@c/../../d"])
def test_names_made_of_hostile_tasks_are_one_plain_folder(task, tmp_path):
    name = SweepConfig.parse({"task": task}, "flags").sweep_name
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()
    assert (tmp_path / name).resolve() != tmp_path.resolve()


@pytest.mark.parametrize(
    "packs",
    [
        {"../../x": ["m"]},
        {"/x": ["m"]},
        {"": ["m"]},
        {"0123456789ab": [["m"]]},
        {"0123456789ab": "m"},
        {"0123456789ab\n": ["m"]},
        ["m"],
        None,
    ],
)
def test_packs_whose_names_leave_the_sweep_are_refused(pen_dataset, tmp_path, packs):
    studies = open_studies(SweepConfig.parse({"task": "pen-expert-v1", "dataset": pen_dataset}, "tests"))
    record = {"id": "i", "task": "pen-expert-v1", "dataset": studies.demonstrations.sha256, "packs": packs}
    write_json(tmp_path / "sweep.json", record)
    with pytest.raises(ArtifactError, match="does not list the sweep's packs"):
        earlier_start(tmp_path, studies)


LAUGHS = "a: &a [lol, lol]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.mkdir [{witness}]",
        "task: !!python/object/apply:os.mkdir [{witness}]",
        "task: !!python/name:os.system ''",
        "[" * 20_000,
        "steps: " + "9" * 10_000,
        "task: 2020-99-99",
        "? [a]\n: b",
        LAUGHS + "task: *l",
        "task: pen-expert-v1\nlambda: &x [*x]",
        "task: pen-expert-v1\n"
        + "\n".join(f"{key}: {[i + 1 for i in range(1000)]}" for key in ("lambda", "L", "seed")),
        "task: pen-expert-v1\nlambda: {a: {b: c}}",
    ],
    ids=["apply", "value", "name", "nested", "digits", "date", "keys", "laughs", "recursive", "product", "mapping"],
)
def test_hostile_sweep_files_are_refused_at_once_in_one_sentence(tmp_path, payload, text):
    file = tmp_path / "sweep.yaml"
    file.write_text(text.replace("{witness}", str(payload.witness)))
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        SweepConfig.parse(read_sweep_file(file), str(file))
    assert time.monotonic() - started < 20
    assert len(str(caught.value)) < 3000


def test_laughs_in_a_list_of_numbers_are_not_written_out(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(f"task: pen-expert-v1\n{LAUGHS}")
    values = read_sweep_file(file)
    with pytest.raises(ConfigError) as caught:
        SweepConfig.parse({"task": "pen-expert-v1", "lambda": values["m"]}, str(file))
    assert len(str(caught.value)) < 1000


def killed_while_writing(target):
    """Have a process killed while it writes a directory; give what it left."""
    program = (
        "import os, signal, sys, pathlib; from mcnn_ray.artifacts import write_directory\n"
        "with write_directory(pathlib.Path(sys.argv[1])) as temporary:\n"
        "    (temporary / 'half').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    (left,) = target.parent.iterdir()
    return left


def test_leftovers_of_killed_writers_are_removed_when_they_are_old(tmp_path):
    temporary = killed_while_writing(tmp_path / "deep" / "step-1")
    file = tmp_path / ".results.csv.0123abcd.tmp"
    file.write_text("x")
    others = [tmp_path / ".mine.tmp", tmp_path / "x.0123abcd.tmp", tmp_path / ".lonely.0123abcd.old"]
    for other in others:
        other.write_text("x")
    remove_leftovers(tmp_path)
    assert temporary.exists()  # its writer may live
    for path in (temporary, file, *others):
        os.utime(path, (0, 0))
    remove_leftovers(tmp_path)
    assert not temporary.exists()
    assert not file.exists()
    assert all(other.exists() for other in others)


def test_leftovers_that_are_links_are_removed_without_what_they_point_at(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept").write_text("x")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".x.0123abcd.tmp").symlink_to(tmp_path / "data")
    (tmp_path / "runs" / "folder").symlink_to(tmp_path / "data")
    (tmp_path / "data" / ".y.0123abcd.tmp").write_text("x")
    remove_leftovers(tmp_path / "runs", older_than_s=0)
    assert not (tmp_path / "runs" / ".x.0123abcd.tmp").is_symlink()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [".y.0123abcd.tmp", "kept"]


def test_moved_aside_copy_is_removed_where_its_successor_is_there(tmp_path):
    (tmp_path / ".x.0123abcd.old").mkdir()
    (tmp_path / "x").mkdir()
    remove_leftovers(tmp_path, older_than_s=0)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
