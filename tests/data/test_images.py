"""Demonstrations of images: stored small, and files of D4RL's size read without the memory for them."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
from minari.storage import get_dataset_path

from mcnn_ray.data import readers
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import read_minari, write_minari
from mcnn_ray.data.readers import read_file
from mcnn_ray.errors import DatasetError
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment

SIDE = 48 * 48 * 3


def images(steps, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (steps, SIDE), dtype=np.uint8)


def demonstrations(observations, finals=None):
    steps = len(observations)
    return Demonstrations(
        observations_ND=observations,
        actions_NA=np.zeros((steps, 2), np.float32),
        rewards_N=np.arange(steps, dtype=np.float32),
        offsets=np.array([0, steps // 2, steps]),
        final_observations_ED=finals,
        source="made",
    )


def write_d4rl_layout(path, observations, ends):
    """As D4RL's carla_lane_follow_flat-v0.hdf5: float32 images in [0, 1], chunked and compressed."""
    steps = len(observations)
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", data=observations, chunks=True, compression="gzip", compression_opts=1)
        file.create_dataset("actions", data=np.zeros((steps, 2), np.float32))
        file.create_dataset("rewards", data=np.arange(steps, dtype=np.float32))
        file.create_dataset("terminals", data=np.zeros(steps, bool))
        timeouts = np.zeros(steps, bool)
        timeouts[np.array(ends) - 1] = True
        file.create_dataset("timeouts", data=timeouts)


def test_images_are_stored_as_bytes_and_come_back_to_the_last_bit(minari_store):
    env = make_environment(CATALOGUE["carla-lane-v0"])
    seen = images(60).astype(np.float32) / np.float32(255)
    finals = images(2, 1).astype(np.float32) / np.float32(255)
    write_minari(demonstrations(seen, finals), "mcnn/driving/bytes-v0", env, description="t")
    back = read_minari("mcnn/driving/bytes-v0")
    np.testing.assert_array_equal(back.observations_ND, seen)
    np.testing.assert_array_equal(back.final_observations_ED, finals)
    assert back.observations_ND.dtype == np.float32
    size = (get_dataset_path("mcnn/driving/bytes-v0") / "data" / "main_data.hdf5").stat().st_size
    assert size < 1.3 * 62 * SIDE


def test_what_bytes_would_round_is_stored_as_it_is(minari_store):
    env = make_environment(CATALOGUE["carla-lane-v0"])
    seen = np.random.default_rng(0).random((20, SIDE), dtype=np.float32)
    write_minari(demonstrations(seen), "mcnn/driving/floats-v0", env, description="t")
    np.testing.assert_array_equal(read_minari("mcnn/driving/floats-v0").observations_ND, seen)


def test_mapped_arrays_are_those_that_memory_would_hold(tmp_path, monkeypatch):
    seen = images(50).astype(np.float32) / np.float32(255)
    write_d4rl_layout(tmp_path / "lane.hdf5", seen, [20, 45])
    in_memory = read_file(tmp_path / "lane.hdf5")
    monkeypatch.setattr(readers, "_MAPPED_BYTES", 10_000)
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 7 * 4 * SIDE)  # does not divide the rows
    mapped = read_file(tmp_path / "lane.hdf5")
    np.testing.assert_array_equal(mapped.observations_ND, seen)
    assert mapped.offsets.tolist() == [0, 20, 45, 50]
    assert mapped.sha256 == in_memory.sha256
    np.testing.assert_array_equal(mapped.take(np.array([1])).observations_ND, seen[20:45])


def test_not_a_number_in_a_mapped_array_is_found_with_its_place(tmp_path, monkeypatch):
    seen = images(50).astype(np.float32) / np.float32(255)
    seen[47, 5] = np.nan
    write_d4rl_layout(tmp_path / "lane.hdf5", seen, [20, 45])
    monkeypatch.setattr(readers, "_MAPPED_BYTES", 10_000)
    with pytest.raises(DatasetError, match="episode 2 at step 2"):
        read_file(tmp_path / "lane.hdf5")


def test_an_array_that_the_disk_cannot_hold_is_refused_before_it_is_read(tmp_path):
    with h5py.File(tmp_path / "bomb.hdf5", "w") as file:
        file.create_dataset("observations", (10**9, SIDE), np.float32, chunks=(1, SIDE))  # of 25 TiB, none is there
        file.create_dataset("actions", data=np.zeros((5, 2), np.float32))
    with pytest.raises(DatasetError, match="set TMPDIR to a folder with more"):
        read_file(tmp_path / "bomb.hdf5")


IMPORT = """
import resource, sys, re
from mcnn_ray.cli import main
import mcnn_ray.data.readers, mcnn_ray.data.minari_store, mcnn_ray.tasks.environments, mcnn_ray.artifacts, pandas
import mcnn_ray.terminal, rich.table, rich.progress
held = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
limit = held + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
sys.exit(main(["data", "import", sys.argv[2], "mcnn/driving/large-v0", "--task", "carla-lane-v0"]))
"""


def test_a_file_larger_than_the_memory_allowed_is_imported(tmp_path, minari_store):
    """276 MB of images under a limit of 150 MB: RLIMIT_DATA counts what a process writes, not what it maps to read."""
    steps = 10_000
    with h5py.File(tmp_path / "large.hdf5", "w") as file:
        # Rows that are not written are zeros and take no room.
        seen = file.create_dataset("observations", (steps, SIDE), np.float32, chunks=(64, SIDE), compression="gzip")
        seen[7_000:7_100] = images(100).astype(np.float32) / np.float32(255)
        file.create_dataset("actions", data=np.zeros((steps, 2), np.float32))
        file.create_dataset("timeouts", data=np.arange(1, steps + 1) % 250 == 0)
        file.create_dataset("terminals", data=np.zeros(steps, bool))
    command = [sys.executable, "-c", IMPORT, "150", str(tmp_path / "large.hdf5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10000" in done.stdout
    with h5py.File(get_dataset_path("mcnn/driving/large-v0") / "data" / "main_data.hdf5") as file:
        assert len(file) == 40
        np.testing.assert_array_equal(file["episode_28/observations"][:100], images(100))
