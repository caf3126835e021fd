"""The nearest memory as policies ask for it: one observation at a time in rollouts, many at once in analyses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.search import make_search

__all__ = ["PolicySearch"]

_MANY = 64  # queries from which one matrix product for all is faster than one each


class PolicySearch:
    """Always finds the true nearest memory and its exact distance, by whichever exact search is fastest.

    Args:
        memories_MD: (M, D) float32, standardised, M >= 1.
    """

    def __init__(self, memories_MD: npt.NDArray[np.float32]) -> None:
        self._one_by_one = make_search(memories_MD)
        self._memories_MD = torch.from_numpy(memories_MD)

    def __call__(self, obs_BD: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Find the nearest memory of each observation.

        Args:
            obs_BD: (B, D) float32, standardised.

        Returns:
            (B,) int64 index, the lowest on ties; (B,) float32 distance, exactly 0 at a memory.
        """
        if len(obs_BD) < _MANY:
            return self._one_by_one(obs_BD)
        index_B, distance_B = nearest_memory(torch.from_numpy(obs_BD), self._memories_MD)
        return index_B.numpy(), distance_B.numpy()
