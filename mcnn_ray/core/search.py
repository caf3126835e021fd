"""Nearest memory of one observation at a time, in numpy: what a policy asks at every step.

`MemorySearch` (all memories) and `TreeSearch` (a k-d tree) always give the true nearest memory with its exact distance,
as `nearest_memory` does for many observations at once; `make_search` takes the faster by size.

None of the searches may be called by two threads at once: they keep their buffers between calls.

Shapes: B queries, M memories, D observation numbers, C candidates.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

__all__ = [
    "ExactSearch",
    "MemorySearch",
    "TreeSearch",
    "make_search",
]

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
IntArray = npt.NDArray[np.int32] | Int64Array

_TREE_FROM, _TREE_DIM = 50_000, 6  # see make_search
_LARGEST_RANK = 3e38  # in float32
_SMALLEST_NORMAL = 2.0**-126  # error of one float32 product that underflows, at most
_NEAR_TIE = 1.0 + 1e-9  # far above the tree's float64 rounding
_ROWS_AT_ONCE = 4096  # measured in float64: 1.5 MiB at D = 46, which stays in the cache


def check_memories(memories_MD: Float32Array) -> Float32Array:
    if memories_MD.ndim != 2 or 0 in memories_MD.shape:
        raise ValueError(f"memories of shape {memories_MD.shape} are not (M, D) with at least one row and column")
    memories_MD = np.ascontiguousarray(memories_MD, dtype=np.float32)
    bad_M = ~np.isfinite(memories_MD).all(1)
    if bad_M.any():
        raise ValueError(f"memory {int(bad_M.argmax())} holds NaN or infinity ({int(bad_M.sum())} such memories)")
    return memories_MD


def check_queries(obs_BD: Float32Array, memories_MD: Float32Array) -> None:
    if obs_BD.ndim != 2 or obs_BD.shape[1] != memories_MD.shape[1]:
        raise ValueError(
            f"observations of shape {obs_BD.shape} cannot be searched among memories of shape {memories_MD.shape}; "
            f"pass (B, {memories_MD.shape[1]})"
        )


class ExactRanks:
    """Finds the nearest of some memories to one observation from float32 ranks |m|^2 - 2 x.m.

    If more than one ranks within the proven rounding error of the best, these are measured by subtraction in float64.

    Attributes:
        query: (W,) float32, [x, 1, 0...], whose product with [-2 m, |m|^2, 0...] is the rank.
    """

    def __init__(self, memories_MD: Float32Array, width: int) -> None:
        dim = memories_MD.shape[1]
        self._memories_MD = memories_MD
        self.query = np.zeros(width, dtype=np.float32)
        self.query[dim] = 1.0
        self._query_D = self.query[:dim]
        self._x_D = np.empty(dim)
        self._difference_D = np.empty(dim)
        # Forward error bound of a dot product of D + 1 terms, one of them rounded before, with slack for what is
        # computed in float64. Products that underflow add an absolute error.
        rounding = (dim + 8) * 2.0**-24
        self._gamma = rounding / (1.0 - rounding)
        self._underflow = (dim + 8) * _SMALLEST_NORMAL
        # No partial sum of |m|^2 - 2 x.m exceeds 2 (|m|^2 + |x|^2).
        self._norm2_M = np.square(memories_MD, dtype=np.float64).sum(1)
        self._safe_norm2 = 0.5 * _LARGEST_RANK - float(self._norm2_M.max())

    def table(self, order: Literal["C", "F"]) -> Float32Array:
        """Return (M, W) float32, [-2 m, |m|^2, 0...] a row."""
        count, dim = self._memories_MD.shape
        table = np.zeros((count, len(self.query)), dtype=np.float32, order=order)
        with np.errstate(over="ignore"):
            np.multiply(self._memories_MD, np.float32(-2.0), out=table[:, :dim])
            table[:, dim] = self._norm2_M
        return table

    def ask(self, x32_D: Float32Array) -> bool:
        """Take (D,) float32, the observation that the next calls are about; False if its ranks might overflow."""
        self._query_D[:] = x32_D
        self._x_D[:] = x32_D
        self._x_norm2 = float(self._x_D.dot(self._x_D))
        return self._x_norm2 < self._safe_norm2

    def measure(self, memory: int) -> float:
        """Return the squared distance of one memory, by subtraction in float64."""
        np.subtract(self._x_D, self._memories_MD[memory], self._difference_D)
        return float(self._difference_D.dot(self._difference_D))

    def nearest(self, rank_C: Float32Array, rows_C: IntArray | None = None) -> tuple[int, float]:
        """Find the nearest of some memories.

        Args:
            rank_C: (C,) float32, ranks by a product with `query`, C >= 1; overwritten.
            rows_C: (C,) the memories ranked, ascending; None means all.

        Returns:
            The memory, the lowest on ties, and its squared distance.
        """
        place = int(rank_C.argmin())
        winner = place if rows_C is None else int(rows_C[place])
        squared = self.measure(winner)

        # The true nearest, j, is no farther than the winner, so |m_j| <= |x| + d = reach bounds the rounding of its
        # rank |m_j|^2 - 2 x.m_j; and so j ranks no higher than d^2 - |x|^2 + rounding.
        x_norm = math.sqrt(self._x_norm2)
        reach = x_norm + math.sqrt(squared)
        limit = squared - self._x_norm2 + self._gamma * reach * (reach + 2.0 * x_norm) + self._underflow

        # Without the winner, is the next one beyond the limit? Cheaper than comparing all, and nearly always so.
        rank_C[place] = np.inf
        if rank_C.item(rank_C.argmin()) > limit:
            return winner, squared
        rank_C[place] = -np.inf
        (near_C,) = (rank_C <= np.nextafter(np.float32(limit), np.float32(np.inf))).nonzero()
        return self.measured(near_C if rows_C is None else rows_C[near_C])

    def measured(self, rows_C: IntArray) -> tuple[int, float]:
        """Return the nearest of ascending memories, by subtraction in float64 alone, and its squared distance."""
        best, squared = -1, math.inf
        for start in range(0, len(rows_C), _ROWS_AT_ONCE):
            part = rows_C[start : start + _ROWS_AT_ONCE]
            difference_CD = self._memories_MD.take(part, 0) - self._x_D
            squared_C = np.einsum("cd,cd->c", difference_CD, difference_CD)
            place = int(squared_C.argmin())
            if best < 0 or squared_C[place] < squared:
                best, squared = int(part[place]), float(squared_C[place])
        return best, squared


class MemorySearch:
    """True nearest memory by measuring against all of them.

    One matrix-vector product in float32 ranks the memories, and those within its rounding error of the best are
    measured again. (The ranking's winner alone is wrong in 1 of 300 queries at 100,000 memories, and its distance at a
    stored row is not 0.)

    Args:
        memories_MD: (M, D) float32, standardised, finite, M >= 1.

    Raises:
        ValueError: the shape is another, or a memory is not finite.
    """

    def __init__(self, memories_MD: Float32Array) -> None:
        self.memories_MD = check_memories(memories_MD)
        self._exact = ExactRanks(self.memories_MD, self.memories_MD.shape[1] + 1)
        self._table = self._exact.table("F")  # column-major, since the product is fastest so
        # Kept between calls, since fresh ranks of 100,000 memories would cost page faults.
        self._rank_M = np.empty(len(self.memories_MD), dtype=np.float32)

    def __call__(self, obs_BD: Float32Array) -> tuple[Int64Array, Float32Array]:
        """Find the nearest memory of each observation.

        Args:
            obs_BD: (B, D) float32, standardised.

        Returns:
            (B,) int64 index, the lowest on ties; (B,) float32 Euclidean distance, exactly 0 at a memory. For an
            observation that holds NaN the index is 0 and the distance NaN.

        Raises:
            ValueError: the observations have another shape.
        """
        check_queries(obs_BD, self.memories_MD)
        index_B = np.empty(len(obs_BD), np.int64)
        distance_B = np.empty(len(obs_BD), np.float32)
        for row, x_D in enumerate(obs_BD):
            if self._exact.ask(x_D):
                self._table.dot(self._exact.query, self._rank_M)
                index_B[row], squared = self._exact.nearest(self._rank_M)
            else:
                index_B[row], squared = self._exact.measured(np.arange(len(self.memories_MD)))
            distance_B[row] = math.sqrt(squared)
        return index_B, distance_B


class TreeSearch:
    """True nearest memory by a k-d tree in float64.

    Its time rests on the data: good in a few dimensions, or where a few columns hold nearly all the spread; in many
    standardised columns the tree visits most memories and is far slower than `MemorySearch` (see `make_search`).

    Args:
        memories_MD: (M, D) float32, standardised, finite, M >= 1.

    Raises:
        ValueError: the shape is another, or a memory is not finite.
    """

    def __init__(self, memories_MD: Float32Array) -> None:
        self.memories_MD = check_memories(memories_MD)
        self._exact = ExactRanks(self.memories_MD, self.memories_MD.shape[1] + 1)
        self._tree = cKDTree(self.memories_MD.astype(np.float64), copy_data=False)

    def __call__(self, obs_BD: Float32Array) -> tuple[Int64Array, Float32Array]:
        """Find the nearest memory of each observation: arguments, results and errors are `MemorySearch`'s."""
        check_queries(obs_BD, self.memories_MD)
        index_B = np.empty(len(obs_BD), np.int64)
        distance_B = np.empty(len(obs_BD), np.float32)
        for row, x_D in enumerate(obs_BD):
            index_B[row], distance_B[row] = self._one(x_D)
        return index_B, distance_B

    def _one(self, x_D: Float32Array) -> tuple[int, float]:
        if not np.isfinite(x_D).all():  # the tree refuses it
            return 0, math.nan if np.isnan(x_D).any() else math.inf
        distance_2, index_2 = map(np.asarray, self._tree.query(x_D, k=2))
        first, second = distance_2.tolist()
        if second > first * _NEAR_TIE:  # also with one memory, where the second is infinitely far
            return int(index_2[0]), first
        # Of equally near memories the tree returns any.
        near_C = self._tree.query_ball_point(x_D, first * _NEAR_TIE, return_sorted=True)
        self._exact.ask(x_D)
        found, squared = self._exact.measured(np.array(near_C))
        return found, math.sqrt(squared)


