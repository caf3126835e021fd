"""Successive halving: packs that stop and go on without some members, and a real sweep killed between comparisons."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from mcnn_ray.artifacts import read_json
from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError
from mcnn_ray.rollout.episode import EVALUATION_SEED, SELECTION_SEED
from mcnn_ray.rollout.records import read_records
from mcnn_ray.sweep.halving import rung_steps
from mcnn_ray.sweep.runner import run_sweep
from mcnn_ray.tracking import tracking_uri
from mcnn_ray.training.run import train_pack
from tests.training.test_pack import PACK, layers, training_data

SCRIPT = Path(__file__).parents[2] / "sweeps" / "paper_grid.py"
SWEEP = {
    "task": "pen-expert-v1",
    "method": ["mcnn+mlp", "1nn"],
    "lambda": [0.1, 1.0, 10.0, 100.0],
    "memory_fraction": [0.1],
    "learning_rate": [3e-4, 1e30],  # no member survives the latter
    "seed": [0],
    "steps": 1600,
    "hidden": [8, 8],
    "batch_size": 32,
    "episodes": 2,
    "curve_episodes": 2,
    "halving": 4,
    "name": "halved",
}


def parse(**changes):
    return SweepConfig.parse({**SWEEP, **changes}, "test")


def test_rungs_are_parts_of_the_steps_at_points_of_the_learning_curve():
    assert rung_steps(parse()) == [100, 400]
    assert rung_steps(parse(steps=1_000_000)) == [60_000, 250_000]
    assert rung_steps(parse(steps=1000, halving=3)) == [100, 300]
    assert rung_steps(parse(steps=1000, halving=3, learning_rate=1e-3)) == [300]  # of 4 settings one goes on
    assert rung_steps(parse(halving=None)) == []


def test_more_comparisons_than_points_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError, match="takes 2 comparisons, the first after 18 of 300 steps, but members stop"):
        run_sweep(parse(steps=300), tmp_path)
    assert not list(tmp_path.iterdir())


def test_pack_that_stops_and_drops_members_trains_the_rest_to_the_bits_of_an_undisturbed_run(tmp_path):
    names = [f"m{i}" for i in range(len(PACK))]
    whole = train_pack(PACK, names, training_data(), tmp_path / "whole", 0)
    stopped = {}
    for until in (300, 600, None):
        trained = train_pack(PACK, names, training_data(), tmp_path / "cut", 1e9, None, None, until, stopped)
        assert trained.pack.step == (until or 1000)
        assert trained.failures == stopped
        stopped[names[len(stopped)]] = "another was better"
    assert trained.positions == list(range(2, len(PACK)))
    np.testing.assert_array_equal(trained.curve_SP[:, 2:], whole.curve_SP[:, 2:])
    assert np.isfinite(trained.curve_SP).sum(0).tolist() == [3, 6, *[10] * (len(PACK) - 2)]
    for place, position in enumerate(trained.positions):
        np.testing.assert_array_equal(layers(trained.pack, place)[0][0], layers(whole.pack, position)[0][0])


@pytest.fixture(scope="module")
def halved(pen_dataset, tmp_path_factory, ray_running):
    storage = tmp_path_factory.mktemp("runs")
    result = run_sweep(parse(dataset=pen_dataset), storage)
    return storage, result, {name: (result.folder / name).read_bytes() for name in ("results.csv", "selection.csv")}


def test_one_setting_a_method_is_reported_and_it_is_the_best_of_each_comparison(halved):
    _, result, _ = halved
    assert [row.member.method for row in result.rows] == ["mcnn+mlp", "1nn"]
    table = pd.read_csv(result.folder / "selection.csv")
    assert table["outcome"].tolist() == ["chosen", *["stopped"] * 7]
    assert table["step"].tolist() == [400, 400, *[100] * 6]
    assert table["lambda"][0] == result.rows[0].member.lambda_
    points = {
        path.parent.name: {p["step"]: p["return"] for p in read_json(path)["evaluations"]}
        for path in result.folder.glob("members/*/evaluations.json")
    }
    first = sorted((returns[100] for returns in points.values()), reverse=True)
    assert sorted((returns[100] for returns in points.values() if 400 in returns), reverse=True) == first[:2]
    assert table["selection_return"][0] == max(returns.get(400, -np.inf) for returns in points.values())
    assert result.selection.notes == [
        "mcnn+mlp: the last of 8 settings (6 stopped after 100, 1 stopped after 400 of 1,600 steps) by mean return on "
        f"episode seeds {SELECTION_SEED} to {SELECTION_SEED + 1}"
    ]


def test_setting_of_which_a_member_failed_comes_last_and_is_told_as_a_failure(halved):
    _, result, _ = halved
    table = pd.read_csv(result.folder / "selection.csv")
    assert table["selection_return"].isna().tolist() == [False] * 4 + [True] * 4
    assert set(table["learning_rate"][4:]) == {1e30}
    assert len(result.failures) == 4
    assert all("lr=1e+30" in failure and "no longer finite by step 100" in failure for failure in result.failures)


def test_seeds_for_choosing_and_for_reporting_are_disjoint_and_only_reported_members_meet_the_latter(halved):
    _, result, _ = halved
    files = list(result.folder.glob("members/*/episodes.parquet"))
    assert len(files) == len(result.rows)
    assert {record.episode_seed for path in files for record in read_records(path)} == {
        EVALUATION_SEED,
        EVALUATION_SEED + 1,
    }


def test_stopped_members_are_finished_runs_that_say_when_and_why(halved):
    storage, result, _ = halved
    client = mlflow.MlflowClient(tracking_uri(storage))
    runs = client.search_runs([client.get_experiment_by_name("pen-expert-v1").experiment_id])
    assert sorted(run.info.status for run in runs) == ["FAILED"] * 4 + ["FINISHED"] * 6
    stopped = {run.data.params["lambda_"]: run for run in runs if "mcnn.unreported" in run.data.tags}
    table = pd.read_csv(result.folder / "selection.csv").iloc[1:4]
    assert len(stopped) == 3
    for _, row in table.iterrows():
        run = stopped[str(row["lambda"])]
        assert run.data.params["stopped_at_step"] == str(row["step"])
        assert run.data.tags["mcnn.unreported"].startswith(f"stopped after {row['step']} of 1600 steps: place ")
        assert run.data.metrics["selection/return"] == row["selection_return"]
        assert "return" not in run.data.metrics
        assert not [a for a in client.list_artifacts(run.info.run_id) if a.path == "policy"]


def test_other_choice_under_the_same_name_is_refused_and_other_episodes_are_not(halved, pen_dataset):
    storage, _, _ = halved
    for changes in ({"halving": None}, {"halving": 3}, {"lambda": [0.1, 1.0]}, {"curve_episodes": 3}):
        with pytest.raises(ConfigError, match="holds a sweep that chooses otherwise"):
            run_sweep(parse(dataset=pen_dataset, **changes), storage)
    assert run_sweep(parse(dataset=pen_dataset, episodes=1), storage).rows[0].episode_return.n == 1


@pytest.mark.long
def test_script_killed_while_settings_are_compared_continues_to_the_same_tables(halved, pen_dataset, tmp_path):
    """SIGKILL of the driver amid the second comparison."""
    _, _, undisturbed = halved
    flags = {key.replace("_", "-"): ",".join(map(str, v)) if isinstance(v, list) else v for key, v in SWEEP.items()}
    flags |= {"dataset": pen_dataset, "storage": tmp_path}
    command = [sys.executable, str(SCRIPT), *(str(part) for key, v in flags.items() for part in (f"--{key}", v))]
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any('"step": 400' in path.read_text() for path in tmp_path.rglob("evaluations.json")):
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "halved" / "results.csv").exists()
    time.sleep(3)  # Ray's processes notice the death of their driver
    again = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert again.returncode == 0, again.stderr
    assert "mcnn+mlp: the last of 8 settings" in again.stdout
    assert {name: (tmp_path / "halved" / name).read_bytes() for name in undisturbed} == undisturbed
    assert not list(tmp_path.rglob("snapshots/step-*"))


def test_members_of_a_setting_differ_in_the_seed_alone():
    from mcnn_ray.member import settings_of
    from mcnn_ray.sweep.selection import setting_return

    members = {f"{m.lambda_}/{m.seed}": m for m in parse(seed=[0, 1]).members()}
    settings = settings_of(members)
    assert all({replace(members[i], seed=0) for i in found} == {setting} for setting, found in settings.items())
    assert setting_return(["a", "b"], {"a": 1.0, "b": 2.0}) == 1.5
    assert setting_return(["a", "b"], {"a": 1.0}) is None
