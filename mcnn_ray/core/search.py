"""Nearest memory of one observation at a time, in numpy: what a policy asks at every step.

`MemorySearch` (all memories) and `TreeSearch` (a k-d tree) always give the true nearest memory with its exact distance,
as `nearest_memory` does for many observations at once; `make_search` takes the faster by size. `GraphSearch` is the
paper's search along the edges between memories, which may miss; `measure_search` says how often and by how much.

None of the searches may be called by two threads at once: they keep their buffers between calls.

Shapes: B queries, M memories, D observation numbers, C candidates, E edges, L list entries, T steps of a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, eye_array, vstack
from scipy.spatial import cKDTree

__all__ = [
    "ExactSearch",
    "GraphSearch",
    "MemorySearch",
    "SearchErrors",
    "TreeSearch",
    "link_nearest",
    "link_successive",
    "make_search",
    "measure_search",
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
_CHUNK_ELEMENTS = 1 << 24  # of the memory x memory matrix held at once: 64 MiB
_LIST_ENTRIES = 1 << 27  # of a graph search's neighbour lists: 512 MiB


def _check_memories(memories_MD: Float32Array) -> Float32Array:
    if memories_MD.ndim != 2 or 0 in memories_MD.shape:
        raise ValueError(f"memories of shape {memories_MD.shape} are not (M, D) with at least one row and column")
    memories_MD = np.ascontiguousarray(memories_MD, dtype=np.float32)
    bad_M = ~np.isfinite(memories_MD).all(1)
    if bad_M.any():
        raise ValueError(f"memory {int(bad_M.argmax())} holds NaN or infinity ({int(bad_M.sum())} such memories)")
    return memories_MD


def _check_queries(obs_BD: Float32Array, memories_MD: Float32Array) -> None:
    if obs_BD.ndim != 2 or obs_BD.shape[1] != memories_MD.shape[1]:
        raise ValueError(
            f"observations of shape {obs_BD.shape} cannot be searched among memories of shape {memories_MD.shape}; "
            f"pass (B, {memories_MD.shape[1]})"
        )


class _Exact:
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
        self.memories_MD = _check_memories(memories_MD)
        self._exact = _Exact(self.memories_MD, self.memories_MD.shape[1] + 1)
        self._table = self._exact.table("F")  # column-major, since the product is fastest so
        # Kept between calls: at 100,000 memories the page faults of fresh ranks cost a quarter of the product.
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
        _check_queries(obs_BD, self.memories_MD)
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
        self.memories_MD = _check_memories(memories_MD)
        self._exact = _Exact(self.memories_MD, self.memories_MD.shape[1] + 1)
        self._tree = cKDTree(self.memories_MD.astype(np.float64), copy_data=False)

    def __call__(self, obs_BD: Float32Array) -> tuple[Int64Array, Float32Array]:
        """Find the nearest memory of each observation: arguments, results and errors are `MemorySearch`'s."""
        _check_queries(obs_BD, self.memories_MD)
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
    memories_MD = _check_memories(memories_MD)
    count, dim = memories_MD.shape
    return TreeSearch(memories_MD) if count >= _TREE_FROM and dim <= _TREE_DIM else MemorySearch(memories_MD)


