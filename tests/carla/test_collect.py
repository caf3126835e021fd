"""Demonstrations and rollouts of driving, as the commands make them."""

import json
import os
import subprocess
import sys

import numpy as np
from minari.storage import get_dataset_path

from tests.carla import driving


def mcnn(server, *words):
    done = subprocess.run(
        [sys.executable, "-m", "mcnn_ray", *words],
        env={**os.environ, "MCNN_CARLA_SERVER": server},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_experts_episodes_are_recorded_and_tell_what_ran(drive, highway, minari_store):
    mcnn(highway, "data", "collect", "carla-lane-v0", "--episodes", "1", "--seed", "3")
    facts = json.loads(mcnn(highway, "data", "info", "carla-lane-v0", "--json"))
    assert (facts["episodes"], facts["steps"], facts["observation_numbers"]) == (1, 250, 6912)
    assert facts["return_mean"] > 300.0
    assert facts["provenance"]["simulator"] == "DrivingLane-v0 on lite server 0.9.16, Lite/Maps/HighwayLoop"
    assert "lite server" in facts["provenance"]["source"]
    folder = get_dataset_path("mcnn/driving/lane-v0") / "data"
    assert (folder / "main_data.hdf5").stat().st_size < 1.1 * 251 * 6912
    assert drive(driving.replayed, highway) == np.float32(facts["return_mean"])


def test_rollouts_on_the_lite_server_are_recorded_as_such_and_have_no_score(drive, highway):
    record = drive(driving.rolled_out, highway)
    assert record.length == 250 and record.success is False and record.episode_return == 0.0
    assert record.normalised_score is None
    assert record.simulator == "DrivingLane-v0 on lite server 0.9.16, Lite/Maps/HighwayLoop"
