"""The only writer to MLflow: a parent run per sweep, a child run per member, each found again by its tag."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcnn_ray.artifacts import content_hash
from mcnn_ray.errors import TrackingError
from mcnn_ray.policy_model import log_policy_model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = [
    "MEMBER_TAG",
    "MOST_RUNS",
    "PARENT_TAG",
    "SWEEP_TAG",
    "UNREPORTED_TAG",
    "MemberResult",
    "Tracker",
    "open_client",
    "public_address",
    "set_defaults",
    "told",
    "tracking_uri",
    "ui_pages",
]

logger = logging.getLogger(__name__)

MEMBER_TAG = "mcnn.member"
_RESULT_TAG = "mcnn.result"
_FAILURE_TAG = "mcnn.failure"
UNREPORTED_TAG = "mcnn.unreported"
SWEEP_TAG = "mcnn.sweep"
PARENT_TAG = "mlflow.parentRunId"
_NAME_TAG = "mlflow.runName"
_TABLES_TAG = "mlflow.loggedArtifacts"
_KIND_TAG = "mlflow.experimentKind"
_BATCH = 1000  # metrics in one request: MLflow's limit
MOST_RUNS = 50_000  # in one answer: MLflow's limit
_ADVICE = "results stay on disk, and the same command files them when it can"
_FORMAT = 2  # of what is filed of a member; those of another are filed again

_SQLITE = b"SQLite format 3"  # what a database file begins with


def tracking_uri(storage: Path) -> str:
    """Return where results are filed: MLFLOW_TRACKING_URI, or the SQLite store in the storage folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(storage / 'mlflow.db').resolve()}"


def open_client(storage: Path, advice: str = _ADVICE) -> MlflowClient:
    """Return a client of the store and of its models.

    Args:
        storage: folder of the default store.
        advice: as of `told`.

    Raises:
        TrackingError: the store or server cannot be used.
    """
    set_defaults()
    _check_store(storage)
    from mlflow import MlflowClient  # it takes a second to import, so only where it is used

    uri = tracking_uri(storage)
    with told(uri, advice):
        return MlflowClient(uri, registry_uri=uri)


def _check_store(storage: Path) -> None:
    """Tell at once what MLflow tells after 100 s of trying: the default store's file is no database."""
    store = storage / "mlflow.db"
    if "MLFLOW_TRACKING_URI" in os.environ or not store.is_file() or not store.stat().st_size:
        return
    with store.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            raise TrackingError(f"the store {store} cannot be used: it is no SQLite database; move it away")


def set_defaults() -> None:
    """Have MLflow keep quiet, and give up on a dead server in time; to be called before it is imported."""
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # else it reports each database migration
    # Its defaults wait up to a quarter of an hour for a dead server, and print addresses with their passwords.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # It would show a bar for each directory of three files, and file lock files that lie in the current folder.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # each attempt, while a server is away


def public_address(uri: str) -> str:
    """Return a tracking address without the name and password it may carry."""
    return re.sub(r"//[^/\s]*@", "//", uri)


def ui_pages(storage: Path) -> dict[str, str]:
    """Return where MLflow's UI shows the runs of each task, by task: what follows the server's address.

    Raises:
        TrackingError: the store cannot be used.
    """
    client = open_client(storage)
    with told(client.tracking_uri):
        tasks = [found for found in client.search_experiments() if found.tags.get(_KIND_TAG)]
    # A browser that has not been here before is shown prompts and traces, whatever the experiment's kind.
    return {found.name: f"#/experiments/{found.experiment_id}/runs?workflowType=machine_learning" for found in tasks}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """What is filed of a member.

    Attributes:
        identity: of the member.
        label: its name in MLflow's lists.
        parameters: method and hyperparameters.
        metrics: final results by name.
        step: training step the metrics belong to.
        curves: (step, value) points by name, by rising step.
        episodes: its episode records as rows of a table.
        policy: its policy directory, where it was trained to its end.
        records: its file of episode records and actions, where it was rolled out on the reporting seeds.
        unreported: why it was not; its tag `mcnn.unreported`.
    """

    identity: str
    label: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, float]
    step: int
    curves: Mapping[str, Sequence[tuple[int, float]]]
    episodes: Sequence[Mapping[str, Any]] = ()
    policy: Path | None = None
    records: Path | None = None
    unreported: str | None = None


