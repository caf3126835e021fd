"""A real MLflow server that hangs, dies and comes back while a sweep goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import mlflow
import pytest

from mcnn_ray.artifacts import read_json
from mcnn_ray.cli import main
from mcnn_ray.config import SweepConfig
from mcnn_ray.sweep import filing
from mcnn_ray.sweep.plan import SweepPlan
from mcnn_ray.sweep.runner import run_sweep
from mcnn_ray.tracking import Tracker

SWEEP = {
    "task": "pen-expert-v1",
    "method": ["mcnn+mlp", "bc", "1nn"],
    "lambda": 1.0,
    "hidden": [64],
    "batch_size": 64,
    "episodes": 1,
    "curve_episodes": 1,
    "checkpoint_s": 0.2,
    "name": "away",
}


class Server:
    """MLflow over SQLite on 127.0.0.1, in a process group of its own."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://me:secret@127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        store = f"sqlite:///{folder}/server.db"
        mlflow.MlflowClient(store).search_experiments()  # made here, where it takes no migrations
        self._command += ["--workers", "1", "--backend-store-uri", store]
        self._command += ["--artifacts-destination", str(folder / "artifacts")]
        self.start()

    def start(self):
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self._command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
        )
        while True:
            assert self.process.poll() is None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def kill(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def server(served, monkeypatch):
    if served.process.poll() is not None:
        served.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", served.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setattr(filing, "_POLL_S", 0.5)
    return served


def runs_of(server, experiment, parent=None):
    client = mlflow.MlflowClient(server.uri)
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id]) if found else []
    return client, [run for run in runs if parent in (None, run.data.tags.get("mlflow.parentRunId"))]


def steps_of(client, run_id, name="train_loss"):
    return [point.step for point in client.get_metric_history(run_id, name)]


def points_are_shown(server):
    client, runs = runs_of(server, SWEEP["task"])
    return any(len(steps_of(client, run.info.run_id)) > 1 for run in runs if run.info.status == "RUNNING")


class Progress:
    """Remembers the stages of a sweep, and lets other threads wait for them."""

    def __init__(self):
        self.seen, self._changed = {}, threading.Condition()

    def __call__(self, stage, done, total):
        with self._changed:
            self.seen.setdefault(stage, []).append((time.monotonic(), done, total))
            self._changed.notify_all()

    def wait_for(self, stage):
        with self._changed:
            assert self._changed.wait_for(lambda: stage in self.seen, timeout=200), f"no {stage}"

    def trained(self):
        return self.seen["training, member-steps"][-1][1]


def freeze_until_trained(server, progress):
    """Hang from the first points on until the rest is trained, rolled out and certified; then die, and come back."""
    server.signal(signal.SIGSTOP)
    frozen_at = progress.trained()
    progress.wait_for("certificates")
    total = progress.seen["training, member-steps"][-1][2]
    assert frozen_at < total == progress.trained()
    server.kill()
    progress.wait_for("waiting for MLflow, seconds")
    server.start()