class GraphSearch:
    """Approximate nearest memory along a rollout: the paper's search over the edges between memories.

    The first observation is searched exactly. Every later one starts at the memory before and looks breadth-first
    through the memories one edge away, two edges, up to `depth`; as soon as one is nearer it moves there and starts
    anew. Whatever it returns is the nearest within `depth` edges of itself, no farther than where it started, at its
    exact distance; but it may not be the true nearest, and `measure_search` says how often it is not.

    The edges of the neural gas alone do not carry it: 100,000 random rows of 1,500 hammer-expert-v1 episodes as memories
    (standardised, competitive Hebbian edges of all 300,000 rows, 3.7 a memory), 20 held-out episodes, one core of a
    shared machine on which `MemorySearch` took 460-1,170 us in the same runs:

    | edges                                        | depth | true nearest | largest ratio | median us | list entries |
    |----------------------------------------------|-------|--------------|---------------|-----------|--------------|
    | competitive Hebbian (the paper)              | 1, 2  | 0 %          | 16.3          | 26, 83    | 4, 18        |
    | the same                                     | 4     | 0 %          | 16.3          | 127       | 284          |
    | and `link_successive`                        | 2     | 28 %         | 2.6           | 44        | 36           |
    | the same                                     | 4     | 70 %         | 1.5           | 171       | 968          |
    | and 32 of `link_nearest`                     | 2     | 97.7 %       | 1.2           | 105-139   | 1,209        |
    | and 256                                      | 1     | 96.7 %       | 2.9           | 63        | 383          |
    | and 384 (without `link_successive`)          | 1     | 98.6 (98.3) %| 2.9 (4.7)     | 44 (49)   | 572          |
    | and 512                                      | 1     | 99.1 %       | 2.9           | 60        | 761          |
    | and 640                                      | 1     | 99.4 %       | 2.9           | 73        | 948          |

    (0 %: from an episode's first observation no edge leads to the second's, a leap away in standardised velocities.)

    Args:
        memories_MD: (M, D) float32, standardised, finite, M >= 1.
        edges_E2: (E, 2) int64, undirected edges between memory indices, repeats allowed: the neural gas's, to which
            those of `link_nearest` and `link_successive` may be added.
        depth: edges followed from a memory; the paper uses 1 to 4. The lists of all neighbourhoods are built here, so
            memory and time grow fast with it.
        first: exact search for first observations; None takes `make_search`'s.

    Raises:
        ValueError: a shape, edge or depth is out of range, or the lists would exceed 512 MiB.
    """

    def __init__(
        self, memories_MD: Float32Array, edges_E2: Int64Array, *, depth: int = 1, first: ExactSearch | None = None
    ) -> None:
        self.memories_MD = _check_memories(memories_MD)
        count, dim = self.memories_MD.shape
        if edges_E2.ndim != 2 or edges_E2.shape[1] != 2 or ((edges_E2 < 0) | (edges_E2 >= count)).any():
            raise ValueError(f"edges of shape {edges_E2.shape} are not (E, 2) with memory indices 0 to {count - 1}")
        if depth < 1:
            raise ValueError(f"depth {depth} is not at least 1; the paper uses 1 to 4")
        self._first = first or make_search(self.memories_MD)
        self._rings = _rings(count, edges_E2, depth)
        self._exact = _Exact(self.memories_MD, 16 * math.ceil((dim + 1) / 16))  # whole cache lines a row
        self._table = self._exact.table("C")
        longest = max(int(np.diff(starts).max()) for starts, _ in self._rings)
        self._rows = np.empty((longest, self._table.shape[1]), dtype=np.float32)
        self._rank = np.empty(longest, dtype=np.float32)

    def __call__(self, obs_BD: Float32Array, previous_B: Int64Array | None = None) -> tuple[Int64Array, Float32Array]:
        """Search from the memory before.

        Args:
            obs_BD: (B, D) float32, standardised: the next observation of each of B rollouts.
            previous_B: (B,) int64, the index returned for the observation before, -1 where there is none; None is all
                -1.

        Returns:
            (B,) int64 index; (B,) float32 Euclidean distance, that of this memory to the last bit.

        Raises:
            ValueError: a shape or index is out of range.
        """
        _check_queries(obs_BD, self.memories_MD)
        if previous_B is None:
            return self._first(obs_BD)
        if previous_B.shape != obs_BD.shape[:1]:
            raise ValueError(f"previous memories of shape {previous_B.shape} for observations of shape {obs_BD.shape}")
        index_B = np.empty(len(obs_BD), np.int64)
        distance_B = np.empty(len(obs_BD), np.float32)
        for row, previous in enumerate(previous_B.tolist()):
            if not -1 <= previous < len(self.memories_MD):
                raise ValueError(f"previous memory {previous} is neither -1 nor below {len(self.memories_MD)}")
            if previous < 0:
                (index_B[row],), (distance_B[row],) = self._first(obs_BD[row : row + 1])
            else:
                index_B[row], distance_B[row] = self._walk(previous, obs_BD[row])
        return index_B, distance_B

    def _walk(self, current: int, x_D: Float32Array) -> tuple[int, float]:
        ranks_fit = self._exact.ask(x_D)
        best, hops = self._exact.measure(current), 0
        while hops < len(self._rings):
            starts, near_L = self._rings[hops]
            near_C = near_L[starts[current] : starts[current + 1]]
            hops += 1
            if not len(near_C):
                continue
            if ranks_fit:
                rows_CW, rank_C = self._rows[: len(near_C)], self._rank[: len(near_C)]
                self._table.take(near_C, 0, rows_CW, "clip")  # "raise" would take a copy first
                found, squared = self._exact.nearest(rows_CW.dot(self._exact.query, rank_C), near_C)
            else:
                found, squared = self._exact.measured(near_C)
            if (squared, found) < (best, current):
                current, best, hops = found, squared, 0
        return current, math.sqrt(best)


