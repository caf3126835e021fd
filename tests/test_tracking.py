import os
import time
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from mcnn_ray.errors import TrackingError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.registry import open_store
from mcnn_ray.tracking import MemberResult, Tracker, public_address, tracking_uri, ui_pages
from tests.policies.test_policies import make as make_policy


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Tracker(tmp_path, "task")


@pytest.fixture
def result(tmp_path):
    policy = tmp_path / "policy"
    save_policy(make_policy("mcnn"), policy)
    records = tmp_path / "episodes.parquet"
    records.write_bytes(b"episodes")
    return MemberResult(
        identity="abc",
        label="bc seed=0",
        parameters={"method": "bc", "seed": 0},
        metrics={"return": 1.0, "return_low": 0.5},
        step=200,
        curves={"train_loss": [(100, 0.5), (200, 0.25)]},
        episodes=[{"episode_seed": 1, "episode_return": 1.0}, {"episode_seed": 2, "episode_return": 1.0}],
        policy=policy,
        records=records,
    )


def runs(tmp_path):
    client = mlflow.MlflowClient(tracking_uri(tmp_path))
    return client, client.search_runs([client.get_experiment_by_name("task").experiment_id])


def child(tmp_path, parent):
    client, found = runs(tmp_path)
    (run,) = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent]
    return client, run


def rows(run, name="episodes.json"):
    return mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/{name}")["data"]


def test_filing_the_same_again_changes_nothing(tracker, result, tmp_path):
    parent = tracker.open_sweep("id", "name", {"steps": 1})
    for _ in range(2):
        tracker.log_member(parent, result)
        tracker.close_sweep(parent, [{"return": 1.0}], [])
    client, run = child(tmp_path, parent)
    assert run.info.status == "FINISHED"
    assert len(rows(run)) == 2
    assert len(rows(client.get_run(parent), "results.json")) == 1
    for metric in ("train_loss", "return"):
        steps = [point.step for point in client.get_metric_history(run.info.run_id, metric)]
        assert steps == sorted(set(steps))


@pytest.mark.parametrize(
    "call",
    [
        "create_logged_model",
        "log_model_artifacts",
        "log_outputs",
        "finalize_logged_model",
        "log_batch",
        "log_dict",
        "log_artifact",
        "set_tag",
        "set_terminated",
    ],
)
def test_filing_that_dies_anywhere_is_taken_up_to_one_finished_run(tracker, result, tmp_path, monkeypatch, call):
    parent = tracker.open_sweep("id", "name", {"steps": 1})
    with monkeypatch.context() as patch:
        patch.setattr(tracker._client, call, lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tracker.log_member(parent, result)
    tracker.log_member(parent, result)
    client, run = child(tmp_path, parent)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"method": "bc", "seed": "0"}
    assert len(rows(run)) == 2
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"episodes.json", "episodes.parquet"}
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert (model.status, model.name, model.source_run_id) == ("READY", "policy", run.info.run_id)
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert [point.step for point in client.get_metric_history(run.info.run_id, "train_loss")] == [100, 200]


def test_changed_result_is_filed_into_the_same_run(tracker, result, tmp_path):
    parent = tracker.open_sweep("id", "name", {"episodes": 2})
    tracker.log_member(parent, result)
    more = [*result.episodes, {"episode_seed": 3, "episode_return": 7.0}]
    tracker.log_member(parent, replace(result, metrics={"return": 3.0, "return_low": 1.0}, episodes=more))
    _, run = child(tmp_path, parent)
    assert run.data.metrics["return"] == 3.0
    assert len(rows(run)) == 3