def freeze_30_s(server, progress):
    """Hang for 30 s of the training, then die and come back while it goes on."""
    server.signal(signal.SIGSTOP)
    frozen = time.monotonic()
    time.sleep(30)
    reports = [seen for seen, _, _ in progress.seen["training, member-steps"] if seen > frozen]
    assert max(after - before for before, after in zip([frozen, *reports], [*reports, frozen + 30], strict=True)) < 10
    assert "rollouts, episodes" not in progress.seen
    server.kill()
    server.start()


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "disturb"),
    [
        (8_000, freeze_until_trained),
        pytest.param(120_000, freeze_30_s, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_server_that_hangs_dies_and_returns_costs_no_point_and_no_step(
    server, steps, disturb, pen_dataset, tmp_path, ray_running, capfd, caplog, monkeypatch
):
    values = {**SWEEP, "dataset": pen_dataset, "steps": steps, "evaluate_every": steps // 3, "name": f"away{steps}"}
    config, progress, failed = SweepConfig.parse(values, "test"), Progress(), []

    def sabotage():
        try:
            progress.wait_for("training, member-steps")
            while not points_are_shown(server):
                time.sleep(0.1)
            disturb(server, progress)
        except BaseException as error:
            failed.append(error)
            raise

    saboteur = threading.Thread(target=sabotage)
    saboteur.start()
    result = run_sweep(config, tmp_path / "disturbed", progress)
    saboteur.join()
    assert not failed
    assert result.unfiled is None

    client, children = runs_of(server, SWEEP["task"], result.run_id)
    assert client.get_run(result.run_id).info.status == "FINISHED"
    assert sorted(run.data.tags["mcnn.member"] for run in children) == sorted(
        path.name for path in (result.folder / "members").iterdir()
    )
    for run in children:
        assert run.info.status == "FINISHED"
        folder = result.folder / "members" / run.data.tags["mcnn.member"]
        assert steps_of(client, run.info.run_id) == read_json(folder / "curve.json")["step"]
        if run.data.params["method"] != "1nn":
            evaluated = [point["step"] for point in read_json(folder / "evaluations.json")["evaluations"]]
            assert len(evaluated) >= 2
            assert steps_of(client, run.info.run_id, "on_the_way/return") == evaluated
    printed = capfd.readouterr()
    assert "secret" not in printed.out + printed.err + caplog.text
    assert "the sweep goes on meanwhile" in caplog.text

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    run_sweep(SweepConfig.parse({**values, "evaluate_every": 0}, "test"), tmp_path / "undisturbed")
    tables = [
        (tmp_path / name / config.sweep_name / "results.csv").read_bytes() for name in ("disturbed", "undisturbed")
    ]
    assert tables[0] == tables[1]


def test_server_that_stays_away_leaves_the_table_and_the_same_command_files_it(
    server, pen_dataset, tmp_path, ray_running, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(filing, "_PATIENCE_S", 1)
    flags = ["--task", "pen-expert-v1", "--dataset", pen_dataset, "--method", "bc", "--steps", "200", "--json"]
    command = ["sweep", *flags, "--hidden", "32", "--episodes", "1", "--name", "unfiled"]
    opened = Tracker.open_sweep

    def open_and_kill(tracker, *arguments):
        try:
            return opened(tracker, *arguments)
        finally:
            server.kill()

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(Tracker, "open_sweep", open_and_kill)
        main(command)
    away = capsys.readouterr()
    assert ended.value.code == 1
    assert "the same command files them when it can" in " ".join(away.err.split())
    assert "Traceback" not in away.err
    assert "secret" not in away.err

    server.start()
    with pytest.raises(SystemExit) as ended:
        main(command)
    filed = capsys.readouterr()
    assert ended.value.code == 0
    assert json.loads(filed.out) == json.loads(away.out)
    client, runs = runs_of(server, "pen-expert-v1")
    (parent,) = [run for run in runs if run.info.run_name == "unfiled"]
    (child,) = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert [run.info.status for run in (parent, child)] == ["FINISHED", "FINISHED"]
    assert steps_of(client, child.info.run_id) == [100, 200]


def test_interrupted_sweep_does_not_wait_long_for_a_hanging_server_and_leaves_nothing_running(
    server, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(filing, "_CLEANUP_S", 1.0)
    tracker = Tracker(tmp_path, "interrupted")
    plan = SweepPlan(id="interrupted", folder=tmp_path, members={}, packs=[])
    for hangs in (True, False):
        parent = tracker.open_sweep("interrupted", "interrupted", {})
        tracker.open_member(parent, "a", "a", {})
        if hangs:
            server.signal(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt), filing.SweepFiling(tracker, parent, plan, print):
            raise KeyboardInterrupt
        assert time.monotonic() - started < 3.0
        server.signal(signal.SIGCONT)
    assert caplog.text.count("MLflow does not answer") == 1
    _, runs = runs_of(server, "interrupted")
    assert [run.info.status for run in runs] == ["KILLED", "KILLED"]
