"""Nearest memory, always the true one, with its exact distance.

A matrix product ranks the memories fast but is off by rounding: at a stored row it gives distances up to 1e-2 instead
of 0, and among close memories it picks the wrong one. So every memory whose fast value lies within the proven rounding
error of the best is measured again by subtraction in float64, and the nearest is taken, ties to the lowest index.
`torch.cdist` is not used: its default mode has the same rounding (pytorch#57690).

Shapes: B queries, M memories, D observation numbers.
"""

from __future__ import annotations

import torch

__all__ = ["nearest_memory"]

# Unit roundoff of a float32 product by torch's precision setting: float32, TF32 and bfloat16 significands.
_UNIT_ROUNDOFF = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}
_SMALLEST_NORMAL = 2.0**-126  # error of one float32 product that underflows, at most
_LARGEST = 3e38  # in float32
_CHUNK_ELEMENTS = 1 << 24  # of the query x memory matrix held at once: 64 MiB
_PAIRS_AT_ONCE = 1 << 16  # re-measured in float64: 24 MiB at D = 46


def _tolerance_factor(dim: int, unit_roundoff: float) -> float:
    """Return gamma of the forward error bound of a dot product of dim + 2 terms, with slack for the stored norms."""
    terms = (dim + 8) * unit_roundoff
    return terms / (1.0 - terms)


def nearest_memory(obs_BD: torch.Tensor, memories_MD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the nearest memory of many observations, in chunks, on the tensors' device.

    Args:
        obs_BD: (B, D) float32, standardised.
        memories_MD: (M, D) float32, in the same space, M >= 1.

    Returns:
        (B,) int64 index of the nearest memory, the lowest on ties; (B,) float32 Euclidean distance, exactly 0 where the
        observation is a memory.

    Raises:
        ValueError: there is no memory, or the widths differ.
    """
    if memories_MD.ndim != 2 or memories_MD.shape[0] == 0 or obs_BD.shape[1:] != memories_MD.shape[1:]:
        raise ValueError(f"memories of shape {tuple(memories_MD.shape)} cannot serve {tuple(obs_BD.shape)} queries")
    norms_M = memories_MD.double().square().sum(1).float()
    rows = max(1, _CHUNK_ELEMENTS // memories_MD.shape[0])
    parts = [_nearest_chunk(chunk, memories_MD, norms_M) for chunk in obs_BD.split(rows)]
    if not parts:
        empty = torch.empty(0, device=obs_BD.device)
        return empty.long(), empty
    return torch.cat([index for index, _ in parts]), torch.cat([distance for _, distance in parts])


def _nearest_chunk(
    obs_BD: torch.Tensor, memories_MD: torch.Tensor, norms_M: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    fast_BM = torch.addmm(norms_M, obs_BD, memories_MD.T, alpha=-2.0)
    winner_B = fast_BM.argmin(1)
    squared_B = _squared_distances(obs_BD, memories_MD[winner_B])

    # The true nearest j is no farther than the re-measured winner, d; so |m_j| <= |x| + d bounds the rounding of its
    # fast value |m_j|^2 - 2 x.m_j, and j is among the fast values up to d^2 - |x|^2 + tolerance.
    x_norm2_B = obs_BD.double().square().sum(1)
    x_norm_B = x_norm2_B.sqrt()
    reach_B = x_norm_B + squared_B.sqrt()
    gamma = _tolerance_factor(obs_BD.shape[1], _UNIT_ROUNDOFF[torch.get_float32_matmul_precision()])
    limit_B = squared_B - x_norm2_B + gamma * (reach_B.square() + 2.0 * x_norm_B * reach_B)
    limit_B += (obs_BD.shape[1] + 8) * _SMALLEST_NORMAL  # what products that underflow lose
    limit_B = torch.nextafter(limit_B.float(), torch.tensor(torch.inf, device=obs_BD.device))

    candidate_BM = ~(fast_BM > limit_B[:, None])  # negated, so that a NaN from overflow counts as a candidate
    # No partial sum of a fast value exceeds 2 (|m|^2 + |x|^2); where that overflows, every memory is measured.
    candidate_BM[x_norm2_B + norms_M.max() >= 0.5 * _LARGEST] = True
    unsure_B = (candidate_BM.sum(1) > 1).nonzero()[:, 0]
    if len(unsure_B):
        winner_B[unsure_B], squared_B[unsure_B] = _measure_again(
            obs_BD[unsure_B], memories_MD, candidate_BM[unsure_B], squared_B[unsure_B]
        )
    return winner_B, squared_B.sqrt().float()


def _squared_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() - b.double()).square().sum(1)


def _measure_again(
    obs_BD: torch.Tensor, memories_MD: torch.Tensor, candidate_BM: torch.Tensor, squared_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest among the candidates of each row and its squared distance, float64."""
    row_P, col_P = candidate_BM.nonzero(as_tuple=True)
    squared_P = torch.cat(
        [
            _squared_distances(obs_BD[rows], memories_MD[cols])
            for rows, cols in zip(row_P.split(_PAIRS_AT_ONCE), col_P.split(_PAIRS_AT_ONCE), strict=True)
        ]
    )
    best_B = squared_B.scatter_reduce(0, row_P, squared_P, "amin")
    tied_P = squared_P == best_B[row_P]
    index_B = torch.full_like(best_B, memories_MD.shape[0], dtype=torch.long)
    return index_B.scatter_reduce(0, row_P[tied_P], col_P[tied_P], "amin"), best_B
