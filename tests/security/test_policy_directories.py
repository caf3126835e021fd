"""Hostile policy directories, checkpoints and codebooks: nothing in them runs, imports, or leaves its folder."""

import json
import os
import shutil
import struct
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mcnn_ray.artifacts import MANIFEST, read_json, read_tensors, verify_manifest, write_directory, write_json
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.experts import Expert
from mcnn_ray.errors import ArtifactError, McnnError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.sweep.evaluation import evaluate_policy
from mcnn_ray.sweep.studies import open_study
from mcnn_ray.training.checkpoint import FORMAT, load_checkpoint, newest_step, read_curve
from mcnn_ray.training.data import make_training_data
from mcnn_ray.training.pack import Pack


@pytest.fixture(scope="module")
def study(pen_dataset):
    return open_study(SweepConfig.parse({"task": "pen-expert-v1", "dataset": pen_dataset, "method": "1nn"}, "tests"))


@pytest.fixture
def policy(study, tmp_path):
    """A sound policy directory, and a function that changes a file of it as whoever can write its manifest would."""
    (member,) = SweepConfig.parse({"task": "pen-expert-v1", "method": "1nn"}, "tests").members()
    directory = tmp_path / "policy"
    save_policy(study.policy(member), directory)

    def change(description=None, tensors=None):
        content = {name: (directory / name).read_bytes() for name in ("policy.json", "policy.safetensors")}
        if description is not None:
            changed = json.loads(content["policy.json"])
            description(changed)
            content["policy.json"] = json.dumps(changed).encode()
        content["policy.safetensors"] = tensors if tensors is not None else content["policy.safetensors"]
        with write_directory(directory) as target:
            for name, data in content.items():
                (target / name).write_bytes(data)
        return directory

    return change


def test_sound_policy_of_this_fixture_loads(policy):
    assert load_policy(policy()).action_dim == 24


def header(tensors, data=b"", length=None):
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


HUGE = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
HOSTILE_TENSORS = {
    "absurd length": header({}, length=2**63),
    "all ones length": b"\xff" * 8 + b"{}",
    "shape beyond the file": header({"observation_mean": HUGE}),
    "shape that overflows": header({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]}}),
    "negative": header({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}),
    "overlapping": header(
        {k: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for k in ("a", "b")}, data=bytes(4)
    ),
    "nested": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "foreign numbers": header({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, data=bytes(2)),
    "no numbers": header({"x": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 2]}}, data=bytes(2)),
    "empty": b"",
}


@pytest.mark.parametrize("kind", HOSTILE_TENSORS)
def test_hostile_safetensors_are_refused_wherever_they_are_read(policy, tmp_path, kind):
    path = tmp_path / "x.safetensors"
    path.write_bytes(HOSTILE_TENSORS[kind])
    for read in (
        lambda: load_policy(policy(tensors=HOSTILE_TENSORS[kind])),
        lambda: read_tensors(path),
        lambda: Expert.read(path, "hostile"),
    ):
        with pytest.raises(ArtifactError):
            read()


def test_pickles_in_place_of_policy_files_do_not_run(policy, payload):
    directory = policy(tensors=payload.pickled())
    with pytest.raises(ArtifactError, match="not a whole safetensors file"):
        load_policy(directory)
    (directory / "policy.json").write_bytes(payload.pickled())
    with pytest.raises(ArtifactError):
        load_policy(directory)
    with pytest.raises(ArtifactError, match="not a readable JSON file"):
        read_json(directory / "policy.json")


def test_tensors_larger_than_memory_are_refused_by_the_size_of_their_file(tmp_path):
    path = tmp_path / "sparse.safetensors"
    tensors = header({"x": HUGE})
    path.write_bytes(tensors)
    os.truncate(path, len(tensors) + 2**42)  # takes no room on the disk
    for read in (lambda: read_tensors(path), lambda: Expert.read(path, "hostile")):
        with pytest.raises(ArtifactError, match=r"it takes 4,096\.0 GiB of memory, and .* GiB are free"):
            read()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 10_000 + "}", "\udcff", "[1]", "\0"], ids=range(6)
)
def test_json_that_is_no_plain_object_is_told_in_one_sentence(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match=r"x\.json (is not a readable JSON file|holds a list)"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "{}/outside"])
def test_manifest_that_lists_files_elsewhere_is_refused(tmp_path, name):
    (tmp_path / "outside").write_text("secret")
    with write_directory(tmp_path / "made") as target:
        (target / "a").mkdir()
    sums = {name.format(tmp_path): "0" * 64}
    write_json(tmp_path / "made" / MANIFEST, {"sha256": sums})
    with pytest.raises(ArtifactError, match="lies outside"):
        verify_manifest(tmp_path / "made")


@pytest.mark.parametrize(
    "change",
    [
        {"card": ["task"]},
        {"card": None},
        {"kind": ["nearest"]},
        {"kind": "mlp", "settings": {"layers": 10**9, "memories": False}},
        {"kind": "mlp", "settings": {"layers": -1, "memories": False}},
        {"kind": "mlp", "settings": {"layers": "many", "memories": True}},
        {"kind": "module", "settings": {"backbone": "os.system", "memories": False}},
        {"kind": "module", "settings": ["backbone"]},
        {"format": 10**400},
    ],
)
def test_descriptions_that_fit_no_policy_are_told_in_one_sentence(policy, change):
    with pytest.raises(ArtifactError):
        load_policy(policy(lambda description: description.update(change)))