def test_parameters_lost_by_a_crash_are_filed_and_a_wider_grid_is_kept_as_an_artifact(tracker, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tracker._client, "log_batch", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tracker.open_sweep("id", "name", {"lambda": [1]})
    first = tracker.open_sweep("id", "name", {"lambda": [1]})
    again = tracker.open_sweep("id", "name", {"lambda": [1, 2]})
    _, found = runs(tmp_path)
    assert first == again == found[0].info.run_id
    assert len(found) == 1
    assert found[0].data.params == {"lambda": "[1]"}
    assert mlflow.artifacts.load_dict(f"{found[0].info.artifact_uri}/sweep.json") == {"lambda": [1, 2]}


@pytest.mark.parametrize("served", ["but its answer was lost", "after the store was asked", "never"])
def test_points_of_a_request_without_an_answer_are_there_once(tracker, tmp_path, monkeypatch, served):
    run_id = tracker.open_member(tracker.open_sweep("id", "name", {}), "abc", "label", {})
    client, held = tracker._client, []
    log_batch, get_metric_history = client.log_batch, client.get_metric_history

    def unanswered(run_id, metrics):
        held.append(metrics)
        if served == "but its answer was lost":
            log_batch(run_id, metrics=metrics)
        raise MlflowException("timed out")

    def asked(*arguments):
        answer = get_metric_history(*arguments)
        if served == "after the store was asked":
            log_batch(run_id, metrics=held.pop())
        return answer

    tracker.log_curves(run_id, {"train_loss": [(1, 0.5)]})
    with monkeypatch.context() as patch, pytest.raises(TrackingError):
        patch.setattr(client, "log_batch", unanswered)
        tracker.log_curves(run_id, {"train_loss": [(1, 0.5), (2, 0.4)]})
    time.sleep(0.01)  # another millisecond, MLflow's unit
    with monkeypatch.context() as patch:
        patch.setattr(client, "get_metric_history", asked)
        tracker.log_curves(run_id, {"train_loss": [(1, 0.5), (2, 0.4), (3, 0.3)]})
    assert [point.step for point in get_metric_history(run_id, "train_loss")] == [1, 2, 3]
    tracker.log_curves(run_id, {"train_loss": [(1, 0.5), (2, 0.4), (3, 0.3), (4, 0.2)]})
    Tracker(tmp_path, "task").log_curves(run_id, {"train_loss": [(step, 0.5) for step in range(1, 6)]})
    assert [point.step for point in get_metric_history(run_id, "train_loss")] == [1, 2, 3, 4, 5]


def test_run_made_twice_by_a_repeated_request_is_there_once(tracker, result, tmp_path):
    parent = tracker.open_sweep("id", "name", {})
    tags = {"mcnn.member": result.identity, "mlflow.parentRunId": parent}
    client, found = runs(tmp_path)
    for _ in range(2):
        client.create_run(found[0].info.experiment_id, tags=tags)
    run_id = tracker.open_member(parent, result.identity, result.label, result.parameters)
    tracker.log_curves(run_id, result.curves)
    client.create_run(found[0].info.experiment_id, start_time=0, tags=tags)  # answered last, sent first
    tracker.log_member(parent, result)
    tracker.log_member(parent, result)
    client, run = child(tmp_path, parent)
    assert run.info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "train_loss")] == [100, 200]


@pytest.mark.parametrize("ends", ["close", "stop"])
def test_member_that_nothing_works_on_any_more_is_left_killed(tracker, tmp_path, ends):
    parent = tracker.open_sweep("id", "name", {})
    tracker.open_member(parent, "of a wider grid once", "label", {})
    if ends == "close":
        tracker.close_sweep(parent, [], [])
    else:
        tracker.stop_sweep(parent, interrupted=True)
    assert child(tmp_path, parent)[1].info.status == "KILLED"


def test_pages_of_the_ui_name_the_view_that_it_would_not_take_by_itself(tracker, tmp_path):
    (page,) = ui_pages(tmp_path).values()
    assert page == "#/experiments/1/runs?workflowType=machine_learning"
    (script,) = (Path(mlflow.__file__).parent / "server" / "js" / "build" / "static" / "js").glob("main.*.js")
    assert '.get("workflowType")' in script.read_text()


def test_sweeps_of_one_name_in_different_folders_stay_apart(tracker):
    assert tracker.open_sweep("id1", "quickstart", {}) != tracker.open_sweep("id2", "quickstart", {})


def test_store_in_the_environment_is_left_alone(tracker):
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_dead_server_is_one_sentence_without_the_password(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match=r"MLflow at http://127.0.0.1:9 cannot be used") as caught:
        Tracker(tmp_path, "task")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_damaged_store_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow.db").write_text("no database")
    for use in (lambda: Tracker(tmp_path, "task"), lambda: ui_pages(tmp_path), lambda: open_store(tmp_path, "a model")):
        with pytest.raises(TrackingError, match="cannot be used: it is no SQLite database"):
            use()


def test_address_is_shown_without_credentials():
    assert public_address("https://me:secret@host:5000/x") == "https://host:5000/x"
    assert public_address("https://me:se@cret@host:5000/x") == "https://host:5000/x"
    assert public_address("sqlite:////a/b@c/mlflow.db") == "sqlite:////a/b@c/mlflow.db"
