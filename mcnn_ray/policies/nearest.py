"""Policies that copy demonstrated actions: of the nearest observation (1-NN), or of the nearest few (VINN).

Shapes: B observations, N demonstration steps, D observation numbers, A action numbers, K neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.neighbours import NeighbourSearch
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.base import Explanation, Float32Array, Policy
from mcnn_ray.policies.search import PolicySearch

__all__ = ["NearestPolicy"]


class NearestPolicy(Policy):
    """The mean action of the nearest demonstrated observations, weighted by exp(-distance).

    With one neighbour this is `1nn`; with several `vinn` (Pari et al. 2021, "The Surprising Effectiveness of
    Representation Learning for Visual Imitation", equation 2).

    Args:
        card: origin of the policy.
        standardiser: of observations; one that changes nothing where distances are taken in raw units.
        action_scale: of actions.
        observations_ND: (N, D) float32, standardised.
        actions_NA: (N, A) float32, raw units.
        neighbours: K, from 1 to N.
    """

    kind = "nearest"

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        observations_ND: Float32Array,
        actions_NA: Float32Array,
        neighbours: int = 1,
    ) -> None:
        super().__init__(card, standardiser, action_scale)
        self._observations_ND = observations_ND
        self._actions_NA = actions_NA
        self._neighbours = neighbours
        self._search = (
            PolicySearch(observations_ND) if neighbours == 1 else NeighbourSearch(observations_ND, neighbours)
        )

    def _nearest(self, obs_BD: Float32Array) -> tuple[npt.NDArray[np.int64], Float32Array, Float32Array]:
        """Return (B, K) rows, distances and weights, nearest first."""
        index_BK, distance_BK = self._search(obs_BD)
        if self._neighbours == 1:
            index_BK, distance_BK = index_BK[:, None], distance_BK[:, None]
        weight_BK = np.exp(distance_BK[:, :1] - distance_BK)  # less the nearest, which cancels, so that none is 0 / 0
        weight_BK /= weight_BK.sum(1, keepdims=True)
        return index_BK, distance_BK, weight_BK

    def _actions(self, obs_BD: Float32Array, state: list[Any] | None) -> Float32Array:
        if self._neighbours == 1:
            return self._actions_NA[self._search(obs_BD)[0]]
        index_BK, _, weight_BK = self._nearest(obs_BD)
        actions_BA: Float32Array = np.einsum("bk,bka->ba", weight_BK, self._actions_NA[index_BK])
        return actions_BA

    def explain(self, observations_BD: npt.NDArray[Any]) -> Explanation | None:
        """Tell the nearest demonstrated step and its share of the action, which is 1 where it is copied."""
        index_BK, distance_BK, weight_BK = self._nearest(self.standardiser(observations_BD))
        return Explanation(row_B=index_BK[:, 0], distance_B=distance_BK[:, 0], weight_B=weight_BK[:, 0])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the demonstrations."""
        return {"memory_observations": self._observations_ND, "memory_actions": self._actions_NA}

    def settings(self) -> dict[str, Any]:
        """Return how many neighbours are averaged."""
        return {"neighbours": self._neighbours}

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> NearestPolicy:
        """Build the policy from its arrays and settings."""
        observations_ND, actions_NA = arrays["memory_observations"], arrays["memory_actions"]
        return cls(card, standardiser, action_scale, observations_ND, actions_NA, int(settings.get("neighbours", 1)))
