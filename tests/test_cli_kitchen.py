"""The kitchen from the command line: logs imported, policies trained on them, objects counted."""

import json

import mlflow
import pandas as pd

from mcnn_ray.data.mjl import write_mjl
from mcnn_ray.rollout.records import read_records
from mcnn_ray.tasks.catalogue import KITCHEN_OBJECTS
from mcnn_ray.tracking import tracking_uri
from tests.data.test_relay import simulate


def test_imported_logs_train_policies_whose_objects_are_counted_everywhere(mcnn, tmp_path, monkeypatch, ray_running):
    monkeypatch.setenv("COLUMNS", "120")
    for seed in range(3):
        write_mjl(tmp_path / "demos" / f"{seed}.mjl", simulate(seed))
    dataset = ("mcnn/kitchen/relay-v0", "--task", "kitchen-relay-v0", "--overwrite")  # another test's may be there
    status, out, err = mcnn("data", "import", tmp_path / "demos", *dataset)
    assert status == 0, err
    facts = json.loads(mcnn("data", "info", "kitchen-relay-v0", "--json")[1])
    assert (facts["episodes"], facts["observation_numbers"], facts["action_numbers"]) == (3, 30, 9)
    assert facts["provenance"]["logs"] == 3

    storage = tmp_path / "runs"
    flags = ("--method", "bc", "--steps", 60, "--hidden", "16", "--batch-size", 16, "--constant-columns", "ignore")
    flags = (*flags, "--evaluate-every", 30, "--curve-episodes", 1, "--episodes", 2, "--name", "relay")
    status, out, err = mcnn("sweep", "--task", "kitchen-relay-v0", *flags, "--storage", storage)
    assert status == 0, err
    assert {f"p{count}" for count in range(1, 8)} | {"top", "bottom", "burner", "kettle"} <= set(out.split())
    assert max(map(len, out.splitlines())) <= 120

    (row,) = pd.read_csv(storage / "relay" / "results.csv").to_dict("records")
    (member,) = (storage / "relay" / "members").iterdir()
    records = read_records(member / "episodes.parquet")
    assert [set(record.subtasks) for record in records] == [set(KITCHEN_OBJECTS)] * 2
    done = [sum(record.subtasks.values()) for record in records]
    assert [record.episode_return for record in records] == done
    assert row["p1"] == sum(count >= 1 for count in done) / 2
    client = mlflow.MlflowClient(tracking_uri(storage))
    experiment = client.get_experiment_by_name("kitchen-relay-v0")
    (run,) = client.search_runs([experiment.experiment_id], "metrics.p7 >= 0")
    assert {"p1", "p7_high", "done_kettle", "done_top_burner_low", "on_the_way/p4"} <= run.data.metrics.keys()

    again = mcnn("replay", member / "episodes.parquet", "--episode-seed", records[1].episode_seed, "--json")
    assert again[0] == 0, again[2]

    status, out, err = mcnn("evaluate", member / "policy", "--episodes", 2, "--json", "--storage", storage)
    assert status == 0, err
    told = json.loads(out)
    assert told["p1"] == row["p1"]
    assert [episode["subtasks"] for episode in told["episodes"]] == [record.subtasks for record in records]


def test_tasks_without_reference_scores_are_listed(mcnn):
    status, out, _ = mcnn("tasks")
    assert status == 0
    assert "kitchen-mixed-v2" in out
