"""Means with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["Interval", "mean_interval", "rate_interval"]

_CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval.

    Attributes:
        mean: the estimate.
        low: lower end; None where a single observation tells nothing about it.
        high: upper end; None likewise.
        n: number of observations behind it.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Return `mean [low, high]` with so many decimals, each multiplied by scale."""
        if self.low is None or self.high is None:
            return f"{scale * self.mean:.{digits}f} [n/a]"
        return f"{scale * self.mean:.{digits}f} [{scale * self.low:.{digits}f}, {scale * self.high:.{digits}f}]"

    def covers(self, value: float) -> bool:
        """Tell whether a value lies inside the interval."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


def rate_interval(successes: int, n: int) -> Interval:
    """Return a success rate with its Wilson interval, in [0, 1].

    Args:
        successes: 0 to n.
        n: trials, at least 1.
    """
    found = stats.binomtest(successes, n).proportion_ci(_CONFIDENCE, method="wilson")
    return Interval(mean=successes / n, low=float(found.low), high=float(found.high), n=n)


def mean_interval(values: Sequence[Sequence[float]]) -> Interval:
    """Return a mean with its bootstrap interval (percentiles of 2,000 resamples, fixed seed).

    Rows are training seeds, columns are episode starts. All training seeds meet the same starts, so whole columns are
    resampled; to count every cell as independent would make the interval too narrow. The interval speaks of these
    trainings over further starts, not of trainings with further seeds.

    Args:
        values: rows of equal length, at least one value.
    """
    table = np.asarray(values, dtype=np.float64)
    starts = table.shape[1]
    mean = float(table.mean())
    if starts < 2:
        return Interval(mean=mean, low=None, high=None, n=table.size)
    drawn = np.random.default_rng(0).integers(starts, size=(_RESAMPLES, starts))
    means = table.mean(0)[drawn].mean(1)
    low, high = np.percentile(means, [100 * (1 - _CONFIDENCE) / 2, 100 * (1 + _CONFIDENCE) / 2])
    return Interval(mean=mean, low=float(low), high=float(high), n=table.size)
