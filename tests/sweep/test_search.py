"""A search by Optuna, run by its script; and the other scripts of `sweeps/`."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import mlflow
import pandas as pd
import pytest

from mcnn_ray.artifacts import read_json
from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError
from mcnn_ray.sweep.runner import run_sweep
from mcnn_ray.tracking import tracking_uri

SWEEPS = Path(__file__).parents[2] / "sweeps"
SMALL = {"task": "pen-expert-v1", "steps": 100, "hidden": 8, "batch_size": 32, "seed": 0, "episodes": 1}


def run_script(script, storage, monkeypatch, **changes):
    flags = {**SMALL, **changes, "storage": storage}
    arguments = [str(part) for key, value in flags.items() for part in (f"--{key.replace('_', '-')}", value)]
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SWEEPS / script), run_name="__main__")
    assert not ended.value.code
    return storage / changes["name"]


def own_keys(name):
    found = runpy.run_path(str(SWEEPS / name))
    return found["KEYS"] if "KEYS" in found else found["SWEEP"]


@pytest.mark.parametrize("name", sorted(path.name for path in SWEEPS.glob("*.py")))
def test_script_asks_for_a_sweep_that_can_be_run(name):
    config = SweepConfig.parse({"task": "door-human-v1", **own_keys(name)}, name)
    assert {member.method for member in config.members()} == set(config.method) >= {"mcnn+mlp", "bc"}


def test_paper_grid_is_the_paper_s():
    config = SweepConfig.parse({"task": "door-human-v1", **own_keys("paper_grid.py")}, "test")
    members = config.members()
    assert (len(members), config.episodes) == (4 * 3 * 3 + 3 + 1, 20)
    assert {(m.steps, m.batch_size, m.hidden) for m in members if m.trained} == {(1_000_000, 256, (256, 256))}


def test_script_on_demonstrations_ends_in_its_table(tmp_path, monkeypatch, pen_dataset, ray_running):
    flags = {"dataset": pen_dataset, "method": "1nn", "demonstrations": "2,3", "name": "few"}
    table = pd.read_csv(run_script("demonstrations.py", tmp_path, monkeypatch, **flags) / "results.csv")
    assert table["demonstrations"].tolist() == [2, 3]


TUNED = {
    "method": "mcnn+mlp,1nn",
    "lambda": "0.01..10:log",
    "memory_fraction": "0.1,0.2",
    "trials": 4,
    "trials_at_once": 2,
    "curve_episodes": 2,
    "name": "tuned",
}


@pytest.fixture(scope="module")
def tuned(pen_dataset, tmp_path_factory, ray_running):
    storage = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return storage, run_script("tuned.py", storage, monkeypatch, dataset=pen_dataset, **TUNED)


def tuned_config(pen_dataset, **changes):
    own = {**own_keys("tuned.py"), **SMALL, **TUNED, "dataset": pen_dataset, **changes}
    return SweepConfig.parse({k: v.split(",") if "," in str(v) and k != "name" else v for k, v in own.items()}, "test")


def test_best_setting_of_the_search_is_reported_beside_what_has_nothing_to_search(tuned):
    _, folder = tuned
    found = pd.read_csv(folder / "selection.csv")
    assert len(found) == 4
    assert found["lambda"].is_unique
    assert found["lambda"].between(0.01, 10).all()
    assert set(found["memory_fraction"]) <= {0.1, 0.2}
    assert found["outcome"].tolist() == ["chosen", *["not chosen"] * 3]
    assert found["selection_return"].is_monotonic_decreasing
    table = pd.read_csv(folder / "results.csv")
    assert table["method"].tolist() == ["mcnn+mlp", "1nn"]
    assert table["lambda"][0] == found["lambda"][0]
    assert table["first_episode_seed"].tolist() == [1_000_000, 1_000_000]


def test_members_not_chosen_are_finished_runs_with_what_they_were_judged_by(tuned):
    storage, folder = tuned
    client = mlflow.MlflowClient(tracking_uri(storage))
    runs = client.search_runs([client.get_experiment_by_name("pen-expert-v1").experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    passed_over = [run for run in runs if "mcnn.unreported" in run.data.tags]
    found = pd.read_csv(folder / "selection.csv").set_index("lambda")["selection_return"]
    assert len(passed_over) == 3
    for run in passed_over:
        assert run.data.metrics["selection/return"] == found[float(run.data.params["lambda_"])]
        assert "stopped_at_step" not in run.data.params
        assert client.list_artifacts(run.info.run_id) == []
        assert len(run.outputs.model_outputs) == 1


def test_search_cut_off_after_a_batch_draws_and_ends_the_same_and_runs_only_what_is_missing(tuned, pen_dataset):
    _, folder = tuned
    names = ("results.csv", "selection.csv")
    before = {name: (folder / name).read_bytes() for name in names}
    batches = read_json(folder / "sweep.json")["packs"]
    last = list(batches)[-1]
    for path in [folder / last, *(folder / "members" / identity for identity in batches[last])]:
        shutil.rmtree(path)
    for name in names:
        (folder / name).unlink()
    stages, said = [], []
    run_sweep(tuned_config(pen_dataset), folder.parent, lambda *told: stages.append(told), said.append)
    assert said[1].startswith("settings 1 to 2 of 4 of each method: plan: 2 members;")
    assert said[2].startswith("settings 3 to 4 of 4 of each method: plan: 2 members; 2 to train in 1 pack")
    assert {name: (folder / name).read_bytes() for name in names} == before
    trained = [told for told in stages if told[0] == "training, member-steps"]
    assert trained[-1][1:] == (100 * len(batches[last]),) * 2
    assert json.dumps(read_json(folder / "sweep.json")["packs"]) == json.dumps(batches)


def test_range_of_fractions_that_reaches_none_is_refused_before_anything_runs(pen_dataset, tmp_path):
    config = tuned_config(pen_dataset, memory_fraction="0.0001..0.5:log")
    with pytest.raises(ConfigError, match="gives no memory"):
        run_sweep(config, tmp_path)
    assert not list(tmp_path.iterdir())