class Tracker:
    """Files results of one task.

    Opening it makes the SQLite store where there is none, which must happen once and in one process: the driver's.

    Args:
        storage: folder of the default store and of artifacts.
        task_id: names the experiment.

    Raises:
        TrackingError: the store or server cannot be used.
    """

    def __init__(self, storage: Path, task_id: str) -> None:
        storage.mkdir(parents=True, exist_ok=True)
        self._uri = tracking_uri(storage)
        self._sent: dict[str, dict[str, set[int]]] = {}  # steps that the store has, by run and metric
        self._stamps: dict[str, int] = {}  # time of the points, by run, that it may or may not have
        with told(self._uri):
            self._client = open_client(storage)
            self._experiment = self._open_experiment(storage, task_id)

    def _open_experiment(self, storage: Path, task_id: str) -> str:
        found = self._client.get_experiment_by_name(task_id)
        if found is not None:
            return str(found.experiment_id)
        # A server decides itself where artifacts go; the local store keeps them beside it.
        location = (storage / "artifacts").resolve().as_uri() if self._uri.startswith("sqlite:") else None
        tags = {_KIND_TAG: "custom_model_development"}
        return str(self._client.create_experiment(task_id, artifact_location=location, tags=tags))

    def open_sweep(self, sweep_id: str, name: str, parameters: Mapping[str, Any]) -> str:
        """Start, or find again, the parent run of a sweep.

        Args:
            sweep_id: of the sweep's folder, so that sweeps of one name and different people stay apart.
            name: shown in the UI.
            parameters: of the sweep as a whole. Those that have changed since an earlier start (a wider grid) are in
                the artifact `sweep.json`, since MLflow does not let parameters change.

        Returns:
            The run's id.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        with told(self._uri):
            run = self._run(f"tags.`{SWEEP_TAG}` = '{sweep_id}'", {SWEEP_TAG: sweep_id, _NAME_TAG: name})
            run_id = str(run.info.run_id)
            self._client.update_run(run_id, status="RUNNING")
            self._log_parameters(run, parameters)
            self._client.log_dict(run_id, dict(parameters), "sweep.json")
            return run_id

    def open_member(self, parent: str, identity: str, label: str, parameters: Mapping[str, Any]) -> str | None:
        """Have a member's run be there, with its parameters and marked as running.

        Returns:
            The run's id; None when it is finished already.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        with told(self._uri):
            run = self._member_run(parent, identity, label)
            if run.info.status == "FINISHED":
                return None
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, status="RUNNING")
            self._log_parameters(run, parameters)
            return str(run.info.run_id)

    def log_curves(self, run_id: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        """File the points of learning curves that the store lacks, each once.

        Args:
            run_id: of the member.
            curves: (step, value) points by name.

        Raises:
            TrackingError: the store or server cannot be used; the same call again files what is missing.
        """
        with told(self._uri):
            self._log_metrics(run_id, curves, [])

    def log_member(self, parent: str, result: MemberResult) -> None:
        """File a member: parameters, learning curve, results, episode records with their actions, the policy: a model.

        Filing the same result again changes nothing. A run that an earlier start left unfinished, or whose result has
        changed since (more episodes, say), is taken up again.

        Args:
            parent: the sweep's run id.
            result: what to file.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        told_of = [dict(result.metrics), dict(result.curves), [dict(row) for row in result.episodes]]
        digest = content_hash([_FORMAT, *told_of])
        with told(self._uri):
            run = self._member_run(parent, result.identity, result.label)
            if run.info.status == "FINISHED" and run.data.tags.get(_RESULT_TAG) == digest:
                return
            run_id = run.info.run_id
            self._log_parameters(run, result.parameters)
            changed = {name: value for name, value in result.metrics.items() if run.data.metrics.get(name) != value}
            model_id = None
            if result.policy is not None:
                tags = {MEMBER_TAG: result.identity}
                model_id = log_policy_model(self._client, run, result.policy, result.parameters, tags)
            others = [(name, result.step, value) for name, value in changed.items()]
            self._log_metrics(run_id, result.curves, others, model_id)
            if result.records is not None:
                self._log_table(run_id, result.episodes, "episodes.json")
                self._client.log_artifact(run_id, str(result.records))
            if result.unreported is not None:
                self._client.set_tag(run_id, UNREPORTED_TAG, result.unreported)
            self._client.set_tag(run_id, _RESULT_TAG, digest)
            self._client.set_terminated(run_id, "FINISHED")

    def log_failure(self, parent: str, identity: str, label: str, parameters: Mapping[str, Any], reason: str) -> None:
        """File a member that has no result as a failed run, with the reason as its tag `mcnn.failure`.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        with told(self._uri):
            run = self._member_run(parent, identity, label)
            self._log_parameters(run, parameters)
            self._client.set_tag(run.info.run_id, _FAILURE_TAG, reason[:5000])
            self._client.set_terminated(run.info.run_id, "FAILED")

    def _member_run(self, parent: str, identity: str, label: str) -> Run:
        condition = f"tags.`{MEMBER_TAG}` = '{identity}' and tags.`{PARENT_TAG}` = '{parent}'"
        return self._run(condition, {MEMBER_TAG: identity, PARENT_TAG: parent, _NAME_TAG: label})

    def close_sweep(self, parent: str, rows: Sequence[Mapping[str, Any]], figures: Sequence[Path]) -> None:
        """File the sweep's table and figures with its parent run, and finish that.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        with told(self._uri):
            self._log_table(parent, rows, "results.json")
            for figure in figures:
                self._client.log_artifact(parent, str(figure))
            self._end_members(parent)
            self._client.set_terminated(parent, "FINISHED")

    def stop_sweep(self, parent: str, interrupted: bool) -> None:
        """Mark a sweep that was interrupted or failed, and what runs of it; the same command takes it up again."""
        try:
            with told(self._uri):
                self._client.set_terminated(parent, "KILLED" if interrupted else "FAILED")
                self._end_members(parent)
        except TrackingError as error:  # what stopped the sweep is on its way to the user and matters more
            logger.warning("the sweep's run stays marked as running: %s", error)

    def _end_members(self, parent: str) -> None:
        """Mark children that still run as killed: nothing works on them any more."""
        condition = f"tags.`{PARENT_TAG}` = '{parent}' and attributes.status = 'RUNNING'"
        for run in self._client.search_runs([self._experiment], condition, max_results=MOST_RUNS):
            self._client.set_terminated(run.info.run_id, "KILLED")

    def _run(self, condition: str, tags: Mapping[str, str]) -> Run:
        """Return the run that fits a condition, the finished one first; made if need be.

        A request to make it that was answered too late has been sent again, so there may be others: they are deleted.
        """
        order = ["attributes.status ASC", "attributes.start_time ASC"]  # FAILED, FINISHED, KILLED, RUNNING
        runs = self._client.search_runs([self._experiment], condition, order_by=order)
        for other in runs[1:]:
            self._client.delete_run(other.info.run_id)
        return runs[0] if runs else self._client.create_run(self._experiment, tags=dict(tags))

    def _log_table(self, run_id: str, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """File rows as an artifact that the UI shows as a table; MLflow's own log_table would add to an earlier one."""
        table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]} if rows else {}
        self._client.log_dict(run_id, table, name)
        self._client.set_tag(run_id, _TABLES_TAG, json.dumps([{"path": name, "type": "table"}]))

    def _log_parameters(self, run: Run, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow refuses values of more than 6,000 characters, and other values for known keys.
        fresh = {key: str(value)[:6000] for key, value in parameters.items() if key not in run.data.params}
        self._client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in fresh.items()])

    def _log_metrics(
        self,
        run_id: str,
        curves: Mapping[str, Sequence[tuple[int, float]]],
        others: Sequence[tuple[str, int, float]],
        model_id: str | None = None,
    ) -> None:
        """File the points of curves that the store lacks, and (name, step, value) of other metrics, those of a model.

        A request without an answer may have been served, or yet be: the store is asked, and what it has not is sent
        with its former time, since a store takes a metric of the same name, step, value and time but once.
        """
        from mlflow.entities import Metric

        sent = self._sent.pop(run_id, {})  # put back when all has been answered
        for name in curves.keys() - sent.keys():
            sent[name] = {metric.step for metric in self._client.get_metric_history(run_id, name)}
        points = [(name, step, value) for name, curve in curves.items() for step, value in curve]
        fresh = [*(point for point in points if point[1] not in sent[point[0]]), *others]
        stamp = self._stamps.setdefault(run_id, int(time.time() * 1000))
        for start in range(0, len(fresh), _BATCH):
            batch = [
                Metric(name, value, stamp, step, model_id=None if name in curves else model_id)
                for name, step, value in fresh[start : start + _BATCH]
            ]
            self._client.log_batch(run_id, metrics=batch)
        for name, step, _ in fresh:
            sent.setdefault(name, set()).add(step)
        self._sent[run_id] = sent
        del self._stamps[run_id]


@contextmanager
def told(uri: str, advice: str = _ADVICE) -> Iterator[None]:
    """Turn whatever MLflow, its database or its server raise into one sentence, a `TrackingError`.

    Args:
        uri: of the store.
        advice: the sentence's end.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:  # of artifacts it raises what its libraries do
        cause = public_address(" ".join(str(error).split()))
        cause = f"{cause[:160]}{'...' if len(cause) > 160 else ''}"
        raise TrackingError(f"MLflow at {public_address(uri)} cannot be used: {cause}; {advice}") from error
