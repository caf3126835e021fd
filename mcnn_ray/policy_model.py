"""Policies as MLflow models from code: one for each member's run, with nothing pickled.

A model holds the policy directory as it is, under `artifacts/policy`, and a copy of `mcnn_ray/served_policy.py`.
"""

from __future__ import annotations

import importlib.metadata
import logging
import math
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from mcnn_ray.artifacts import MANIFEST, content_hash, read_json
from mcnn_ray.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

__all__ = ["POLICY_PATH", "find_model", "log_policy_model"]

POLICY_PATH = "artifacts/policy"  # of the policy directory among a model's files
_NAME = "policy"
_POLICY_TAG = "mcnn.policy"  # hash of the policy directory
# What the bits of an action rest on. The rest follows from the dependencies of mcnn-ray, which need no pins to load.
_REQUIREMENTS = ("mcnn-ray", "mlflow", "numpy", "scipy", "torch")


def log_policy_model(
    client: MlflowClient, run: Run, policy: Path, parameters: Mapping[str, Any], tags: Mapping[str, str]
) -> str:
    """Have a run's policy be there as a model; the same again changes nothing.

    A model that an earlier call left unfinished is taken up again. One that is finished is never written to: it may be
    registered, and registered models do not change.

    Args:
        client: of the store.
        run: of the member.
        policy: its policy directory.
        parameters: shown with the model.
        tags: of the model.

    Returns:
        The model's id.

    Raises:
        ArtifactError: not a policy directory.
        MlflowException: the store or server cannot be used.
    """
    from mlflow.entities import LoggedModelOutput

    digest = content_hash(read_json(policy / MANIFEST))
    models = _models(client, run, digest)
    for other in models[1:]:  # of a request that was answered too late and sent again
        client.delete_logged_model(other.model_id)
    if models:
        found = models[0]
    else:
        found = client.create_logged_model(
            run.info.experiment_id,
            _NAME,
            source_run_id=run.info.run_id,
            tags={**tags, _POLICY_TAG: digest},
            params={key: str(value) for key, value in parameters.items()},
        )
    if found.status != "READY":
        with tempfile.TemporaryDirectory() as folder:
            model, copied = Path(folder) / "model", Path(folder) / Path(POLICY_PATH).name
            shutil.copytree(policy, copied)  # MLflow takes its name, refuses links, and writes its place into the model
            _write_model(copied, model, found.model_id, run.info.run_id)
            client.log_model_artifacts(found.model_id, str(model))
        outputs = client.get_run(run.info.run_id).outputs if models else None  # MLflow would link it a second time
        if outputs is None or found.model_id not in [output.model_id for output in outputs.model_outputs]:
            client.log_outputs(run.info.run_id, [LoggedModelOutput(found.model_id, step=0)])
        client.finalize_logged_model(found.model_id, "READY")
    return str(found.model_id)


def find_model(client: MlflowClient, run: Run) -> LoggedModel | None:
    """Return the newest whole model of a member's run, or None."""
    return next((model for model in _models(client, run) if model.status == "READY"), None)


def _models(client: MlflowClient, run: Run, digest: str | None = None) -> list[LoggedModel]:
    """Return a run's models, the newest of the whole ones first; those of one policy directory, where it is given."""
    condition = f"source_run_id = '{run.info.run_id}'"
    if digest is not None:
        condition += f" and tags.`{_POLICY_TAG}` = '{digest}'"
    models = client.search_logged_models([run.info.experiment_id], condition)
    return sorted(models, key=lambda model: (model.status != "READY", -model.creation_timestamp))


def _write_model(policy: Path, target: Path, model_id: str, run_id: str) -> None:
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)  # it tells of each model that it looks at its example
    example_D, action_dim = _example(policy)
    float32 = np.dtype(np.float32)
    mlflow.pyfunc.save_model(
        path=str(target),
        python_model=str(Path(__file__).with_name("served_policy.py")),
        artifacts={"policy": str(policy)},
        signature=ModelSignature(
            inputs=Schema([TensorSpec(float32, (-1, len(example_D)))]),
            outputs=Schema([TensorSpec(float32, (-1, action_dim))]),
        ),
        input_example=example_D[None],
        # Given, so that nothing is inferred: MLflow would load the model in another process to see what it imports.
        pip_requirements=_requirements(),
        mlflow_model=Model(model_id=model_id, model_uuid=model_id, run_id=run_id, artifact_path=_NAME),
    )


@cache
def _requirements() -> list[str]:
    # Without the part of a version that names a build, which indexes do not have.
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in _REQUIREMENTS]


def _example(policy: Path) -> tuple[npt.NDArray[np.float32], int]:
    """Return an input example, the mean observation or a grey image, and the number of action numbers."""
    path = policy / "policy.safetensors"
    try:
        with safe_open(path, framework="numpy") as file:
            example_D: npt.NDArray[np.float32] = file.get_tensor("observation_mean")
            if "encoder" in read_json(policy / "policy.json"):
                from mcnn_ray.encoders.networks import IMAGE_SHAPE  # with torch, which most policies need not wait for

                example_D = np.full(math.prod(IMAGE_SHAPE), 0.5, np.float32)
            return example_D, len(file.get_tensor("action_low"))
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path} cannot be filed as a model: {error}") from error