def test_module_that_a_policy_names_for_its_environment_is_not_imported_unasked(policy, payload, tmp_path, monkeypatch):
    (tmp_path / "hostile_robots.py").write_text(f"open({str(payload.witness)!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    directory = policy(lambda description: description["card"].update(task="hostile_robots:Env-v0@me/x-v0"))
    for trusted in (None, "my_robots"):
        with pytest.raises(ArtifactError, match="pass --trust-module hostile_robots if you trust that module"):
            evaluate_policy(directory, 1, 1, None, lambda *_: None, trusted_module=trusted)
    assert "hostile_robots" not in sys.modules


def test_module_that_is_trusted_is_imported(policy, tmp_path, monkeypatch, ray_running):
    (tmp_path / "trusted_robots.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    directory = policy(lambda description: description["card"].update(task="trusted_robots:Env-v0@me/x-v0"))
    with pytest.raises(McnnError, match="no environment 'trusted_robots:Env-v0'"):
        evaluate_policy(directory, 1, 1, None, lambda *_: None, trusted_module="trusted_robots")


@pytest.mark.parametrize(
    "change", [{"identity": "../../x"}, {"identity": "/x"}, {"identity": 7}, {"task": 7}, {"member": 7}]
)
def test_card_whose_names_are_none_is_refused(policy, change):
    directory = policy(lambda description: description["card"].update(change))
    with pytest.raises(ArtifactError):
        evaluate_policy(directory, 1, 1, None, lambda *_: None)


@pytest.fixture
def checkpoint(study, tmp_path):
    """A function that writes a checkpoint of a pack with hostile parts and says how it is taken."""
    values = {"task": "pen-expert-v1", "method": "bc", "hidden": 4, "steps": 4, "batch_size": 4}
    (member,) = SweepConfig.parse(values, "tests").members()
    data = make_training_data(study.obs_ND, study.units, {})

    def take(description=None, **tensors):
        pack = Pack([member], data)
        state = {**pack.state(), "curve": np.zeros((0, 1), np.float32), **tensors}
        state = {name: array for name, array in state.items() if array is not None}
        with write_directory(tmp_path / "step-000000004") as target:
            save_file(state, target / "state.safetensors")
            write_json(
                target / "checkpoint.json",
                {"format": FORMAT, "step": 4, "members": ["m"], "failures": {}} | (description or {}),
            )
        return load_checkpoint(tmp_path, Pack([member], data), ["m"])

    return take


def test_sound_checkpoint_of_this_fixture_is_taken(checkpoint):
    assert checkpoint() is not None


@pytest.mark.parametrize(
    "change",
    [
        {"description": {"failures": ["m"]}},
        {"description": {"failures": {"../../x": "gone"}, "members": "m"}},
        {"description": {"failures": {"m": "all"}}},
        {"curve": np.zeros(3, np.float32)},
        {"curve": np.zeros((3, 2), np.float32)},
        {"curve": None},
        {"step": np.zeros(0, np.int64)},
    ],
)
def test_hostile_checkpoint_is_not_used(checkpoint, change):
    assert checkpoint(**change) is None


def test_pickled_checkpoint_is_not_used_and_does_not_run(checkpoint, payload, tmp_path):
    checkpoint()
    for name in ("state.safetensors", "checkpoint.json"):
        with write_directory(tmp_path / "step-000000004") as target:
            (target / name).write_bytes(payload.pickled())
    assert read_curve(tmp_path, 1) is None


def test_folders_that_only_look_like_checkpoints_are_passed_over(tmp_path):
    for name in ("step-", "step-x", "step-../x".replace("/", "_"), "step-0000000001.old"):
        (tmp_path / name).mkdir()
    assert newest_step(tmp_path) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows_M", np.array([10**9])),
        ("rows_M", np.array([-1])),
        ("nearest_N", np.array([0])),
        ("distances_N", np.zeros((1, 1), np.float32)),
        ("edges_E2", np.array([[0, 10**9]])),
        ("rows_M", np.array([0.5])),
    ],
)
def test_hostile_codebook_in_the_cache_is_learned_again(pen_dataset, tmp_path, name, value):
    config = SweepConfig.parse(
        {"task": "pen-expert-v1", "dataset": pen_dataset, "method": "mcnn+mlp", "memories": "random"}, "tests"
    )
    study = open_study(config)
    study.learn_codebooks(config.members(), tmp_path)
    (sound,) = study.codebooks.values()
    (entry,) = (path for path in tmp_path.iterdir() if path.is_dir())
    content = {**load_file(entry / "codebook.safetensors"), name: value}
    description = read_json(entry / "codebook.json")
    shutil.rmtree(entry)
    with write_directory(entry) as target:
        save_file(content, target / "codebook.safetensors")
        write_json(target / "codebook.json", description)
    study.learn_codebooks(config.members(), tmp_path)
    (again,) = study.codebooks.values()
    np.testing.assert_array_equal(again.rows_M, sound.rows_M)
    np.testing.assert_array_equal(again.nearest_N, sound.nearest_N)