ExactSearch = MemorySearch | TreeSearch


def make_search(memories_MD: Float32Array) -> ExactSearch:
    """Choose the faster exact search.

    Medians of 300 held-out observations of hammer-expert-v1, standardised, all 46 columns or their first principal
    components, one core of a shared machine, microseconds, all memories / tree (the tree varies: its 95th percentiles
    are 2-10 times these):

    | memories | D = 2    | D = 4    | D = 6     | D = 8     | D = 46       |
    |----------|----------|----------|-----------|-----------|--------------|
    | 1,000    | 18 / 71  | 15 / 56  | 10 / 38   | 16 / 56   | 12 / 72      |
    | 10,000   | 30 / 72  | 25 / 68  | 23 / 68   | 31 / 85   | 58 / 1,218   |
    | 30,000   | 53 / 71  | 53 / 79  | 64 / 100  | 60 / 115  | 175 / 9,404  |
    | 100,000  | 128 / 59 | 126 / 95 | 125 / 103 | 149 / 181 | 926 / 22,849 |

    So the tree is taken from 50,000 memories on, of at most 6 numbers. (In raw units, where a few columns hold nearly
    all the spread, it also gains at D = 46; memories are standardised.)

    Args:
        memories_MD: (M, D) float32, standardised, finite, M >= 1.

    Raises:
        ValueError: the shape is another, or a memory is not finite.
    """
    memories_MD = check_memories(memories_MD)
    count, dim = memories_MD.shape
    return TreeSearch(memories_MD) if count >= _TREE_FROM and dim <= _TREE_DIM else MemorySearch(memories_MD)
