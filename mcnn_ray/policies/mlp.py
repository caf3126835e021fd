"""Multi-layer perceptrons: plain behaviour cloning (`bc`) and memory-consistent ones (`mcnn+mlp`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.blend import blend, sigma_beta
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.base import Explanation, Float32Array, Policy
from mcnn_ray.policies.search import PolicySearch

__all__ = ["Memories", "MlpPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """The codebook as a policy holds it.

    Attributes:
        observations_MD: (M, D) float32, standardised.
        actions_MA: (M, A) float32, raw units: returned unchanged at a memory.
        rows_M: (M,) int64, rows of the demonstrations.
        lambda_: rate at which a memory's weight falls with distance.
        L: bound of the network's part, in units of the action bounds.
    """

    observations_MD: Float32Array
    actions_MA: Float32Array
    rows_M: npt.NDArray[np.int64]
    lambda_: float
    L: float


class MlpPolicy(Policy):
    """A network of rectified layers with a tanh head, or blended with memories (equation 1).

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
        layers: list[tuple[Float32Array, Float32Array]],
        memories: Memories | None,
    ) -> None:
        super().__init__(card, standardiser, action_scale)
        self.layers = layers
        self.memories = memories
        self._search = None if memories is None else PolicySearch(memories.observations_MD)

    def network(self, obs_BD: Float32Array) -> Float32Array:
        """Return f(x), (B, A) float32 before any head, for (B, D) standardised observations."""
        hidden = obs_BD
        for weight, bias in self.layers[:-1]:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        weight, bias = self.layers[-1]
        return hidden @ weight + bias

    def _actions(self, obs_BD: Float32Array) -> Float32Array:
        output_BA = self.network(obs_BD)
        if self.memories is None or self._search is None:
            return self.action_scale.to_raw(np.tanh(output_BA))
        index_B, distance_B = self._search(obs_BD)
        # The blend is linear, so it may be taken in raw units, where the stored action comes back bit for bit.
        network_BA = self.action_scale.to_raw(self.memories.L * sigma_beta(output_BA, 0.0))
        weight_B1 = self._weight(distance_B)[:, None]
        return blend(weight_B1, self.memories.actions_MA[index_B], network_BA, 1.0)

    def _weight(self, distance_B: Float32Array) -> Float32Array:
        assert self.memories is not None
        weight_B: Float32Array = np.exp(np.float32(-self.memories.lambda_) * distance_B)
        return weight_B

    def explain(self, observations_BD: npt.NDArray[Any]) -> Explanation | None:
        """Tell which memory each action draws on; None without memories."""
        if self.memories is None or self._search is None:
            return None
        index_B, distance_B = self._search(self.standardiser(observations_BD))
        return Explanation(
            row_B=self.memories.rows_M[index_B], distance_B=distance_B, weight_B=self._weight(distance_B)
        )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return layers and memories by name."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for i, (weight, bias) in enumerate(self.layers):
            arrays[f"layers.{i}.weight"], arrays[f"layers.{i}.bias"] = weight, bias
        if self.memories is not None:
            arrays["memory_observations"] = self.memories.observations_MD
            arrays["memory_actions"] = self.memories.actions_MA
            arrays["memory_rows"] = self.memories.rows_M
        return arrays

    def settings(self) -> dict[str, Any]:
        """Return the number of layers and, with memories, lambda and L."""
        if self.memories is None:
            return {"layers": len(self.layers), "memories": False}
        return {
            "layers": len(self.layers),
            "memories": True,
            "lambda": self.memories.lambda_,
            "L": self.memories.L,
        }

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
        layers = [(arrays[f"layers.{i}.weight"], arrays[f"layers.{i}.bias"]) for i in range(settings["layers"])]
        memories = None
        if settings["memories"]:
            memories = Memories(
                observations_MD=arrays["memory_observations"],
                actions_MA=arrays["memory_actions"],
                rows_M=arrays["memory_rows"],
                lambda_=float(settings["lambda"]),
                L=float(settings["L"]),
            )
        return cls(card, standardiser, action_scale, layers, memories)
