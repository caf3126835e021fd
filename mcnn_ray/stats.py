"""Means with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

__all__ = ["Interval", "mean_interval", "rate_interval", "share_interval", "sign_flip_p"]

_CONFIDENCE = 0.95
_RESAMPLES = 2000
_SIGN_PATTERNS = 2**17
_PATTERNS_AT_ONCE = 2**13


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

        def number(value: float) -> str:
            return f"{round(scale * value, digits) + 0.0:.{digits}f}"  # no -0.0

        if self.low is None or self.high is None:
            return f"{number(self.mean)} [n/a]"
        return f"{number(self.mean)} [{number(self.low)}, {number(self.high)}]"

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


def mean_interval(values: Sequence[Sequence[float]] | npt.NDArray[np.float64]) -> Interval:
    """Return a mean with its bootstrap interval (percentiles of 2,000 resamples, fixed seed).

    Rows are training seeds, columns are episode starts. All training seeds meet the same starts, so whole columns are
    resampled; to count every cell as independent would make the interval too narrow. The interval speaks of these
    trainings over further starts, not of trainings with further seeds.

    Args:
        values: rows of equal length, at least one number; nan where there is none, as of a lost episode.
    """
    table = np.asarray(values, dtype=np.float64)
    table = table[:, ~np.isnan(table).all(0)]
    sums, counts = np.nansum(table, 0), (~np.isnan(table)).sum(0)
    n, starts, mean = int(counts.sum()), len(counts), float(sums.sum() / counts.sum())
    if starts < 2:
        return Interval(mean=mean, low=None, high=None, n=n)
    drawn = np.random.default_rng(0).integers(starts, size=(_RESAMPLES, starts))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.percentile(means, [100 * (1 - _CONFIDENCE) / 2, 100 * (1 + _CONFIDENCE) / 2])
    return Interval(mean=mean, low=float(low), high=float(high), n=n)


def share_interval(values: npt.NDArray[np.float64]) -> Interval:
    """Return the share of ones among zeros and ones with its bootstrap interval over episode starts, in [0, 1].

    Where all are equal a bootstrap would be sure of it: the interval is then Wilson's, of as many trials as starts.

    Args:
        values: as of `mean_interval`.
    """
    found = mean_interval(values)
    if found.mean not in (0.0, 1.0):
        return found
    starts = int((~np.isnan(values)).any(0).sum())
    return replace(rate_interval(int(found.mean) * starts, starts), n=found.n)


def sign_flip_p(differences_NS: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return one-sided p-values of paired differences by Fisher's randomisation test: is their mean above 0?

    Between equal settings each difference is as likely to have the other sign, so the p-value is the share of sign
    patterns whose sum is at least the observed one. It is valid for any number of differences, of any distribution
    symmetric about 0. Up to 17 differences all patterns are tried; beyond, 131,072 of them, drawn with a fixed seed and
    the observed one among them.

    Args:
        differences_NS: (N, S), N paired differences of each of S comparisons.

    Returns:
        (S,), in (0, 1].
    """
    count = len(differences_NS)
    patterns = min(2**count, _SIGN_PATTERNS)
    observed_S = differences_NS.sum(0)
    reached_S = observed_S - 1e-9 * np.abs(differences_NS).sum(0)  # equal sums differ by rounding
    rng = np.random.default_rng(0)
    hits_S = np.zeros(differences_NS.shape[1])
    for start in range(0, patterns, _PATTERNS_AT_ONCE):
        rows = np.arange(start, min(start + _PATTERNS_AT_ONCE, patterns))
        if patterns == 2**count:
            flipped = (rows[:, None] >> np.arange(count)) & 1
        else:
            flipped = rng.integers(0, 2, (len(rows), count))
            flipped[rows == 0] = 0
        hits_S += ((1.0 - 2.0 * flipped) @ differences_NS >= reached_S).sum(0)
    p_S: npt.NDArray[np.float64] = hits_S / patterns
    return p_S
