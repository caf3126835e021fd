"""Policies with a multi-layer perceptron, the paper's network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.base import Float32Array
from mcnn_ray.policies.blended import BlendedPolicy, Memories

__all__ = ["MlpPolicy", "layer_arrays", "mlp_layers"]

Layers = list[tuple[Float32Array, Float32Array]]


def mlp_layers(arrays: Mapping[str, npt.NDArray[Any]], count: int | None = None) -> Layers:
    """Return weight (in, out) and bias (out,) of each layer from arrays `layers.i.weight` and `layers.i.bias`.

    Args:
        arrays: by name.
        count: of layers; None when the arrays are theirs alone.

    Raises:
        KeyError: a layer is missing.
    """
    count = len(arrays) // 2 if count is None else count
    return [(arrays[f"layers.{i}.weight"], arrays[f"layers.{i}.bias"]) for i in range(count)]


def layer_arrays(layers: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return weight and bias of each layer under the names that `mlp_layers` reads."""
    return {
        f"layers.{i}.{name}": array
        for i, layer in enumerate(layers)
        for name, array in zip(("weight", "bias"), layer, strict=True)
    }


class MlpPolicy(BlendedPolicy):
    """Rectified layers, computed by numpy: for one observation faster than torch.

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        layers: weight (in, out) and bias (out,) of each layer, float32.
        memories: the codebook, or None for plain behaviour cloning.
    """

    kind = "mlp"

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        layers: Layers,
        memories: Memories | None,
    ) -> None:
        super().__init__(card, standardiser, action_scale, memories)
        self.layers = layers

    def network(self, obs_BD: Float32Array) -> Float32Array:
        """Return f(x), (B, A) float32 before any head, for (B, D) standardised observations."""
        hidden = obs_BD
        for weight, bias in self.layers[:-1]:
            hidden = hidden.dot(weight)  # less to decide than in `@`
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        weight, bias = self.layers[-1]
        output_BA: Float32Array = hidden.dot(weight)
        output_BA += bias
        return output_BA

    def network_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the layers by name."""
        return layer_arrays(self.layers)

    def network_settings(self) -> dict[str, Any]:
        """Return the number of layers."""
        return {"layers": len(self.layers)}

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> MlpPolicy:
        """Build the policy from its arrays and settings."""
        layers = mlp_layers(arrays, settings["layers"])
        return cls(card, standardiser, action_scale, layers, Memories.from_parts(arrays, settings))
