"""The whole path on a small real task: trained on Ray Tune, rolled out on actors, filed in MLflow."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import minari
import mlflow
import numpy as np
import pandas as pd
import pytest
from minari.data_collector import EpisodeBuffer

from mcnn_ray.artifacts import locked
from mcnn_ray.cli_certify import sweep_lines
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.minari_store import write_minari
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.rollout.records import read_records
from mcnn_ray.sweep.runner import run_sweep
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.tracking import tracking_uri
from tests.environments import MORTAL_SEED, record_drift

SWEEP = {
    "task": "pen-expert-v1",
    "demonstrations": 4,
    "method": ["mcnn+mlp", "bc", "1nn"],
    "lambda": [0.1, 1.0],
    "seed": [0, 1],
    "steps": 300,
    "hidden": [32, 32],  # with one layer alone an overflow would stay inside tanh
    "batch_size": 64,
    "episodes": 3,
    "evaluate_every": 200,
    "curve_episodes": 2,
    "name": "small",
}
# What killed writers left before the sweep's first start.
OLD, YOUNG, OWN = "cache/.d.0123abcd.tmp", "cache/.c.0123abcd.tmp", "small/members/.m.0123abcd.tmp"


@pytest.fixture(scope="module")
def config(pen_dataset):
    return {**SWEEP, "dataset": pen_dataset}


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory, ray_running):
    storage = tmp_path_factory.mktemp("runs")
    for name in (OLD, YOUNG, OWN):
        (storage / name).mkdir(parents=True)
    os.utime(storage / OLD, (0, 0))
    stages = []
    result = run_sweep(
        SweepConfig.parse(config, "test"), storage, lambda stage, done, total: stages.append((stage, done, total))
    )
    return storage, result, stages


def runs_of(storage):
    client = mlflow.MlflowClient(tracking_uri(storage))
    experiment = client.get_experiment_by_name("pen-expert-v1")
    return client, client.search_runs([experiment.experiment_id])


def test_table_has_a_row_per_setting_with_intervals_and_counts(finished):
    _, result, _ = finished
    assert [(row.member.method, row.member.lambda_, row.seeds) for row in result.rows] == [
        ("mcnn+mlp", 0.1, (0, 1)),
        ("mcnn+mlp", 1.0, (0, 1)),
        ("bc", None, (0, 1)),
        ("1nn", None, (0,)),
    ]
    for row in result.rows:
        assert row.episode_return.n == 3 * len(row.seeds)
        assert row.episode_return.low <= row.episode_return.mean <= row.episode_return.high
        assert row.episode_seeds == (1_000_000, 1_000_002)
        assert row.score is not None
        assert row.success is not None
    assert all(found.holds for found in result.certificates.values())
    assert set(json.loads((result.folder / "certificates.json").read_text())) == set(result.certificates)
    table = pd.read_csv(result.folder / "results.csv")
    assert table["return"].tolist() == [row.episode_return.mean for row in result.rows]


def test_progress_covers_every_stage_to_its_end(finished):
    _, _, stages = finished
    last = {stage: (done, total) for stage, done, total in stages}
    assert last == {
        "memories neural-gas 10%": (1.0, 1.0),
        "training, member-steps": (1800, 1800),
        "rollouts of snapshots": (6, 6),
        "rollouts, episodes": (21, 21),
        "certificates": (2, 2),
        "MLflow, runs": (7, 7),
    }


def test_policies_on_disk_return_their_stored_actions(finished, pen_demonstrations):
    _, result, _ = finished
    shown = pen_demonstrations.subset(4)
    for identity in (path.name for path in (result.folder / "members").iterdir()):
        policy = load_policy(result.folder / "members" / identity / "policy")
        assert policy.card["identity"] == identity
        if policy.explain(shown.observations_ND[:1]) is None:
            continue
        rows = policy.explain(shown.observations_ND).row_B
        actions, _ = policy.act(shown.observations_ND[rows])
        assert (actions == shown.actions_NA[rows]).all()


def model_files(client, model, folder=None):
    found = client.list_logged_model_artifacts(model, folder)
    return [path for file in found for path in (model_files(client, model, file.path) if file.is_dir else [file.path])]


def test_mlflow_holds_one_finished_child_a_member_with_all_it_shows(finished):
    storage, result, _ = finished
    client, runs = runs_of(storage)
    parent = client.get_run(result.run_id)
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == result.run_id]
    assert len(runs) == 8
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.data.tags["mcnn.member"] for run in children} == {p.name for p in (result.folder / "members").iterdir()}
    assert {artifact.path for artifact in client.list_artifacts(parent.info.run_id)} == {
        "results.json",
        "scores.png",
        "sweep.json",
        "certificates.json",
    }
    child = next(run for run in children if run.data.params["method"] == "mcnn+mlp")
    assert {"lambda_", "L", "memory_fraction", "seed", "steps"} <= child.data.params.keys()
    assert {"train_loss", "return", "return_low", "score_high", "success"} <= child.data.metrics.keys()
    curve = client.get_metric_history(child.info.run_id, "train_loss")
    assert [point.step for point in curve] == [100, 200, 300]
    assert curve[-1].value < curve[0].value
    (evaluated,) = client.get_metric_history(child.info.run_id, "on_the_way/return")
    assert evaluated.step == 200
    assert {"on_the_way/return_low", "on_the_way/success_high"} <= child.data.metrics.keys()
    episodes = mlflow.artifacts.load_dict(f"{child.info.artifact_uri}/episodes.json")
    assert len(episodes["data"]) == 3
    (output,) = child.outputs.model_outputs
    files = model_files(client, output.model_id)
    assert {"policy.json", "policy.safetensors"} <= {Path(file).name for file in files}


def test_certificates_of_a_sweep_tell_how_far_its_rollouts_went(finished):
    _, result, _ = finished
    written = json.loads((result.folder / "certificates.json").read_text())
    assert len(written) == 2
    members = result.folder / "members"
    by_lambda = {}
    for path in members.glob("*/episodes.parquet"):
        settings = json.loads((path.parent / "policy" / "policy.json").read_text())
        by_lambda.setdefault(settings["card"]["member"].get("lambda_"), []).extend(read_records(path))
    for values in written.values():
        records = by_lambda[values["lambda"]]
        demonstrated, rollouts = values["isolation"]
        assert (rollouts["name"], rollouts["episodes"]) == ("rollouts", 6) == ("rollouts", len(records))
        assert rollouts["states"] == sum(one.length for one in records)
        assert rollouts["most_isolated_distance"] == max(one.most_isolated_distance for one in records)
        assert (demonstrated["name"], demonstrated["episodes"], demonstrated["states"]) == (
            "all demonstrations",
            4,
            400,
        )
        checked = {over["name"]: over for over in values["checked"]}
        assert {name: over["states"] for name, over in checked.items()} == {
            "demonstrations": 400,
            "held-out demonstrations": 200,
        }
        assert demonstrated["most_isolated_distance"] == checked["demonstrations"]["most_isolated_distance"]
        assert values["covers"]["most_isolated_distance"][-1] == "rollouts"
        assert values["covers"]["width"] == ["demonstrations", "held-out demonstrations"]


def test_lines_on_a_sweep_tell_over_which_states_and_how_far(finished):
    _, result, _ = finished
    first, _, *rest = sweep_lines(result.certificates)
    assert first.startswith("certificate: holds, 2 settings checked: exact at memories")
    assert first.endswith("demonstrations (400 of 400 states) and held-out demonstrations (200 of 200 states)")
    assert [line.split(":")[0] for line in rest] == [
        "  demonstrations (400 of 400 states)",
        "  held-out demonstrations (200 of 200 states)",
        "  all demonstrations (4 episodes, 400 states)",
        "  rollouts (6 episodes, 600 states)",
    ]
    broken = {label: dataclasses.replace(found, inexact_memories=1) for label, found in result.certificates.items()}
    assert f"does not hold for {', '.join(broken)}" in sweep_lines(broken)[0]


def test_start_of_a_sweep_removes_what_killed_writers_left(finished):
    storage, _, _ = finished
    assert (storage / YOUNG).exists()  # someone may be at it
    assert not (storage / OLD).exists()
    assert not (storage / OWN).exists()


def test_same_sweep_again_changes_nothing_and_trains_nothing(finished, config):
    storage, result, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (result.folder / "members").rglob("*") if path.is_file()}
    stages = []
    again = run_sweep(SweepConfig.parse(config, "test"), storage, lambda stage, done, total: stages.append(stage))
    assert again.rows == result.rows
    assert "training, member-steps" not in stages
    assert "rollouts, episodes" not in stages
    assert {
        path: path.stat().st_mtime_ns for path in (result.folder / "members").rglob("*") if path.is_file()
    } == before
    client, runs = runs_of(storage)
    assert len(runs) == 8
    table = mlflow.artifacts.load_dict(f"{client.get_run(result.run_id).info.artifact_uri}/results.json")
    assert len(table["data"]) == len(result.rows)


def test_sweep_that_is_running_already_is_refused(finished, config):
    storage, result, _ = finished
    with locked(result.folder), pytest.raises(ArtifactError, match="worked on by another process"):
        run_sweep(SweepConfig.parse(config, "test"), storage)


def test_sweep_of_other_demonstrations_under_the_same_name_is_refused(finished, config, pen_demonstrations):
    storage, _, _ = finished
    env = make_environment(CATALOGUE["pen-expert-v1"])
    write_minari(pen_demonstrations.subset(5), "mcnn/pen/others-v0", env, description="for tests")
    with pytest.raises(ConfigError, match="on other demonstrations.*choose another --name"):
        run_sweep(SweepConfig.parse({**config, "dataset": "mcnn/pen/others-v0"}, "test"), storage)


@pytest.fixture(scope="module")
def widened(finished, config):
    """The sweep again with more members: of two learning rates and two numbers of demonstrations, in one pack."""
    values = {"method": ["bc", "1nn"], "learning_rate": [3e-4, 1e30], "demonstrations": [4, 6]}
    return run_sweep(SweepConfig.parse({**config, **values}, "test"), finished[0])


def test_added_grid_points_join_the_finished_ones(finished, widened):
    assert [row.member.method_label for row in widened.rows] == [
        "bc demonstrations=4",
        "1nn demonstrations=4",
        "bc demonstrations=6",
        "1nn demonstrations=6",
    ]
    assert widened.rows[:2] == finished[1].rows[2:]


def test_member_that_diverges_is_filed_as_failed_and_the_rest_is_compared(finished, widened):
    assert len(widened.failures) == 4
    assert widened.failures[0].startswith("bc lr=1e+30 demonstrations=4 seed=0: the loss was no longer finite")
    _, runs = runs_of(finished[0])
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == widened.run_id]
    assert sorted(run.info.status for run in children) == ["FAILED"] * 4 + ["FINISHED"] * 10
    assert {run.data.tags["mcnn.failure"] for run in children if run.info.status == "FAILED"} == set(widened.failures)


def test_more_workers_than_processors_are_refused_with_both_numbers(finished, config):
    storage, _, _ = finished
    with pytest.raises(ConfigError, match=r"64 workers are asked for, but there are \d+ CPUs; use at most \d+"):
        run_sweep(SweepConfig.parse({**config, "workers": 64, "name": "wide"}, "test"), storage)


def test_damaged_codebook_in_the_cache_is_learned_again(finished, config):
    storage, result, _ = finished
    (entry,) = [path for path in (storage / "cache" / "codebooks").iterdir() if path.is_dir()]
    arrays = entry / "codebook.safetensors"
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:-5])
    again = run_sweep(SweepConfig.parse(config, "test"), storage)
    assert again.rows == result.rows
    assert arrays.read_bytes() == whole


def test_episode_lost_to_its_process_is_counted_and_not_scored_and_the_rest_is_compared(
    tmp_path, ray_running, monkeypatch
):
    monkeypatch.setattr("mcnn_ray.rollout.pool._ATTEMPTS", 1)
    record_drift("mcnn/drift/mortal-v0")
    task = "tests.environments:Mortal-v0@mcnn/drift/mortal-v0"
    values = {"task": task, "method": "1nn", "episodes": 3, "name": "mortal"}
    result = run_sweep(SweepConfig.parse(values, "test"), tmp_path)
    (row,) = result.rows
    assert (row.lost, row.episode_return.n, row.episodes) == (1, 2, 3)
    assert pd.read_csv(result.folder / "results.csv")["episodes_lost"].tolist() == [1]
    for path in result.folder.glob("members/*/episodes.parquet"):
        assert [record.episode_seed for record in read_records(path)] == [MORTAL_SEED - 1, MORTAL_SEED + 1]


OWN_ENVIRONMENT = """
import gymnasium as gym
import numpy as np

