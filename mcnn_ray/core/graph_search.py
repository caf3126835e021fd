"""The paper's search for step-by-step rollouts: along the edges between memories, from the previous one.

It is approximate: `measure_search` says how often it misses the true nearest memory and by how much, so no policy here
uses it by itself. It may not be called by two threads at once: it keeps its buffers between calls.

Shapes: B queries, M memories, D observation numbers, E edges, L list entries, T steps of a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, eye_array, vstack

from mcnn_ray.core.search import (
    ExactRanks,
    ExactSearch,
    Float32Array,
    Int64Array,
    IntArray,
    check_memories,
    check_queries,
    make_search,
)

__all__ = ["GraphSearch", "SearchErrors", "link_nearest", "link_successive", "measure_search"]

_CHUNK_ELEMENTS = 1 << 24  # of the memory x memory matrix held at once: 64 MiB
_ROWS_AT_ONCE = 4096  # whose neighbourhoods are multiplied together
_LIST_ENTRIES = 1 << 27  # of a graph search's neighbour lists: 512 MiB


class GraphSearch:
    """Approximate nearest memory along a rollout: the paper's search over the edges between memories.

    The first observation is searched exactly. Every later one starts at the memory before and looks breadth-first
    through the memories one edge away, two edges, up to `depth`; as soon as one is nearer it moves there and starts
    anew. Whatever it returns is the nearest within `depth` edges of itself, no farther than where it started, at its
    exact distance; but it may not be the true nearest, and `measure_search` says how often it is not.

    The edges of the neural gas alone do not carry it: within a few steps it is among memories from which nothing nearer
    is linked. Links to the nearest memories do. Memories: 100,000 random rows of 1,500 episodes of the packaged hammer
    expert (seeds from 5,000,000), standardised, with the competitive Hebbian edges of all 300,000 rows, 1.9 a memory.
    Queries: 100 episodes (seeds from 7,100,000), 19,900 steps, none of them seen when links were chosen. True nearest:
    share with its 95 % Wilson interval. Microseconds: median of look-ups in a row, and with an exact search before
    each, which empties the cache; one core of a shared machine on which `MemorySearch` took 337-518:

    | edges                        | depth | true nearest, %      | largest ratio | median us | list entries |
    |------------------------------|-------|----------------------|---------------|-----------|--------------|
    | competitive Hebbian (paper)  | 1     | 0 [0.00, 0.02]       | 20            | 27, 37    | 4            |
    | the same                     | 4     | 0 [0.00, 0.02]       | 20            | 62, 89    | 280          |
    | and `link_successive`        | 4     | 70.85 [70.22, 71.48] | 2.4           | 89, 132   | 958          |
    | and 32 of `link_nearest`     | 2     | 97.59 [97.37, 97.79] | 3.0           | 85, 118   | 1,196        |
    | and 256                      | 1     | 97.33 [97.10, 97.55] | 3.0           | 55, 77    | 382          |
    | and 384                      | 1     | 98.49 [98.31, 98.65] | 3.0           | 70, 117   | 570          |
    | and 512                      | 1     | 99.12 [98.98, 99.24] | 3.0           | 64, 112   | 757          |
    | and 640                      | 1     | 99.52 [99.41, 99.60] | 1.4           | 86, 137   | 944          |

    So 640 links find at least 99 % beyond chance; with 512 the interval touches 99 %. Resampling whole episodes widens
    the intervals (512: [98.77, 99.36], 640: [99.25, 99.70]). With 512 it takes 110 s of one core and at most 6 GiB to
    build, links included, and keeps 0.3 GiB of lists.

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
        self.memories_MD = check_memories(memories_MD)
        count, dim = self.memories_MD.shape
        if edges_E2.ndim != 2 or edges_E2.shape[1] != 2 or ((edges_E2 < 0) | (edges_E2 >= count)).any():
            raise ValueError(f"edges of shape {edges_E2.shape} are not (E, 2) with memory indices 0 to {count - 1}")
        if depth < 1:
            raise ValueError(f"depth {depth} is not at least 1; the paper uses 1 to 4")
        self._first = first or make_search(self.memories_MD)
        self._rings = _rings(count, edges_E2, depth)
        self._exact = ExactRanks(self.memories_MD, 16 * math.ceil((dim + 1) / 16))  # whole cache lines a row
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
        check_queries(obs_BD, self.memories_MD)
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
    memories_MD = check_memories(memories_MD)
    count, dim = memories_MD.shape
    if not 0 < k < count:
        raise ValueError(f"{k} links to nearest memories asked for; {count} memories allow 1 to {count - 1}")
    centred_MD = memories_MD - memories_MD.mean(0, dtype=np.float64).astype(np.float32)
    table = ExactRanks(centred_MD, dim + 1).table("C")
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
