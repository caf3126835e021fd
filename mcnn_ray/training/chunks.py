"""Chunks: what lies around a step in its own episode. Beyond the episode's ends, its first or last step stands in.

Shapes: N transitions, E episodes, K steps asked about, P places of a chunk, M memories, A action numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["action_places", "chunk_rows", "episode_bounds", "memory_chunks"]

Int64Array = npt.NDArray[np.int64]


def action_places(observed: int, predicted: int) -> Int64Array:
    """Return (P,) places of a chunk's actions, from the first observed step on, in steps from the newest one."""
    return np.arange(1 - observed, predicted + 1 - observed)


def episode_bounds(offsets: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return (N,) the first row of each row's episode and (N,) its last, for (E + 1,) offsets."""
    lengths = np.diff(offsets)
    return np.repeat(offsets[:-1], lengths), np.repeat(offsets[1:] - 1, lengths)


def chunk_rows(rows_K: Any, first_K: Any, last_K: Any, places_P: Any) -> tuple[Any, Any]:
    """Return the rows of chunks; of numpy's arrays or torch's tensors.

    Args:
        rows_K: (K,) int64, the steps that they are around.
        first_K: (K,) first row of the step's episode.
        last_K: (K,) its last row.
        places_P: (P,) places in steps from that one, some perhaps below 0.

    Returns:
        (K, P) int64 rows, all of the step's own episode; (K, P) bool, whether the episode goes that far.
    """
    wanted_KP = rows_K[:, None] + places_P
    rows_KP = wanted_KP.clip(first_K[:, None], last_K[:, None])
    return rows_KP, rows_KP == wanted_KP


def memory_chunks(
    actions_NA: npt.NDArray[np.float32],
    offsets: Int64Array,
    rows_M: Int64Array,
    nearest_N: Int64Array,
    kind: str,
    places_P: Int64Array,
) -> npt.NDArray[np.float32]:
    """Return the actions around each memory.

    Args:
        actions_NA: (N, A) float32, demonstrated.
        offsets: (E + 1,) of their episodes.
        rows_M: (M,) of them, which the memories are.
        nearest_N: (N,) which memory is nearest to each row.
        kind: `expert`, the actions demonstrated there; or `mean`, the mean chunk of all rows nearest to the memory.
        places_P: (P,) of the chunk, in steps from the memory.

    Returns:
        (M, P, A) float32.
    """
    first_N, last_N = episode_bounds(offsets)
    if kind == "expert":
        rows_MP, _ = chunk_rows(rows_M, first_N[rows_M], last_N[rows_M], places_P)
        return actions_NA[rows_MP]  # type: ignore[no-any-return]
    rows_NP, _ = chunk_rows(np.arange(len(actions_NA)), first_N, last_N, places_P)
    sums_MPA = np.zeros((len(rows_M), len(places_P), actions_NA.shape[1]))
    for place in range(len(places_P)):
        np.add.at(sums_MPA[:, place], nearest_N, actions_NA[rows_NP[:, place]])
    counts_M = np.bincount(nearest_N, minlength=len(rows_M))
    return (sums_MPA / counts_M[:, None, None]).astype(np.float32)
