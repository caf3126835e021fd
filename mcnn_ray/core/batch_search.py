"""Nearest memories of a few observations at once, in numpy: what a policy asks when episodes run in step.

Shapes: B queries, M memories, D observation numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.search import ExactSearch, Float32Array, Int64Array, MemorySearch, check_queries

__all__ = ["BatchSearch"]


class BatchSearch:
    """True nearest memories by one matrix product for all observations, which reads the memories once.

    What ranks within the product's proven rounding error of the best is measured again by subtraction in float64, so
    the results are those of `MemorySearch`, bit for bit, whatever observations share a batch.

    Args:
        single: search for one observation at a time, whose memories and ranks are taken, not made again; so the two may
            not be called at once.
    """

    def __init__(self, single: ExactSearch) -> None:
        self.memories_MD = single.memories_MD
        self._exact = single.exact
        table_MW = single.table if isinstance(single, MemorySearch) else single.exact.table("F")
        self._table = table_MW.T  # (W, M), row-major
        self._query_BW = np.empty((0, len(self._table)), dtype=np.float32)
        self._rank_BM = np.empty((0, len(self.memories_MD)), dtype=np.float32)

    def __call__(self, obs_BD: Float32Array) -> tuple[Int64Array, Float32Array]:
        """Find the nearest memory of each observation: arguments, results and errors are `MemorySearch`'s."""
        check_queries(obs_BD, self.memories_MD)
        count = len(obs_BD)
        x_BD = obs_BD.astype(np.float64)
        norm2_B = np.einsum("bd,bd->b", x_BD, x_BD)
        if not norm2_B.max(initial=0.0) < self._exact.safe_norm2:  # ranks may overflow, or an observation holds NaN
            found = [self._measured(x_D, np.arange(len(self.memories_MD))) for x_D in obs_BD]
            return np.array([place for place, _ in found]), np.sqrt([square for _, square in found]).astype(np.float32)
        if count > len(self._rank_BM):
            self._query_BW = np.ones((count, self._query_BW.shape[1]), dtype=np.float32)
            self._rank_BM = np.empty((count, self._rank_BM.shape[1]), dtype=np.float32)
        query_BW, rank_BM = self._query_BW[:count], self._rank_BM[:count]
        query_BW[:, :-1] = obs_BD
        np.dot(query_BW, self._table, out=rank_BM)
        place_B = rank_BM.argmin(1)
        difference_BD = x_BD - self.memories_MD.take(place_B, 0)
        squared_B = np.einsum("bd,bd->b", difference_BD, difference_BD)
        limit_B1 = self._exact.limits(norm2_B, squared_B)[:, None]
        near_N = np.flatnonzero(rank_BM <= limit_B1)  # the winners, and nearly always no others
        if len(near_N) != count:
            self._measure_again(obs_BD, near_N, place_B, squared_B)
        return place_B, np.sqrt(squared_B).astype(np.float32)

    def _measured(self, x_D: Float32Array, near_C: Int64Array) -> tuple[int, float]:
        self._exact.ask(x_D)
        return self._exact.measured(near_C)

    def _measure_again(
        self, obs_BD: Float32Array, near_N: Int64Array, place_B: Int64Array, squared_B: npt.NDArray[np.float64]
    ) -> None:
        """Correct the winners of those with several memories near enough."""
        memories = len(self.memories_MD)
        starts = np.searchsorted(near_N, memories * np.arange(len(obs_BD) + 1))
        for row in np.flatnonzero(np.diff(starts) != 1).tolist():
            near_C = near_N[starts[row] : starts[row + 1]] - memories * row
            place_B[row], squared_B[row] = self._measured(obs_BD[row], near_C)
