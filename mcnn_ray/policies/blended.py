"""Policies with a network, alone or blended with memories (`mcnn+...`); `bc` and `mcnn+mlp` among them.

Shapes: B observations, M memories, D observation numbers, A action numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.blend import blend, sigma_beta
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.base import Explanation, Float32Array, Policy
from mcnn_ray.policies.search import PolicySearch

__all__ = ["BlendedPolicy", "Memories", "MemoryPolicy"]


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

    @classmethod
    def from_parts(cls, arrays: Mapping[str, npt.NDArray[Any]], settings: Mapping[str, Any]) -> Memories | None:
        """Build them from a policy's arrays and settings; None where these have none."""
        if not settings["memories"]:
            return None
        return cls(
            observations_MD=arrays["memory_observations"],
            actions_MA=arrays["memory_actions"],
            rows_M=arrays["memory_rows"],
            lambda_=float(settings["lambda"]),
            L=float(settings["L"]),
        )


class MemoryPolicy(Policy):
    """A network that may be blended with memories. Subclasses say what the network is and how it acts.

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        memories: the codebook, or None for the network alone.

    Attributes:
        cone_note: what `bound` is where it is not L, for certificates.
    """

    cone_note: ClassVar[str] = ""

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        memories: Memories | None,
    ) -> None:
        super().__init__(card, standardiser, action_scale)
        self.memories = memories
        self._search = None if memories is None else PolicySearch(memories.observations_MD)
        # As numpy numbers: those of Python are looked at anew in every operation.
        self._rate = np.float32(0.0 if memories is None else -memories.lambda_)
        self._L = np.float32(1.0 if memories is None else memories.L)

    @property
    def bound(self) -> float:
        """Largest magnitude of what is blended with a memory's action, in units of the action bounds: L."""
        return 1.0 if self.memories is None else self.memories.L

    @abstractmethod
    def network_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the network's arrays for `policy.safetensors`."""

    @abstractmethod
    def network_settings(self) -> dict[str, Any]:
        """Return the network's settings for `policy.json`: JSON values."""

    def _blended(self, obs_BD: Float32Array, units_BA: Float32Array) -> Float32Array:
        """Return (B, A) raw actions: the network's, given in units of the action bounds, blended with memories."""
        network_BA = self.action_scale.to_raw(units_BA)
        if self.memories is None or self._search is None:
            return network_BA
        index_B, distance_B = self._search(obs_BD)
        # The blend is linear, so it may be taken in raw units, where the stored action comes back bit for bit.
        weight_B1 = self._weight(distance_B)[:, None]
        return blend(weight_B1, self.memories.actions_MA.take(index_B, 0), network_BA, 1.0)

    def _weight(self, distance_B: Float32Array) -> Float32Array:
        weight_B: Float32Array = np.exp(self._rate * distance_B)
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
        """Return the network's arrays and the memories by name."""
        arrays = self.network_arrays()
        if self.memories is not None:
            arrays["memory_observations"] = self.memories.observations_MD
            arrays["memory_actions"] = self.memories.actions_MA
            arrays["memory_rows"] = self.memories.rows_M
        return arrays

    def settings(self) -> dict[str, Any]:
        """Return the network's settings and, with memories, lambda and L."""
        if self.memories is None:
            return {**self.network_settings(), "memories": False}
        return {**self.network_settings(), "memories": True, "lambda": self.memories.lambda_, "L": self.memories.L}


class BlendedPolicy(MemoryPolicy):
    """A network with a tanh head, or blended with memories (equation 1)."""

    @abstractmethod
    def network(self, obs_BD: Float32Array) -> Float32Array:
        """Return f(x), (B, A) float32 before any head, for (B, D) standardised observations."""

    def _actions(self, obs_BD: Float32Array, state: list[Any] | None) -> Float32Array:
        output_BA = self.network(obs_BD)
        if self.memories is None:
            return self.action_scale.to_raw(np.tanh(output_BA))
        network_BA = sigma_beta(output_BA, 0.0)
        network_BA *= self._L
        return self._blended(obs_BD, network_BA)
