"""Policies that copy the nearest demonstrated action."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.base import Explanation, Float32Array, Policy
from mcnn_ray.policies.search import PolicySearch

__all__ = ["NearestPolicy"]


class NearestPolicy(Policy):
    """`1nn`: the action of the nearest of all demonstrated observations, in standardised space.

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        observations_ND: (N, D) float32, standardised.
        actions_NA: (N, A) float32, raw units.
    """

    kind = "nearest"

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        observations_ND: Float32Array,
        actions_NA: Float32Array,
    ) -> None:
        super().__init__(card, standardiser, action_scale)
        self._observations_ND = observations_ND
        self._actions_NA = actions_NA
        self._search = PolicySearch(observations_ND)

    def _actions(self, obs_BD: Float32Array) -> Float32Array:
        index_B, _ = self._search(obs_BD)
        return self._actions_NA[index_B]

    def explain(self, observations_BD: npt.NDArray[Any]) -> Explanation | None:
        """Tell which demonstrated step each action copies; its weight is 1."""
        index_B, distance_B = self._search(self.standardiser(observations_BD))
        return Explanation(row_B=index_B, distance_B=distance_B, weight_B=np.ones_like(distance_B))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the demonstrations."""
        return {"memory_observations": self._observations_ND, "memory_actions": self._actions_NA}

    def settings(self) -> dict[str, Any]:
        """Return no settings: there are none."""
        return {}

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> NearestPolicy:
        """Build the policy from its arrays."""
        return cls(card, standardiser, action_scale, arrays["memory_observations"], arrays["memory_actions"])
