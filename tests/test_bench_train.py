import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from mcnn_ray.bench_train import TrainBench, bench_members, bench_train
from mcnn_ray.bench_yardsticks import EagerLoop, ProductTimer, made_buffer
from mcnn_ray.cli import main
from mcnn_ray.errors import ConfigError
from mcnn_ray.training.step_shape import StepShape

TINY = StepShape(dim=3, hidden=(4, 5), actions=2, batch_size=8)
REFERENCE = StepShape(dim=39, hidden=(256, 256), actions=28, batch_size=256)
SMALL = ["--members", "2", "--steps", "30", "--dim", "3", "--hidden", "4,5", "--actions", "2"]
SMALL += ["--batch-size", "8", "--rows", "50", "--json"]


def asked(**changes):
    values = {"members": (1,), "steps": 10, "shape": TINY, "rows": 50, "processes": None, "device": "cpu"}
    return TrainBench(**{**values, "precision": "float32", "seed": 0, **changes})


def test_bench_train_runs_with_what_a_bare_machine_has_and_its_figures_agree(tmp_path):
    # The processes that train are started afresh, so what is missing must be missing for them too.
    blocked = "ray mlflow gymnasium gymnasium_robotics minari mujoco h5py yaml matplotlib sklearn"
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nfor name in {blocked.split()!r}:\n    sys.modules[name] = None\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "mcnn_ray.bench", "train", *SMALL],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    found = json.loads(line)
    (row,) = found["results"]
    assert row["members"] == 2
    assert row["threads"] == 1
    assert row["processes"] == min(2, found["cores"])
    assert row["member_steps_per_s"] > 0
    assert row["fraction_of_limit"] == pytest.approx(row["member_steps_per_s"] / row["limit_steps_per_s"])
    assert row["times_eager_loop"] == pytest.approx(row["member_steps_per_s"] / row["eager_loop_steps_per_s"])
    assert row["limit_steps_per_s"] == pytest.approx(row["processes"] * found["limit_steps_per_s"])
    assert found["limit_steps_per_s"] * found["step_gflop"] == pytest.approx(row["matmul_gflops"])
    assert found["step_gflop"] == TINY.flop / 1e9
    assert found["step_mb"] == TINY.bytes / 1e6
    for key in ("eager_loop_steps_per_s", "matmul_gflops", "limit_steps_per_s", "memory_gb_per_s"):
        assert found[key] > 0


def test_operations_of_a_step_are_those_counted_by_hand():
    # Forward 8x3x4, 8x4x5, 8x5x2; the same again for the weights' gradients; the hidden layers' gradients 8x5x2, 8x4x5.
    assert TINY.flop == 2 * 8 * ((12 + 20 + 10) * 2 + (10 + 20))
    assert REFERENCE.flop == pytest.approx(121.9e6, rel=1e-3)


def test_bytes_of_a_step_are_those_counted_by_hand():
    parameters = (3 * 4 + 4) + (4 * 5 + 5) + (5 * 2 + 2)
    outputs = 8 * (4 + 5 + 2)
    batch = 8 * (3 + 2 + 2 + 1)
    assert TINY.bytes == 4 * (2 * 4 * parameters + 2 * outputs + batch)


def test_timed_products_do_the_operations_that_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    timer = ProductTimer(TINY, 1, "cpu")
    with FlopCounterMode(display=False) as counter:
        timer.read()
    passes = counter.get_total_flops() / TINY.flop
    assert passes == int(passes) > 0
    assert timer.read().keys() == {"numpy", "torch"}


def test_eager_loop_learns():
    shape = StepShape(dim=3, hidden=(32,), actions=2, batch_size=64)
    buffer = made_buffer(shape, 200, 0)
    buffer["actions"] = np.tanh(buffer["observations"][:, :2])
    buffer["mem_observations"] += 10.0  # so far that the network alone acts
    torch.set_num_threads(1)
    loop = EagerLoop(shape, buffer, "cpu", 0)
    first = np.mean([loop.take() for _ in range(20)])
    assert loop.seconds(300) > 0
    assert np.mean([loop.take() for _ in range(20)]) < 0.3 * first


def test_members_are_a_grid_of_settings_and_seeds_without_repeats():
    members = bench_members(9, TINY, 10, 0)
    assert len(set(members)) == 9
    assert {member.method for member in members} == {"bc", "mcnn+mlp"}
    assert {member.lambda_ for member in members} == {0.1, 1.0, 10.0, None}
    assert {member.shape for member in members} == {members[0].shape}


def test_default_is_a_process_a_core_but_no_more_than_members(monkeypatch):
    monkeypatch.setattr("mcnn_ray.bench_train._cores", lambda: 4)
    assert [asked().processes_of(members) for members in (1, 3, 36)] == [1, 3, 4]
    assert asked(processes=2).processes_of(36) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' is not here; use cpu"),
        ({"precision": "bf8"}, "unknown precision 'bf8'; valid: float32, tf32"),
        ({"precision": "tf32"}, "tf32 is one of GPUs"),
        ({"steps": 0}, "0 steps cannot be timed"),
        ({"members": (4, 0)}, "members are [4, 0]; each number must be at least 1"),
        ({"members": ()}, "members are []"),
        ({"rows": 7}, "the batch size 8 is larger than the 7 rows"),
        ({"shape": StepShape(dim=0, hidden=(4,), actions=2, batch_size=8)}, "must all be at least 1"),
        ({"processes": 10_000, "members": (10_000,)}, "10000 processes asked of"),
        ({"processes": 0}, "0 processes asked of"),
        ({"processes": 2, "members": (1,)}, "2 processes"),
    ],
)
def test_bench_train_refuses_what_it_cannot_measure(changes, message):
    with pytest.raises(ConfigError) as refused:
        bench_train(asked(**changes))
    assert message in str(refused.value)


def test_lists_that_are_no_numbers_are_refused_in_a_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "train", "--members", "one,2"])
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("error: --members is 'one,2'; give whole numbers")
