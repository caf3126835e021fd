"""The nearest few of many memories, in numpy: what VINN asks of all demonstrations at every step.

Shapes: B queries, M memories, D observation numbers, W ranked numbers and padding, K neighbours, C candidates.
"""

from __future__ import annotations

import numpy as np

from mcnn_ray.core.search import (
    ExactRanks,
    Float32Array,
    Float64Array,
    Int64Array,
    check_memories,
    check_queries,
)
from mcnn_ray.core.shortening import shorten

__all__ = ["NeighbourSearch"]

_AT_ONCE = 8  # queries of one product, which reads the memories once
_BLOCK = 64  # memories whose smallest rank is looked at first: ranking a million one by one costs as much as a product
_MEASURED_SHARE = 0.02  # of memories ranked by shortened products; measuring more costs as much as ranking in full


class NeighbourSearch:
    """The true K nearest memories with their exact distances, by float32 products and what these cannot tell apart.

    A memory is nearer than the K-th of some others only if it ranks below that one's distance and the proven rounding
    error; those that do are measured by subtraction in float64. As in `MemorySearch`, products with the leading
    principal components are tried first where there are many memories.

    Args:
        memories_MD: (M, D) float32, standardised or raw, finite, M >= K.
        neighbours: K, at least 1.

    Raises:
        ValueError: the shape is another, there are fewer than K memories, or one is not finite.
    """

    def __init__(self, memories_MD: Float32Array, neighbours: int) -> None:
        self.memories_MD = check_memories(memories_MD)
        if not 1 <= neighbours <= len(memories_MD):
            raise ValueError(f"{neighbours} neighbours asked of {len(memories_MD)} memories")
        self._count = neighbours
        exact = ExactRanks(self.memories_MD, self.memories_MD.shape[1] + 1)
        self._ranks = [(exact, exact.table("F").T, len(self.memories_MD))]
        if shortening := shorten(self.memories_MD):
            short = ExactRanks(self.memories_MD, shortening.length + 1, shortening)
            self._ranks.insert(0, (short, short.table("F").T, int(_MEASURED_SHARE * len(self.memories_MD))))
        self._rank_BM = np.empty((_AT_ONCE, len(self.memories_MD)), dtype=np.float32)

    def __call__(self, obs_BD: Float32Array) -> tuple[Int64Array, Float32Array]:
        """Find the nearest memories of each observation.

        Args:
            obs_BD: (B, D) float32, finite, in the memories' space.

        Returns:
            (B, K) int64 indices, nearest first and the lower of equally near ones first; (B, K) float32 distances,
            exactly 0 at a memory.

        Raises:
            ValueError: the observations have another shape.
        """
        check_queries(obs_BD, self.memories_MD)
        index_BK = np.empty((len(obs_BD), self._count), np.int64)
        squared_BK = np.empty((len(obs_BD), self._count))
        for start in range(0, len(obs_BD), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            self._some(obs_BD[rows], index_BK[rows], squared_BK[rows])
        return index_BK, np.sqrt(squared_BK).astype(np.float32)

    def _some(self, obs_BD: Float32Array, index_BK: Int64Array, squared_BK: Float64Array) -> None:
        left = list(range(len(obs_BD)))
        for ranks, table_WM, most in self._ranks:
            asked, queries, norms = [], [], []
            for row in left:
                if ranks.ask(obs_BD[row]):
                    asked.append(row)
                    queries.append(ranks.query.copy())
                    norms.append(ranks.norm2)
            if not asked:
                continue
            rank_AM = np.dot(np.stack(queries), table_WM, out=self._rank_BM[: len(asked)])
            for row, rank_M, norm2 in zip(asked, rank_AM, norms, strict=True):
                near_C = self._candidates(ranks, obs_BD[row], rank_M, norm2)
                if len(near_C) <= max(most, self._count):
                    index_BK[row], squared_BK[row] = self._nearest(obs_BD[row], near_C)
                    left.remove(row)
        for row in left:  # ranks might overflow
            index_BK[row], squared_BK[row] = self._nearest(obs_BD[row], np.arange(len(self.memories_MD)))

    def _candidates(self, ranks: ExactRanks, x_D: Float32Array, rank_M: Float32Array, norm2: float) -> Int64Array:
        """Return all memories that may be among the nearest, and perhaps others."""
        whole = len(rank_M) // _BLOCK * _BLOCK
        lowest = np.concatenate([rank_M[:whole].reshape(-1, _BLOCK).min(1), rank_M[whole:]])
        if len(lowest) < self._count:
            lowest = rank_M
        some_C = np.flatnonzero(rank_M <= np.partition(lowest, self._count - 1)[self._count - 1])
        _, squared_K = self._nearest(x_D, some_C)
        (limit,) = ranks.limits(np.array([norm2]), squared_K[-1:])
        return np.flatnonzero(rank_M <= limit)

    def _nearest(self, x_D: Float32Array, rows_C: Int64Array) -> tuple[Int64Array, Float64Array]:
        """Return the nearest of ascending memories, by subtraction in float64, and their squared distances."""
        difference_CD = self.memories_MD.take(rows_C, 0) - x_D.astype(np.float64)
        squared_C = np.einsum("cd,cd->c", difference_CD, difference_CD)
        order_K = np.argsort(squared_C, kind="stable")[: self._count]
        return rows_C[order_K], squared_C[order_K]
