"""Methods compared over tasks: interquartile means, chances of improvement, performance profiles.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021), written from their definitions. A run is one training on one task; its value is the mean over its
episodes. Intervals are percentiles of 2,000 resamples, stratified by task: within each, training seeds are drawn anew,
and episode starts, the latter jointly for all methods that meet them. Of made-up runs they cover the truth in 0.95 of
cases with three training seeds, 0.91 with two, and 0.82 with one, which tells nothing of other trainings.

Shapes: S training seeds, E episode starts, R resamples, N runs over all tasks, T thresholds.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from mcnn_ray.stats import Interval, rate_interval

__all__ = [
    "Group",
    "Profile",
    "Runs",
    "base_of",
    "improvement_probability",
    "interquartile_mean",
    "median_percent_over",
    "performance_profile",
    "runs_of",
    "starts_table",
]

Float64Array = npt.NDArray[np.float64]
Group = tuple[str, str]  # method and setting: a row of a table

BASE = "bc"
RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
_CUT = 0.25  # of the runs at each end, which the interquartile mean leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """A method's runs on one task.

    Attributes:
        observed_S: (S,) float64, each training's mean over its episodes.
        resampled_RS: (R, S) float64, the same in each resample.
        starts: E, how many episode starts they are over.
    """

    observed_S: Float64Array
    resampled_RS: Float64Array
    starts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The share of runs above each threshold, mean over tasks.

    Attributes:
        thresholds_T: (T,) float64, in the runs' units.
        share_T: (T,) float64, in [0, 1], as are the next.
        low_T: (T,) lower end of its 95 % interval, each threshold by itself.
        high_T: (T,) upper end.
    """

    thresholds_T: Float64Array
    share_T: Float64Array
    low_T: Float64Array
    high_T: Float64Array


def starts_table(episodes: pd.DataFrame, column: str, starts: npt.NDArray[np.int64] | None = None) -> Float64Array:
    """Return (S, E) values of one method on one task, nan where an episode was lost.

    Args:
        episodes: rows of one (task, method, setting), with `training_seed` and `episode_seed`.
        column: whose values.
        starts: (E,) episode seeds, in the order wanted; all that were met, where not given.

    Raises:
        ValueError: a training seed met an episode start twice.
    """
    cells = episodes.pivot(index="training_seed", columns="episode_seed", values=column)
    return (cells if starts is None else cells.reindex(columns=starts)).to_numpy(dtype=float)


def runs_of(episodes: pd.DataFrame, column: str = "score") -> dict[Group, dict[str, Runs]]:
    """Return each method's runs by task, with their resamples.

    Args:
        episodes: one row a rollout: task, method, setting, training_seed, episode_seed and the column.
        column: `score` or `return`; tasks where some value is missing altogether, as scores without references, are
            left out.

    Returns:
        By (method, setting), in the order of the rows, then by task.
    """
    known = episodes.dropna(subset=[column])
    runs: dict[Group, dict[str, Runs]] = {}
    for task, rows in known.groupby("task", sort=False):
        starts = np.sort(rows["episode_seed"].unique())
        counts_RE = _draw_starts(str(task), len(starts))
        for (method, setting), own in rows.groupby(["method", "setting"], sort=False):
            found = _resample(starts_table(own, column, starts), counts_RE, _generator(task, method, setting))
            runs.setdefault((str(method), str(setting)), {})[str(task)] = found
    order = dict.fromkeys(zip(known["method"].astype(str), known["setting"].astype(str), strict=True))
    return {group: runs[group] for group in order}


