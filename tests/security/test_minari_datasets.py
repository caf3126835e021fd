"""Hostile Minari datasets: no code of theirs runs, nothing outside is read, no name leaves the store."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from mcnn_ray.data.minari_store import dataset_exists, read_minari, task_demonstrations
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.tasks.catalogue import find_task


@pytest.fixture
def dataset(pen_dataset, minari_store):
    """A copy of a sound dataset to be made hostile: its id and the folder of its data."""
    copy = minari_store / "mcnn/pen/hostile-v0"
    shutil.copytree(minari_store / pen_dataset, copy)
    yield "mcnn/pen/hostile-v0", copy / "data"
    shutil.rmtree(copy)


def change_metadata(data, change):
    metadata = json.loads((data / "metadata.json").read_text())
    change(metadata)
    (data / "metadata.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_environment_that_a_dataset_names_is_not_made_for_its_spaces(dataset, payload, space):
    name, data = dataset
    spec = {
        "id": "Hostile-v0",
        "additional_wrappers": [],
        "vector_entry_point": None,
    }
    spec |= {"entry_point": "os:mkdir", "kwargs": {"path": str(payload.witness)}}

    def change(metadata):
        del metadata[space]
        metadata["env_spec"] = json.dumps(spec)

    change_metadata(data, change)
    with pytest.raises(DatasetError, match="does not describe its observation and action spaces"):
        read_minari(name)


def test_spec_of_a_hostile_environment_beside_sound_spaces_is_not_run(dataset, payload):
    name, data = dataset
    spec = {"id": "Hostile-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(payload.witness)}}
    spec |= {
        "additional_wrappers": [{"name": "x", "entry_point": "os:mkdir", "kwargs": {"path": str(payload.witness)}}]
    }
    change_metadata(data, lambda metadata: metadata.update(env_spec=json.dumps(spec), eval_env_spec=json.dumps(spec)))
    assert read_minari(name).episodes == 6


@pytest.mark.parametrize(
    "change",
    [
        {"data_format": "pickle"},
        {"data_format": ["hdf5"]},
        {"total_episodes": 10**18},
        {"total_episodes": -1},
        {"total_episodes": "many"},
        {"observation_space": "[" * 100_000},
        {"observation_space": '{"type": "Code"}'},
        {"action_space": '{"type": "Box", "dtype": "float32", "shape": [1000000000000], "low": [0], "high": [1]}'},
        {"action_space": '{"type": "Box", "dtype": "O", "shape": [24], "low": [0], "high": [1]}'},
        {"mcnn_provenance": [1]},
    ],
)
def test_descriptions_that_are_none_are_told_in_one_sentence(dataset, change):
    name, data = dataset
    change_metadata(data, lambda metadata: metadata.update(change))
    with pytest.raises(DatasetError):
        read_minari(name)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a": ' + "9" * 10_000 + "}", "[]"])
def test_metadata_that_is_no_json_object_is_told_in_one_sentence(dataset, text):
    name, data = dataset
    (data / "metadata.json").write_text(text)
    with pytest.raises(DatasetError, match="is damaged"):
        read_minari(name)


def replace_observations(file, make):
    del file["episode_0/observations"]
    make(file["episode_0"], file)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda g, f: g.__setitem__("observations", h5py.ExternalLink("/etc/other.hdf5", "x")), "link to elsewhere"),
        (lambda g, f: g.__setitem__("observations", h5py.SoftLink("/episode_1/observations")), "link to elsewhere"),
        (
            lambda g, f: g.create_dataset("observations", (101, 45), "f8", external=[("/etc/passwd", 0, 101 * 45 * 8)]),
            "other arrays or files",
        ),
        (lambda g, f: g.create_dataset("observations", (10**13, 45), "f8", chunks=(100, 45)), "GiB of memory"),
        (lambda g, f: g.__setitem__("observations", f["/"]), "is there twice"),
        (lambda g, f: g.create_group("observations"), "is damaged"),
        (lambda g, f: g.create_dataset("observations", data=np.array([b"x"] * 101)), "is damaged"),
    ],
    ids=["external", "soft", "raw", "huge", "cycle", "group", "texts"],
)
def test_data_that_leads_out_of_its_file_or_declares_too_much_is_refused(dataset, make, match):
    name, data = dataset
    with h5py.File(data / "main_data.hdf5", "a") as file:
        replace_observations(file, make)
    with pytest.raises(DatasetError, match=match):
        read_minari(name)


@pytest.mark.parametrize("form", ["../{}", "mcnn/../../{}", "{root}/{}", "./../{}", "mcnn//../../{}"])
def test_names_that_leave_the_store_are_not_followed(dataset, minari_store, form):
    _, data = dataset
    outside = minari_store.parent / "outside-v0"
    shutil.copytree(data.parent, outside, dirs_exist_ok=True)
    hostile = form.format("outside-v0", root=minari_store.parent)
    assert (minari_store / hostile / "data").is_dir() or "mcnn//" in form
    assert not dataset_exists(hostile)
    for read in (lambda: read_minari(hostile), lambda: task_demonstrations(find_task(f"Pendulum-v1@{hostile}"))):
        with pytest.raises(ConfigError, match="would leave Minari's store"):
            read()


def test_payload_in_place_of_the_data_does_not_run(dataset, payload):
    name, data = dataset
    Path(data / "main_data.hdf5").write_bytes(payload.pickled())
    with pytest.raises(DatasetError, match="is damaged"):
        read_minari(name)
