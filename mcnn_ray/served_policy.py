"""The code of every policy's MLflow model, which keeps a copy of this file beside the policy directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from mcnn_ray.artifacts import read_json
from mcnn_ray.policies.loading import load_policy

__all__ = ["ServedPolicy"]


class ServedPolicy(PythonModel):
    """Answers observations with actions, each as the first of an episode: a served model remembers no episodes."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read the policy directory among the model's files.

        Whoever loads a model from code has let its code run, so the network of a user's own needs no further consent.
        """
        directory = Path(context.artifacts["policy"])
        backbone = read_json(directory / "policy.json").get("settings", {}).get("backbone")
        self._policy = load_policy(directory, backbone)

    def predict(
        self,
        context: PythonModelContext,
        model_input: np.ndarray,  # without parameters, as MLflow knows the hint
        params: dict[str, Any] | None = None,
    ) -> np.ndarray:
        """Return (B, A) float32 raw actions for (B, D) raw observations, or (B, X) images, flat, in [0, 1].

        They are those of `Policy.act` without a state.
        """
        return self._policy.act(self._policy.encode(model_input))[0]


set_model(ServedPolicy())
