"""The only writer to MLflow: a parent run per sweep, a child run per member, each found again by its tag."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcnn_ray.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["MemberResult", "Tracker", "download_policy", "tracking_uri"]

_MEMBER_TAG = "mcnn.member"
_SWEEP_TAG = "mcnn.sweep"
_PARENT_TAG = "mlflow.parentRunId"
_NAME_TAG = "mlflow.runName"
_KIND_TAG = "mlflow.experimentKind"  # has the UI open on runs and metrics instead of prompts and traces
_BATCH = 1000  # metrics in one request: MLflow's limit


def tracking_uri(storage: Path) -> str:
    """Return where results are filed: MLFLOW_TRACKING_URI, or the SQLite store in the storage folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(storage / 'mlflow.db').resolve()}"


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
    import mlflow

    try:
        return Path(
            mlflow.artifacts.download_artifacts(
                run_id=run_id, artifact_path="policy", tracking_uri=tracking_uri(storage)
            )
        )
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
        curve: `step` and `train_loss`, equally long; empty for methods without training.
        episodes: its episode records as rows of a table.
        policy: its policy directory.
    """

    identity: str
    label: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, float]
    step: int
    curve: Mapping[str, Sequence[float]]
    episodes: Sequence[Mapping[str, Any]]
    policy: Path


class Tracker:
    """Files results of one task.

    Opening it makes the SQLite store where there is none, which must happen once and in one process: the driver's.

    Args:
        storage: folder of the default store and of artifacts.
        task_id: names the experiment.
    """

    def __init__(self, storage: Path, task_id: str) -> None:
        # MLflow reports each database migration; and it takes a second to import, so only where it is used.
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        logging.getLogger("alembic").setLevel(logging.WARNING)
        from mlflow import MlflowClient

        storage.mkdir(parents=True, exist_ok=True)
        uri = tracking_uri(storage)
        self._client = MlflowClient(uri)
        experiment = self._client.get_experiment_by_name(task_id)
        if experiment is None:
            # A server decides itself where artifacts go; the local store keeps them beside it.
            location = (storage / "artifacts").resolve().as_uri() if uri.startswith("sqlite:") else None
            self._experiment = self._client.create_experiment(
                task_id, artifact_location=location, tags={_KIND_TAG: "custom_model_development"}
            )
        else:
            self._experiment = experiment.experiment_id

    def open_sweep(self, name: str, parameters: dict[str, Any]) -> str:
        """Start, or find again, the parent run of a sweep.

        Args:
            name: of the sweep.
            parameters: of the sweep as a whole; filed when the run is new.

        Returns:
            The run's id.
        """
        found = self._find(f"tags.`{_SWEEP_TAG}` = '{name}'")
        if found is not None:
            self._client.update_run(found.info.run_id, status="RUNNING")
            return str(found.info.run_id)
        run = self._client.create_run(self._experiment, tags={_SWEEP_TAG: name, _NAME_TAG: name})
        self._log_parameters(run.info.run_id, parameters)
        return str(run.info.run_id)

    def log_member(self, parent: str, result: MemberResult) -> None:
        """File a member once: parameters, learning curve, results, episode records and the policy directory.

        A run that an earlier start left unfinished is taken up again; a finished one is left alone.

        Args:
            parent: the sweep's run id.
            result: what to file.
        """
        run = self._find(f"tags.`{_MEMBER_TAG}` = '{result.identity}' and tags.`{_PARENT_TAG}` = '{parent}'")
        if run is not None and run.info.status == "FINISHED":
            return
        if run is None:
            tags = {_MEMBER_TAG: result.identity, _PARENT_TAG: parent, _NAME_TAG: result.label}
            run = self._client.create_run(self._experiment, tags=tags)
        run_id = run.info.run_id
        self._log_parameters(run_id, result.parameters)
        self._log_metrics(run, result)
        self._client.log_table(run_id, _table(result.episodes), "episodes.json")
        self._client.log_artifacts(run_id, str(result.policy), "policy")
        self._client.set_terminated(run_id, "FINISHED")

    def close_sweep(self, parent: str, rows: Sequence[Mapping[str, Any]], figures: Sequence[Path]) -> None:
        """File the sweep's table and figures with its parent run, and finish that."""
        self._client.log_table(parent, _table(rows), "results.json")
        for figure in figures:
            self._client.log_artifact(parent, str(figure))
        self._client.set_terminated(parent, "FINISHED")

    def fail_sweep(self, parent: str) -> None:
        """Mark a sweep that stopped; the same command takes it up again."""
        self._client.set_terminated(parent, "KILLED")

    def _find(self, condition: str) -> Run | None:
        runs = self._client.search_runs([self._experiment], condition, max_results=1)
        return runs[0] if runs else None

    def _log_parameters(self, run_id: str, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow refuses values of more than 6,000 characters.
        self._client.log_batch(run_id, params=[Param(key, str(value)[:6000]) for key, value in parameters.items()])

    def _log_metrics(self, run: Run, result: MemberResult) -> None:
        """File points that an interrupted start has not filed yet."""
        from mlflow.entities import Metric

        now, run_id = int(time.time() * 1000), run.info.run_id
        known = {metric.step for metric in self._client.get_metric_history(run_id, "train_loss")}
        curve = zip(result.curve.get("step", []), result.curve.get("train_loss", []), strict=True)
        metrics = [Metric("train_loss", value, now, int(step)) for step, value in curve if int(step) not in known]
        metrics += [
            Metric(name, value, now, result.step)
            for name, value in result.metrics.items()
            if name not in run.data.metrics
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(run_id, metrics=metrics[start : start + _BATCH])


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn rows into the columns that MLflow shows as a table."""
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
