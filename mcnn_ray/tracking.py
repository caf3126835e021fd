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
from mcnn_ray.errors import ArtifactError, TrackingError

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["MemberResult", "Tracker", "download_policy", "public_address", "tracking_uri"]

logger = logging.getLogger(__name__)

_MEMBER_TAG = "mcnn.member"
_RESULT_TAG = "mcnn.result"
_FAILURE_TAG = "mcnn.failure"
_SWEEP_TAG = "mcnn.sweep"
_PARENT_TAG = "mlflow.parentRunId"
_NAME_TAG = "mlflow.runName"
_TABLES_TAG = "mlflow.loggedArtifacts"
_KIND_TAG = "mlflow.experimentKind"  # has the UI open on runs and metrics instead of prompts and traces
_BATCH = 1000  # metrics in one request: MLflow's limit


def tracking_uri(storage: Path) -> str:
    """Return where results are filed: MLFLOW_TRACKING_URI, or the SQLite store in the storage folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(storage / 'mlflow.db').resolve()}"


def public_address(uri: str) -> str:
    """Return a tracking address without the name and password it may carry."""
    return re.sub(r"//[^/@]*@", "//", uri)


def download_policy(storage: Path, run_id: str) -> Path:
    """Fetch the policy directory of a member's run.

    Args:
        storage: folder of the default store.
        run_id: of the member, 32 hex digits.

    Returns:
        The directory on this machine.

    Raises:
        ArtifactError: no such run, or it has no policy.
    """
    uri = tracking_uri(storage)
    if uri.startswith("sqlite:") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise ArtifactError(f"{storage} holds no MLflow store to look the run {run_id} up in; name it with --storage")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    import mlflow

    try:
        return Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="policy", tracking_uri=uri))
    except (mlflow.exceptions.MlflowException, OSError) as error:
        raise ArtifactError(f"no policy of the MLflow run {run_id} can be had: {error}") from error


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
        policy: its policy directory.
        records: its file of episode records and actions.
    """

    identity: str
    label: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, float]
    step: int
    curves: Mapping[str, Sequence[tuple[int, float]]]
    episodes: Sequence[Mapping[str, Any]]
    policy: Path
    records: Path


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
        # MLflow reports each database migration; and it takes a second to import, so only where it is used.
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # its default waits minutes for a dead server
        logging.getLogger("alembic").setLevel(logging.WARNING)
        from mlflow import MlflowClient

        storage.mkdir(parents=True, exist_ok=True)
        self._uri = tracking_uri(storage)
        with _told(self._uri):
            self._client = MlflowClient(self._uri)
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
        with _told(self._uri):
            run = self._find(f"tags.`{_SWEEP_TAG}` = '{sweep_id}'")
            if run is None:
                run = self._client.create_run(self._experiment, tags={_SWEEP_TAG: sweep_id, _NAME_TAG: name})
            run_id = str(run.info.run_id)
            self._client.update_run(run_id, status="RUNNING")
            self._log_parameters(run, parameters)
            self._client.log_dict(run_id, dict(parameters), "sweep.json")
            return run_id

    def log_member(self, parent: str, result: MemberResult) -> None:
        """File a member: parameters, learning curve, results, episode records with their actions, the policy directory.

        Filing the same result again changes nothing. A run that an earlier start left unfinished, or whose result has
        changed since (more episodes, say), is taken up again.

        Args:
            parent: the sweep's run id.
            result: what to file.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        digest = content_hash([dict(result.metrics), dict(result.curves), [dict(row) for row in result.episodes]])
        with _told(self._uri):
            run = self._member_run(parent, result.identity, result.label)
            if run.info.status == "FINISHED" and run.data.tags.get(_RESULT_TAG) == digest:
                return
            run_id = run.info.run_id
            self._log_parameters(run, result.parameters)
            self._log_metrics(run, result)
            self._log_table(run_id, result.episodes, "episodes.json")
            self._client.log_artifact(run_id, str(result.records))
            self._client.log_artifacts(run_id, str(result.policy), "policy")
            self._client.set_tag(run_id, _RESULT_TAG, digest)
            self._client.set_terminated(run_id, "FINISHED")

    def log_failure(self, parent: str, identity: str, label: str, parameters: Mapping[str, Any], reason: str) -> None:
        """File a member that has no result as a failed run, with the reason as its tag `mcnn.failure`.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        with _told(self._uri):
            run = self._member_run(parent, identity, label)
            self._log_parameters(run, parameters)
            self._client.set_tag(run.info.run_id, _FAILURE_TAG, reason[:5000])
            self._client.set_terminated(run.info.run_id, "FAILED")

    def _member_run(self, parent: str, identity: str, label: str) -> Run:
        run = self._find(f"tags.`{_MEMBER_TAG}` = '{identity}' and tags.`{_PARENT_TAG}` = '{parent}'")
        if run is not None:
            return run
        tags = {_MEMBER_TAG: identity, _PARENT_TAG: parent, _NAME_TAG: label}
        return self._client.create_run(self._experiment, tags=tags)

    def close_sweep(self, parent: str, rows: Sequence[Mapping[str, Any]], figures: Sequence[Path]) -> None:
        """File the sweep's table and figures with its parent run, and finish that.

        Raises:
            TrackingError: the store or server cannot be used.
        """
        with _told(self._uri):
            self._log_table(parent, rows, "results.json")
            for figure in figures:
                self._client.log_artifact(parent, str(figure))
            self._client.set_terminated(parent, "FINISHED")

    def stop_sweep(self, parent: str, interrupted: bool) -> None:
        """Mark a sweep that was interrupted or failed; the same command takes it up again."""
        try:
            with _told(self._uri):
                self._client.set_terminated(parent, "KILLED" if interrupted else "FAILED")
        except TrackingError as error:  # what stopped the sweep is on its way to the user and matters more
            logger.warning("the sweep's run stays marked as running: %s", error)

    def _find(self, condition: str) -> Run | None:
        runs = self._client.search_runs([self._experiment], condition, max_results=1)
        return runs[0] if runs else None

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

    def _log_metrics(self, run: Run, result: MemberResult) -> None:
        """File points that an interrupted start has not filed yet, and results that have changed."""
        from mlflow.entities import Metric

        now, run_id = int(time.time() * 1000), run.info.run_id
        metrics = []
        for name, points in result.curves.items():
            known = {metric.step for metric in self._client.get_metric_history(run_id, name)}
            metrics += [Metric(name, value, now, int(step)) for step, value in points if int(step) not in known]
        metrics += [
            Metric(name, value, now, result.step)
            for name, value in result.metrics.items()
            if run.data.metrics.get(name) != value
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(run_id, metrics=metrics[start : start + _BATCH])


@contextmanager
def _told(uri: str) -> Iterator[None]:
    """Turn whatever MLflow, its database or its server raise into one sentence."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        cause = public_address(" ".join(str(error).split()))
        raise TrackingError(
            f"MLflow at {public_address(uri)} cannot be used: {cause[:160]}{'...' if len(cause) > 160 else ''}; "
            "results stay on disk, and the same command files them when it can"
        ) from error
