"""Whoever dies, the same command ends in the table of an undisturbed one, to the last byte."""

import re
import signal

import pytest

from mcnn_ray.config import SweepConfig
from mcnn_ray.sweep.runner import run_sweep
from tests.chaos.disturbed import Command, run_under_fire

MEMBERS = 4


@pytest.fixture(scope="module")
def values(pen_dataset):
    return {
        "task": "pen-expert-v1",
        "dataset": pen_dataset,
        "method": ["mcnn+mlp", "bc"],
        "lambda": [1.0],
        "seed": [0, 1],
        "steps": 1500,
        "hidden": [64],
        "batch_size": 64,
        "episodes": 10,
        "evaluate_every": 1000,
        "curve_episodes": 2,
        "checkpoint_s": 0,
        "name": "chaos",
    }


@pytest.fixture(scope="module")
def undisturbed(values, tmp_path_factory, ray_running):
    result = run_sweep(SweepConfig.parse(values, "test"), tmp_path_factory.mktemp("undisturbed"))
    return (result.folder / "results.csv").read_bytes()


def test_sweep_killed_with_its_driver_goes_on_from_its_checkpoints(values, undisturbed, tmp_path):
    command = Command(values, tmp_path)
    command.start()
    command.wait_for(lambda: len(command.checkpoints()) >= 2)
    command.kill()
    assert not command.finished()
    command.start()
    assert command.process.wait() == 0, command.told()
    first = re.search(r"training, member-steps: ([\d,]+) of", command.told())
    assert int(first[1].replace(",", "")) > 200  # where the checkpoints were, not the beginning
    assert command.table() == undisturbed
    command.check_runs(MEMBERS)
    command.check_nothing_is_left()
    assert not list(command.storage.rglob("*.tmp"))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_sweep_under_random_kills_ends_in_the_same_table(values, undisturbed, tmp_path, seed):
    command = Command(values, tmp_path)
    killed = run_under_fire(command, seed, pauses=(2.0, 5.0), kills=6)
    assert "driver" in killed
    assert len(killed) > 1
    assert command.table() == undisturbed
    command.check_runs(MEMBERS)
    command.check_nothing_is_left()


def test_first_ctrl_c_writes_checkpoints_and_leaves_in_one_sentence(values, tmp_path):
    command = Command({**values, "method": "bc", "seed": 0, "steps": 200_000, "checkpoint_s": 3600}, tmp_path)
    command.start()
    command.wait_for(lambda: "training, member-steps" in command.told())
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait() == 130, command.told()
    assert command.told().splitlines()[-1] == "interrupted; the same command continues from the last checkpoints"
    assert "Traceback" not in command.told()
    assert command.checkpoints()
    command.check_runs(1, "KILLED")
    command.check_nothing_is_left()
