"""Nearest memory of one observation at a time, in numpy: what a policy asks at every step.

`MemorySearch` (all memories) and `TreeSearch` (a k-d tree) always give the true nearest memory with its exact distance,
as `nearest_memory` does for many observations at once; `make_search` takes the faster by size.

None of the searches may be called by two threads at once: they keep their buffers between calls.

Shapes: B queries, M memories, D observation numbers, K ranked numbers, C candidates.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from mcnn_ray.core.shortening import Shortening, shorten

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
_LARGEST_REST = 1.5  # of the memories' root mean square in the norm of what is shortened; beyond, little is ruled out
_MEASURED_SHARE = 0.01  # of shortened memories, at most; measuring more costs as much as ranking all in full
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
    The ranks may be those of shortened memories and observations: they lie lower then, and more are measured.

    Args:
        memories_MD: (M, D) float32, finite, M >= 1.
        width: W of the table, at least K + 1, where K is D without a shortening.
        shortening: of these memories, or None.

    Attributes:
        query: (W,) float32, [x, 1, 0...], whose product with [-2 m, |m|^2, 0...] is the rank.
        norm2: squared norm of the observation asked about, shortened where its memories are.
        safe_norm2: squared norm of an observation below which ranks cannot overflow.
    """

    def __init__(self, memories_MD: Float32Array, width: int, shortening: Shortening | None = None) -> None:
        dim = memories_MD.shape[1]
        length = shortening.length if shortening else dim
        self._memories_MD = memories_MD
        self._shortening = shortening
        self.query = np.zeros(width, dtype=np.float32)
        self.query[length] = 1.0
        self._query_K = self.query[:length]
        self._x_D = np.empty(dim)
        self._x_K = np.empty(length) if shortening else self._x_D
        self._difference_D = np.empty(dim)
        self.norm2 = 0.0
        # Forward error bound of a dot product of K + 1 terms, one factor of them rounded before, or both where they are
        # shortened (then K < D), with slack for what is computed in float64. What underflows adds an absolute error.
        rounding = (dim + 8) * 2.0**-24
        self._gamma = rounding / (1.0 - rounding)
        self._underflow = (dim + 8) * _SMALLEST_NORMAL
        # No partial sum of |m|^2 - 2 x.m exceeds 2 (|m|^2 + |x|^2).
        ranked_MK = shortening.many(memories_MD) if shortening else memories_MD
        self._norm2_M = np.square(ranked_MK, dtype=np.float64).sum(1)
        self.safe_norm2 = 0.5 * _LARGEST_RANK - float(self._norm2_M.max())
        self._largest_rest = _LARGEST_REST * math.sqrt(np.square(ranked_MK[:, -1]).mean()) if shortening else math.inf

    def table(self, order: Literal["C", "F"]) -> Float32Array:
        """Return (M, W) float32, [-2 m, |m|^2, 0...] a row."""
        length = len(self._query_K)
        ranked_MK = self._shortening.many(self._memories_MD) if self._shortening else self._memories_MD
        table = np.zeros((len(ranked_MK), len(self.query)), dtype=np.float32, order=order)
        with np.errstate(over="ignore"):
            np.multiply(ranked_MK, np.float32(-2.0), out=table[:, :length], casting="same_kind")
            table[:, length] = self._norm2_M
        return table

    def ask(self, x32_D: Float32Array) -> bool:
        """Take (D,) float32, the observation that the next calls are about.

        Returns:
            False if its ranks might overflow, or, shortened, would lie too low to be of use.
        """
        self._x_D[:] = x32_D
        if self._shortening:
            self._shortening.one(self._x_D, self._x_K)
            if self._x_K[-1] > self._largest_rest:
                return False
        self.norm2 = float(self._x_K.dot(self._x_K))
        if not self.norm2 < self.safe_norm2:
            return False
        self._query_K[:] = self._x_K
        return True

    def measure(self, memory: int) -> float:
        """Return the squared distance of one memory, by subtraction in float64."""
        np.subtract(self._x_D, self._memories_MD[memory], self._difference_D)
        return float(self._difference_D.dot(self._difference_D))

    def nearest(
        self, rank_C: Float32Array, rows_C: IntArray | None = None, *, most: int | None = None
    ) -> tuple[int, float]:
        """Find the nearest of some memories.

        Args:
            rank_C: (C,) float32, ranks by a product with `query`, C >= 1; overwritten.
            rows_C: (C,) the memories ranked, ascending; None means all.
            most: memories that may be measured again, or None for any number.

        Returns:
            The memory, the lowest on ties, and its squared distance; memory -1 if more than `most` had to be measured.
        """
        place = int(rank_C.argmin())
        winner = place if rows_C is None else int(rows_C[place])
        squared = self.measure(winner)

        # The true nearest, j, is no farther than the winner, so |m_j| <= |x| + d = reach bounds the rounding of its
        # rank |m_j|^2 - 2 x.m_j; and so j ranks no higher than d^2 - |x|^2 + rounding. Shortening only lowers its rank.
        x_norm = math.sqrt(self.norm2)
        reach = x_norm + math.sqrt(squared)
        rounding = self._gamma * reach * (reach + 2.0 * x_norm) + self._underflow * (1.0 + reach + x_norm)
        limit = squared - self.norm2 + rounding

        # Without the winner, is the next one beyond the limit? Cheaper than comparing all, and nearly always so.
        rank_C[place] = np.inf
        if rank_C.item(rank_C.argmin()) > limit:
            return winner, squared
        rank_C[place] = -np.inf
        (near_C,) = (rank_C <= np.nextafter(np.float32(limit), np.float32(np.inf))).nonzero()
        if most is not None and len(near_C) > most:
            return -1, math.nan
        return self.measured(near_C if rows_C is None else rows_C[near_C])

    def limits(self, norm2_B: Float64Array, squared_B: Float64Array) -> Float32Array:
        """Return up to which rank a memory may be as near as a distance, that of a winner, say.

        As in `nearest`, but a little higher for fewer operations: of reach (reach + 2 |x|) no more than 6 (|x|^2 + d^2)
        is left, of 1 + reach + |x| no more than 3 + |x|^2 + d^2, and a share of 2**-23 covers the rounding to float32.

        Args:
            norm2_B: (B,) the observations' `norm2`, below `safe_norm2`.
            squared_B: (B,) squared distances.
        """
        share = 6.0 * self._gamma + self._underflow + 2.0**-23
        limit_B: Float64Array = squared_B * (1.0 + share)
        limit_B -= norm2_B * (1.0 - share)
        limit_B += 3.0 * self._underflow
        return limit_B.astype(np.float32)

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

    From 50,000 memories on, where a part of the principal components holds nearly all the spread, a product with these
    alone is tried first: its time is that of reading the memories, and its ranks still bound every distance from below.
    Observations far from the memories in the other components would leave too many to measure: full products serve
    them.

    Args:
        memories_MD: (M, D) float32, standardised, finite, M >= 1.

    Attributes:
        exact: ranks and exact distances of all memories.
        table: (M, W) float32, column-major, what `exact` ranks by.

    Raises:
        ValueError: the shape is another, or a memory is not finite.
    """

    def __init__(self, memories_MD: Float32Array) -> None:
        self.memories_MD = check_memories(memories_MD)
        self.exact = ExactRanks(self.memories_MD, self.memories_MD.shape[1] + 1)
        self.table = self.exact.table("F")  # column-major, since the product is fastest so
        shortening = shorten(self.memories_MD)
        self._short: tuple[ExactRanks, Float32Array] | None = None
        if shortening:
            short = ExactRanks(self.memories_MD, shortening.length + 1, shortening)
            self._short = short, short.table("F")
        self._most = int(_MEASURED_SHARE * len(self.memories_MD))
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
        for row in range(len(obs_BD)):  # a microsecond less than an iterator takes over one row
            index_B[row], squared = self._one(obs_BD[row])
            distance_B[row] = math.sqrt(squared)
        return index_B, distance_B

    def _one(self, x_D: Float32Array) -> tuple[int, float]:
        if self._short:
            short, table = self._short
            if short.ask(x_D):
                table.dot(short.query, self._rank_M)
                found, squared = short.nearest(self._rank_M, most=self._most)
                if found >= 0:
                    return found, squared
        if self.exact.ask(x_D):
            self.table.dot(self.exact.query, self._rank_M)
            return self.exact.nearest(self._rank_M)
        return self.exact.measured(np.arange(len(self.memories_MD)))


class TreeSearch:
    """True nearest memory by a k-d tree in float64.

    Its time rests on the data: good in a few dimensions, or where a few columns hold nearly all the spread; in many
    standardised columns the tree visits most memories and is far slower than `MemorySearch` (see `make_search`).

    Args:
        memories_MD: (M, D) float32, standardised, finite, M >= 1.

    Attributes:
        exact: exact distances of all memories.

    Raises:
        ValueError: the shape is another, or a memory is not finite.
    """

    def __init__(self, memories_MD: Float32Array) -> None:
        self.memories_MD = check_memories(memories_MD)
        self.exact = ExactRanks(self.memories_MD, self.memories_MD.shape[1] + 1)
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
        self.exact.ask(x_D)
        found, squared = self.exact.measured(np.array(near_C))
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

    (At 100,000 and D = 46 without the shortened products, which take about 0.6 of that.)

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
