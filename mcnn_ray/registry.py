"""Policies by their MLflow run or registered model.

A policy is read out of a model's files by our own loader; the code that lies beside it is never run here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mcnn_ray.errors import ArtifactError, did_you_mean
from mcnn_ray.policy_model import POLICY_PATH, find_model
from mcnn_ray.tracking import open_client, public_address, told, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["ADVICE", "MODELS", "RUN_ID", "find_policy", "open_store", "read_run"]

MODELS = "models:/"
RUN_ID = re.compile("[0-9a-f]{32}")
ADVICE = "mcnn doctor looks at it; --storage or MLFLOW_TRACKING_URI names another"  # where a store cannot be used


def find_policy(policy: str, storage: Path) -> Path:
    """Return the policy directory that a user named, fetched to this machine if need be.

    Args:
        policy: a directory; the id of a member's MLflow run; or a model: `models:/NAME@ALIAS`, `models:/NAME/VERSION`
            or `models:/m-ID`.
        storage: folder of the default store.

    Raises:
        ArtifactError: there is no such policy, run or model.
        TrackingError: the store or server cannot be used.
    """
    if Path(policy).is_dir():
        return Path(policy)
    if not policy.startswith(MODELS) and not RUN_ID.fullmatch(policy):
        raise ArtifactError(
            f"{policy} is neither a policy directory, the id of an MLflow run nor a model such as models:/NAME@ALIAS"
        )
    client = open_store(storage, policy)
    with told(tracking_uri(storage), ADVICE):
        if policy.startswith(MODELS):
            return _fetch(client, f"{_model_files(client, policy)}/{POLICY_PATH}", policy)
        model = find_model(client, read_run(client, policy))
        # Runs from before policies were filed as models have theirs among their own artifacts.
        place = f"runs:/{policy}/policy" if model is None else f"{model.artifact_location}/{POLICY_PATH}"
        return _fetch(client, place, f"the MLflow run {policy}")


def open_store(storage: Path, wanted: str) -> MlflowClient:
    """Return a client of the store, to look something up in it.

    Raises:
        ArtifactError: there is no store yet.
        TrackingError: it cannot be used.
    """
    uri = tracking_uri(storage)
    if uri.startswith("sqlite:") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise ArtifactError(f"{storage} holds no MLflow store to look {wanted} up in; name it with --storage")
    return open_client(storage, ADVICE)


def read_run(client: MlflowClient, run_id: str) -> Run:
    """Return a run.

    Raises:
        ArtifactError: the store has no such run.
        MlflowException: the store or server cannot be used.
    """
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise ArtifactError(
            f"MLflow at {public_address(client.tracking_uri)} has no run {run_id}; mcnn ui shows those it has"
        ) from error


def _model_files(client: MlflowClient, model: str) -> str:
    """Return where the files of `models:/...` lie."""
    from mlflow.exceptions import MlflowException

    where = f"MLflow at {public_address(client.tracking_uri)}"
    name, mark, which = re.fullmatch(r"([^@/]*)([@/]?)(.*)", model.removeprefix(MODELS)).groups()  # type: ignore[union-attr]
    if not mark:
        try:
            return str(client.get_logged_model(name).artifact_location)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            raise ArtifactError(
                f"{where} has no model with the id {name}; a registered one is named models:/{name}@ALIAS or "
                f"models:/{name}/VERSION"
            ) from error
    known = {found.name: found for found in client.search_registered_models(max_results=1000)}
    if name not in known:
        hint = did_you_mean(name, known) if known else "none is; mcnn promote SWEEP registers the best of a sweep"
        raise ArtifactError(f"{where} has no registered model '{name}'; {hint}")
    if mark == "@" and which not in known[name].aliases:
        hint = did_you_mean(which, known[name].aliases) if known[name].aliases else "it has none"
        raise ArtifactError(f"the registered model '{name}' of {where} has no alias '{which}'; {hint}")
    version = str(known[name].aliases[which]) if mark == "@" else which
    versions = [str(found.version) for found in client.search_model_versions(f"name = '{name}'", max_results=1000)]
    if version not in versions:
        raise ArtifactError(f"the registered model '{name}' of {where} has no version '{version}'; it has {versions}")
    return str(client.get_model_version_download_uri(name, version))


def _fetch(client: MlflowClient, place: str, what: str) -> Path:
    from mlflow.artifacts import download_artifacts, list_artifacts

    uri = client.tracking_uri
    if not list_artifacts(artifact_uri=place, tracking_uri=uri):
        raise ArtifactError(f"{what} holds no policy of mcnn's; it was filed by another program, or its files are gone")
    return Path(download_artifacts(artifact_uri=place, tracking_uri=uri))
