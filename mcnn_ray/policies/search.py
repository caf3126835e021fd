"""The nearest memory as policies ask for it: for one observation, for a few in step, for many in analyses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.batch_search import BatchSearch
from mcnn_ray.core.search import make_search

__all__ = ["PolicySearch"]

_AT_ONCE = 64  # queries of one matrix product: more gain little, and their ranks leave the cache


class PolicySearch:
    """Always finds the true nearest memory and its exact distance, by whichever exact search is fastest.

    Args:
        memories_MD: (M, D) float32, standardised, M >= 1.
    """

    def __init__(self, memories_MD: npt.NDArray[np.float32]) -> None:
        self._one = make_search(memories_MD)
        self._some = BatchSearch(self._one)

    def __call__(self, obs_BD: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Find the nearest memory of each observation.

        Args:
            obs_BD: (B, D) float32, standardised.

        Returns:
            (B,) int64 index, the lowest on ties; (B,) float32 distance, exactly 0 at a memory.
        """
        if len(obs_BD) <= 1:
            return self._one(obs_BD)
        if len(obs_BD) <= _AT_ONCE:
            return self._some(obs_BD)
        parts = [self._some(obs_BD[start : start + _AT_ONCE]) for start in range(0, len(obs_BD), _AT_ONCE)]
        return np.concatenate([index for index, _ in parts]), np.concatenate([distance for _, distance in parts])
