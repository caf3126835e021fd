"""Other ways to pick memories than neural gas: k-means and k-center.

Shapes: N dataset rows, M memories, D observation numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["k_center", "k_means"]

_CHUNK_ELEMENTS = 1 << 22  # of the row x centre matrix held at once: 16 MiB, about a cache
_ITERATIONS = 10  # passes of Lloyd's algorithm, as many as neural gas has epochs


def k_means(
    obs_ND: torch.Tensor, count: int, *, seed: int, progress: Callable[[float], None] | None = None
) -> torch.Tensor:
    """Run Lloyd's algorithm from distinct random rows.

    Args:
        obs_ND: (N, D) float32, standardised, N >= count.
        count: centres M, at least 1.
        seed: of the start.
        progress: called with the share done, 0 to 1.

    Returns:
        (M, D) float32 centres; one that loses all its rows stays where it was.
    """
    generator = torch.Generator().manual_seed(seed)
    start_M = torch.randperm(len(obs_ND), generator=generator)[:count]
    centres_MD = obs_ND[start_M.to(obs_ND.device)].clone()
    for iteration in range(_ITERATIONS):
        owner_N = _assign(obs_ND, centres_MD)
        # Sums over sorted segments repeat bit for bit, atomic additions on a GPU do not.
        order_N = owner_N.argsort(stable=True)
        sizes_M = torch.bincount(owner_N, minlength=count)
        sums_MD = torch.segment_reduce(obs_ND[order_N], "sum", lengths=sizes_M, axis=0)
        filled_M = sizes_M > 0
        centres_MD[filled_M] = sums_MD[filled_M] / sizes_M[filled_M, None]
        if progress is not None:
            progress((iteration + 1) / _ITERATIONS)
    return centres_MD


def _assign(obs_ND: torch.Tensor, centres_MD: torch.Tensor) -> torch.Tensor:
    """Return the (N,) int64 nearest centre of each row, to the rounding of a matrix product."""
    norms_M = centres_MD.square().sum(1)
    rows = max(1, _CHUNK_ELEMENTS // len(centres_MD))
    return torch.cat([torch.addmm(norms_M, chunk, centres_MD.T, alpha=-2.0).argmin(1) for chunk in obs_ND.split(rows)])


def k_center(
    obs_ND: torch.Tensor, count: int, *, seed: int, progress: Callable[[float], None] | None = None
) -> torch.Tensor:
    """Pick rows greedily, each the farthest from all before (Gonzalez 1985).

    The most isolated distance, which the paper's theorem speaks of, is at most twice the least that any codebook of
    this size can have.

    Args:
        obs_ND: (N, D) float32, standardised, distinct rows, N >= count.
        count: memories M, at least 1.
        seed: chooses the first row.
        progress: called with the share done, 0 to 1.

    Returns:
        (M,) int64 distinct rows, in the order they were picked.
    """
    generator = torch.Generator().manual_seed(seed)
    row = int(torch.randint(len(obs_ND), (1,), generator=generator))
    norms_N = obs_ND.square().sum(1)
    square_N = torch.full_like(norms_N, torch.inf)  # to the nearest picked row
    picked = []
    for index in range(count):
        picked.append(row)
        centre_D = obs_ND[row]
        torch.minimum(square_N, torch.addmv(norms_N + norms_N[row], obs_ND, centre_D, alpha=-2.0), out=square_N)
        square_N[row] = -torch.inf  # never again, whatever rounding makes of its distance to itself
        row = int(square_N.argmax())
        if progress is not None and index % 100 == 0:
            progress((index + 1) / count)
    return torch.tensor(picked, device=obs_ND.device)