class Reach(gym.Env):
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Box(-2, 3, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.gap, self.age = self.np_random.uniform(-5, 5), 0
        return np.array([self.gap, self.age], np.float32), {}

    def step(self, action):
        self.gap, self.age = self.gap + float(action[0]), self.age + 1
        done = abs(self.gap) < 0.1
        return np.array([self.gap, self.age], np.float32), -abs(self.gap), done, self.age >= 20, {"success": done}

gym.register("Reach-v0", "my_robots:Reach")
"""


def record_reach(folder):
    """Record demonstrations of the user's environment with plain Minari code, as a user would."""
    (folder / "my_robots.py").write_text(OWN_ENVIRONMENT)
    sys.path.insert(0, str(folder))
    env = gym.make("my_robots:Reach-v0")
    episodes = []
    for seed in range(100):
        observation, _ = env.reset(seed=seed)
        observations, actions, rewards, done = [observation], [], [], False
        while not done:
            actions.append(np.clip([-observation[0]], -2, 3).astype(np.float32))
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            done = terminated or truncated
        ends = [False] * (len(actions) - 1)
        episodes.append(
            EpisodeBuffer(
                id=seed,
                observations=np.stack(observations),
                actions=np.stack(actions),
                rewards=rewards,
                terminations=[*ends, terminated],
                truncations=[*ends, truncated],
            )
        )
    minari.create_dataset_from_buffers("me/reach/demo-v0", episodes, env=env)
    sys.path.remove(str(folder))


def test_own_environment_and_dataset_go_the_whole_way(tmp_path, minari_store):
    record_reach(tmp_path)
    flags = ["my_robots:Reach-v0@me/reach/demo-v0", "--steps", "1500", "--lambda", "10", "--memory-fraction", "0.5"]
    flags += ["--batch-size", "32", "--hidden", "32,32", "--learning-rate", "0.003", "--episodes", "10", "--json"]
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(minari_store)}
    command = [str(Path(sys.executable).parent / "mcnn"), "train", *flags]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    row = json.loads(ended.stdout)
    assert row["score"] is None
    assert row["n"] == 10
    assert row["success"] >= 0.8