def _rings(count: int, edges_E2: Int64Array, depth: int) -> list[tuple[Int64Array, IntArray]]:
    """Return, for 1 to `depth` edges, the memories so far from each, ascending: (M + 1,) starts of (L,) lists."""
    loops = np.arange(count)
    ends = np.concatenate([edges_E2, edges_E2[:, ::-1], np.stack([loops, loops], 1)])
    within_one = csr_array((np.ones(len(ends), dtype=bool), (ends[:, 0], ends[:, 1])), shape=(count, count))
    inside, rings, entries = csr_array(eye_array(count, dtype=bool)), [], 0
    for hops in range(1, depth + 1):
        reached, parts = [], []
        for start in range(0, count, _ROWS_AT_ONCE):
            before = inside[start : start + _ROWS_AT_ONCE]
            reached.append(before @ within_one)
            parts.append(reached[-1] > before)
            entries += parts[-1].nnz
            if entries > _LIST_ENTRIES:
                raise ValueError(
                    f"the neighbours within {hops} of {depth} edges are too many for {count} memories (over "
                    f"{_LIST_ENTRIES:,}); use a smaller depth or fewer edges"
                )
        inside, ring = vstack(reached, format="csr"), vstack(parts, format="csr")
        ring.sort_indices()
        rings.append((ring.indptr.astype(np.int64), ring.indices))
    return rings


def link_nearest(memories_MD: Float32Array, k: int) -> Int64Array:
    """Link each memory to its k nearest others, for a graph search; not in the paper.

    Args:
        memories_MD: (M, D) float32, standardised, finite.
        k: links a memory, 0 < k < M; nearest to float32 rounding. 512 links of 100,000 memories take 1 to 2 minutes on
            one core and 0.8 GiB.

    Returns:
        (M * k, 2) int64 edges.

    Raises:
        ValueError: a shape or k is out of range.
    """
    memories_MD = _check_memories(memories_MD)
    count, dim = memories_MD.shape
    if not 0 < k < count:
        raise ValueError(f"{k} links to nearest memories asked for; {count} memories allow 1 to {count - 1}")
    centred_MD = memories_MD - memories_MD.mean(0, dtype=np.float64).astype(np.float32)
    table = _Exact(centred_MD, dim + 1).table("C")
    query = np.concatenate([centred_MD, np.ones((count, 1), dtype=np.float32)], 1)
    edges = np.empty((count, k, 2), dtype=np.int64)
    rows = max(1, _CHUNK_ELEMENTS // count)
    for start in range(0, count, rows):
        rank_BM = query[start : start + rows] @ table.T
        own = np.arange(len(rank_BM))
        rank_BM[own, start + own] = np.inf
        edges[start : start + rows, :, 0] = (start + own)[:, None]
        edges[start : start + rows, :, 1] = rank_BM.argpartition(k - 1, axis=1)[:, :k]
    return edges.reshape(-1, 2)


def link_successive(nearest_N: Int64Array, offsets: Int64Array) -> Int64Array:
    """Link the memories nearest to successive demonstration steps, for a graph search; not in the paper.

    Args:
        nearest_N: (N,) int64, nearest memory of each demonstration row.
        offsets: (episodes + 1,) int64, first row of each episode, then N.

    Returns:
        (E, 2) int64 distinct edges, first below second.

    Raises:
        ValueError: the offsets do not end with N.
    """
    if nearest_N.ndim != 1 or not len(offsets) or offsets[-1] != len(nearest_N):
        raise ValueError(f"episode offsets end with {offsets[-1:]}, but there are {nearest_N.shape} nearest memories")
    pairs = np.sort(np.stack([nearest_N[:-1], nearest_N[1:]], 1), 1)
    within = np.ones(len(pairs), dtype=bool)
    within[offsets[1:-1] - 1] = False
    return np.unique(pairs[within & (pairs[:, 0] < pairs[:, 1])], axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchErrors:
    """How a graph search did against the true nearest memories.

    Attributes:
        queries: observations that were searched from a memory before; first observations, exact, do not count.
        wrong_share: share of them, in [0, 1], whose memory was not the true nearest.
        mean_ratio: mean of found over true distance, 1 where both are 0, infinite where only the true one is 0.
        largest_ratio: the largest such ratio.
    """

    queries: int
    wrong_share: float
    mean_ratio: float
    largest_ratio: float


def measure_search(graph: GraphSearch, trajectories: Sequence[Float32Array]) -> SearchErrors:
    """Search along trajectories as in a rollout, and compare with the true nearest memories.

    Args:
        graph: what is measured.
        trajectories: (T, D) float32 each, standardised observations of one rollout in order.

    Returns:
        Its errors.

    Raises:
        ValueError: no trajectory has two observations, or a shape is another.
    """
    true_search = make_search(graph.memories_MD)
    wrong, ratios = 0, []
    for obs_TD in trajectories:
        true_T, least_T = true_search(obs_TD)
        previous = true_T[:1]
        for step in range(1, len(obs_TD)):
            previous, distance = graph(obs_TD[step : step + 1], previous)
            wrong += int(previous[0] != true_T[step])
            found, least = float(distance[0]), float(least_T[step])
            ratios.append(found / least if least else (math.inf if found else 1.0))
    if not ratios:
        raise ValueError("no trajectory has two observations; pass those of whole episodes")
    return SearchErrors(
        queries=len(ratios),
        wrong_share=wrong / len(ratios),
        mean_ratio=float(np.mean(ratios)),
        largest_ratio=max(ratios),
    )
