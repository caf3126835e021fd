"""The codebook: the memories a policy is consistent with (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.clustering import k_center, k_means
from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.neural_gas import grow_neural_gas, snap_to_rows
from mcnn_ray.errors import did_you_mean

__all__ = ["CODEBOOK_METHODS", "Codebook", "learn_codebook", "memory_count"]

CODEBOOK_METHODS = ("neural-gas", "random", "k-means", "k-center")

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codebook:
    """Memories picked from a demonstration set, with the neural gas edges between them.

    Attributes:
        rows_M: (M,) int64, distinct rows of the demonstrations, ascending.
        edges_E2: (E, 2) int64, undirected edges between memory indices, first below second, sorted, no repeats.
        method: one of `CODEBOOK_METHODS`.
        fraction: memories over demonstration steps, in (0, 1].
        seed: seed of the method.
        quantisation_error: mean Euclidean distance of the demonstrations to their nearest memory, standardised units.
        most_isolated_distance: the largest such distance (the paper's d^I over the dataset), standardised units.
        nearest_N: (N,) int64, for every demonstration row the index of its nearest memory.
        distances_N: (N,) float32, the distance to it, standardised units.
    """

    rows_M: npt.NDArray[np.int64]
    edges_E2: npt.NDArray[np.int64]
    method: str
    fraction: float
    seed: int
    quantisation_error: float
    most_isolated_distance: float
    nearest_N: npt.NDArray[np.int64]
    distances_N: npt.NDArray[np.float32]


def memory_count(steps: int, fraction: float) -> int:
    """Return how many memories a fraction of a dataset is.

    Args:
        steps: rows of the dataset.
        fraction: memory fraction in (0, 1].

    Returns:
        `floor(fraction * steps)`, computed so that 0.1 * 30 is 3.

    Raises:
        ValueError: the fraction is outside (0, 1], or gives less than one memory.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"memory fraction {fraction:g} is not in (0, 1]; the paper uses 0.025 to 0.8")
    count = int(fraction * steps + 1e-9)
    if count < 1:
        raise ValueError(
            f"memory fraction {fraction:g} of {steps} demonstration steps gives no memory; use at least {1 / steps:.3g}"
        )
    return count


def learn_codebook(
    obs_ND: npt.NDArray[np.float32],
    fraction: float,
    *,
    method: str = "neural-gas",
    seed: int = 0,
    progress: Progress | None = None,
) -> Codebook:
    """Pick memories from standardised observations (Algorithm 1).

    Memories are distinct in value: where rows repeat, only the first can become a memory, since two memories at one
    place with different actions could not both be returned.

    Args:
        obs_ND: (N, D) float32, standardised.
        fraction: memories over N, in (0, 1].
        method: `neural-gas` (the paper's), `random` (its ablation), `k-means`, or `k-center`, which minimises the most
            isolated distance. Edges come with neural gas alone.
        seed: of the method's random choices.
        progress: called with the share done, 0 to 1.

    Returns:
        A codebook of exactly `memory_count(N, fraction)` memories.

    Raises:
        ValueError: unknown method, a fraction that gives no memory, or fewer distinct rows than memories asked.
    """
    count = memory_count(len(obs_ND), fraction)
    # Without -0.0, which equals 0.0 and yet has other bytes.
    _, first_U = np.unique(obs_ND + np.float32(0.0), axis=0, return_index=True)
    first_U.sort()
    if count > len(first_U):
        raise ValueError(
            f"memory fraction {fraction:g} asks for {count} memories, but only {len(first_U)} of the {len(obs_ND)} "
            f"observations are distinct; use at most {len(first_U) / len(obs_ND):.3g}"
        )
    distinct_UD = torch.from_numpy(obs_ND[first_U])
    rows_M, edges_E2 = _pick(distinct_UD, count, method, seed, progress)
    nearest_N, distance_N = nearest_memory(torch.from_numpy(obs_ND), distinct_UD[rows_M])
    return Codebook(
        rows_M=first_U[rows_M.numpy()].astype(np.int64),
        edges_E2=edges_E2.numpy(),
        method=method,
        fraction=fraction,
        seed=seed,
        quantisation_error=float(distance_N.double().mean()),
        most_isolated_distance=float(distance_N.max()),
        nearest_N=nearest_N.numpy(),
        distances_N=distance_N.numpy(),
    )


def _pick(
    obs_UD: torch.Tensor, count: int, method: str, seed: int, progress: Progress | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (M,) ascending rows and (E, 2) edges between their positions, from (U, D) distinct observations."""
    no_edges = torch.empty((0, 2), dtype=torch.long)
    match method:
        case "neural-gas":
            nodes_MD, edges_E2 = grow_neural_gas(obs_UD, count, seed=seed, progress=progress)
            return snap_to_rows(nodes_MD, edges_E2, obs_UD)
        case "k-means":
            return snap_to_rows(k_means(obs_UD, count, seed=seed, progress=progress), no_edges, obs_UD)
        case "k-center":
            return k_center(obs_UD, count, seed=seed, progress=progress).sort().values, no_edges
        case "random":
            generator = torch.Generator().manual_seed(seed)
            return torch.randperm(len(obs_UD), generator=generator)[:count].sort().values, no_edges
        case _:
            raise ValueError(f"unknown way to pick memories '{method}'; {did_you_mean(method, CODEBOOK_METHODS)}")