def _generator(*names: Hashable) -> np.random.Generator:
    """Return a generator of these names: what else is in a report does not change a row's interval."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def _draw_starts(task: str, starts: int) -> Float64Array:
    """Return (R, E) how often each resample draws each start."""
    return _generator(task).multinomial(starts, np.full(starts, 1 / starts), RESAMPLES).astype(float)


def _resample(table_SE: Float64Array, counts_RE: Float64Array, rng: np.random.Generator) -> Runs:
    known_SE = ~np.isnan(table_SE)
    observed_S = np.nansum(table_SE, 1) / known_SE.sum(1)
    drawn_RS = counts_RE @ known_SE.T.astype(float)
    sums_RS = counts_RE @ np.nan_to_num(table_SE).T
    # A resample may draw only starts whose episodes this training lost.
    means_RS = np.where(drawn_RS > 0, sums_RS / np.maximum(drawn_RS, 1), observed_S)
    seeds_RS = rng.integers(len(table_SE), size=means_RS.shape)
    return Runs(
        observed_S=observed_S,
        resampled_RS=np.take_along_axis(means_RS, seeds_RS, axis=1),
        starts=int(known_SE.any(0).sum()),
    )


def _interval(value: float, resampled_R: Float64Array, tasks: Sequence[Runs]) -> Interval:
    n = sum(len(runs.observed_S) for runs in tasks)
    if all(runs.starts < 2 for runs in tasks):
        return Interval(mean=value, low=None, high=None, n=n)
    low, high = np.percentile(resampled_R, _PERCENTILES)
    return Interval(mean=value, low=float(low), high=float(high), n=n)


def interquartile_mean(runs: Mapping[str, Runs]) -> Interval:
    """Return the mean of the middle half of a method's runs over all tasks, with its 95 % interval.

    A quarter of the runs, rounded down, is left out at each end.

    Args:
        runs: by task, at least one.

    Returns:
        In the runs' units; n is how many runs there are.
    """
    tasks = list(runs.values())
    value = float(stats.trim_mean(np.concatenate([one.observed_S for one in tasks]), _CUT))
    resampled_RN = np.concatenate([one.resampled_RS for one in tasks], axis=1)
    return _interval(value, np.asarray(stats.trim_mean(resampled_RN, _CUT, axis=1)), tasks)


def improvement_probability(runs: Mapping[str, Runs], base: Mapping[str, Runs]) -> Interval | None:
    """Return how probably a run of one method beats one of another on the same task, with its 95 % interval.

    On each task it is the share of pairs of runs in which the first is better, ties counting half (the Mann-Whitney
    statistic over the number of pairs); then the mean over tasks. Where all pairs agree a bootstrap would be sure of
    it: the interval is then Wilson's, of as many trials as the first has runs.

    Args:
        runs: by task.
        base: the other method's.

    Returns:
        In [0, 1]; n is how many runs the first has on the tasks of both. None where they have no task in common.
    """
    common = [task for task in runs if task in base]
    if not common:
        return None
    observed = np.mean([_wins(runs[task].observed_S, base[task].observed_S) for task in common])
    resampled_R = np.mean([_wins(runs[task].resampled_RS, base[task].resampled_RS) for task in common], axis=0)
    found = _interval(float(observed), resampled_R, [runs[task] for task in common])
    return rate_interval(int(found.mean) * found.n, found.n) if found.mean in (0.0, 1.0) else found


def _wins(values: Float64Array, others: Float64Array) -> Float64Array:
    """Return the share of pairs of (..., S) and (..., S') values in which the first is greater."""
    difference = np.sign(values[..., :, None] - others[..., None, :])
    return np.asarray((difference.mean((-1, -2)) + 1) / 2)


def performance_profile(runs: Mapping[str, Runs], thresholds_T: Float64Array) -> Profile:
    """Return the share of a method's runs above each threshold, with pointwise 95 % intervals.

    Args:
        runs: by task, at least one.
        thresholds_T: (T,) in the runs' units.
    """
    tasks = list(runs.values())
    share_T = np.mean([[(one.observed_S > tau).mean() for tau in thresholds_T] for one in tasks], axis=0)
    resampled_TR = np.array(
        [np.mean([(one.resampled_RS > tau).mean(1) for one in tasks], axis=0) for tau in thresholds_T]
    )
    low_T, high_T = np.percentile(resampled_TR, _PERCENTILES, axis=1)
    return Profile(thresholds_T=thresholds_T, share_T=share_T, low_T=low_T, high_T=high_T)


def median_percent_over(runs: Mapping[str, Runs], base: Mapping[str, Runs] | Mapping[str, float]) -> Interval | None:
    """Return the median over tasks of how much more a method earns than another, in %, with its 95 % interval.

    On each task it is `100 (value - base) / |base|` of the means over runs.

    Args:
        runs: by task.
        base: the other method's runs by task, on the same episode starts, or its published mean.

    Returns:
        In %; n is how many runs the first has on the tasks of both. None where they have no task in common.
    """
    common = [task for task in runs if task in base]
    if not common:
        return None
    observed, resampled = [], []
    for task in common:
        other = base[task]
        over = (other, other) if isinstance(other, float) else (other.observed_S.mean(), other.resampled_RS.mean(1))
        observed.append(_percent(runs[task].observed_S.mean(), over[0]))
        resampled.append(_percent(runs[task].resampled_RS.mean(1), over[1]))
    value, resampled_R = float(np.median(observed)), np.median(resampled, axis=0)
    return _interval(value, resampled_R, [runs[task] for task in common])


def _percent(value: Float64Array, base: Float64Array | float) -> Float64Array:
    scale = np.maximum(np.abs(base), np.finfo(float).tiny)
    return np.asarray(100 * (value - base) / scale)


def base_of(group: Group, groups: Mapping[Group, object]) -> Group | None:
    """Return the plain cloning that a row is compared with: that of its own setting, else the only one, else None."""
    same = (BASE, group[1])
    known = [one for one in groups if one[0] == BASE]
    if same in groups:
        return same
    fixed = (BASE, "fixed")
    return known[0] if len(known) == 1 else fixed if fixed in groups else None
