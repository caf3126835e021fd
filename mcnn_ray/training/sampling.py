"""Which dataset rows a member learns from at each step: a function of seed and step, not a state that is drawn from.

So a member meets the same batches alone, in any pack, on any device and after any interruption. The mixing function is
that of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), in wrapping 64-bit
integers.

Shapes: P members, S steps, B batch.
"""

from __future__ import annotations

import torch

__all__ = ["sample_rows"]

_WEYL = 0x9E3779B97F4A7C15 - 2**64  # the golden ratio's fraction as a signed integer
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def sample_rows(seed_P: torch.Tensor, first_step: int, steps: int, batch: int, count_P: torch.Tensor) -> torch.Tensor:
    """Draw rows with replacement, uniform to 1 part in 2**32 / count.

    Args:
        seed_P: (P,) int64, the members' seeds.
        first_step: counted from 0.
        steps: S.
        batch: B.
        count_P: (P,) int64, rows of each member's dataset, 1 to 2**31 - 1; on the device of the seeds.

    Returns:
        (S, P, B) int64 rows, 0 to count - 1.
    """
    place = torch.arange(first_step * batch, (first_step + steps) * batch, device=seed_P.device).view(steps, 1, batch)
    # The seed is mixed first, so that neighbouring seeds do not walk through the same sequence.
    mixed_SPB = _mixed(_mixed((seed_P + 1) * _WEYL)[:, None] + (place + 1) * _WEYL)
    return (_shifted(mixed_SPB, 32) * count_P[:, None]) >> 32
