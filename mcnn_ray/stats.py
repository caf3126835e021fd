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
        low: lower end.
        high: upper end.
        n: number of observations behind it.
    """

    mean: float
    low: float
    high: float
    n: int


def rate_interval(successes: int, n: int) -> Interval:
    """Return a success rate with its Wilson interval, in [0, 1].

    Args:
        successes: 0 to n.
        n: trials, at least 1.
    """
    found = stats.binomtest(successes, n).proportion_ci(_CONFIDENCE, method="wilson")
    return Interval(mean=successes / n, low=float(found.low), high=float(found.high), n=n)


def mean_interval(strata: Sequence[Sequence[float]]) -> Interval:
    """Return a mean with its stratified bootstrap interval (percentiles of 2,000 resamples, fixed seed).

    Each stratum is resampled on its own, as in rliable (Agarwal et al. 2021). The strata here are training seeds, so
    the interval speaks of these trainings over all episodes; it does not speak of trainings with other seeds.

    Args:
        strata: observations by training seed, none empty.
    """
    groups = [np.asarray(stratum, dtype=np.float64) for stratum in strata]
    pooled = np.concatenate(groups)
    if len(pooled) < 2 or pooled.min() == pooled.max():
        return Interval(mean=float(pooled.mean()), low=float(pooled.mean()), high=float(pooled.mean()), n=len(pooled))
    rng = np.random.default_rng(0)
    sums = np.zeros(_RESAMPLES)
    for group in groups:
        sums += group[rng.integers(len(group), size=(_RESAMPLES, len(group)))].sum(1)
    low, high = np.percentile(sums / len(pooled), [100 * (1 - _CONFIDENCE) / 2, 100 * (1 + _CONFIDENCE) / 2])
    return Interval(mean=float(pooled.mean()), low=float(low), high=float(high), n=len(pooled))
