"""Measured results beside published ones: what lies inside our interval, what does not, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from mcnn_ray.report.aggregates import starts_table
from mcnn_ray.stats import Interval, mean_interval, rate_interval, share_interval

__all__ = ["COLUMNS", "KEY", "compare", "is_rate", "setting_numbers"]

KEY = ("task", "method", "setting", "metric")
COLUMNS = (
    *KEY,
    "mean",
    "low",
    "high",
    "n",
    "training_seeds",
    "episode_seeds",
    "steps",
    "paper_mean",
    "paper_std",
    "difference",
    "inside",
    "source",
    "note",
    "missing",
    "command",
)
_AT_LEAST = re.compile(r"p[1-9]")  # share of episodes with at least so many subtasks done


def is_rate(metric: str) -> bool:
    """Tell whether a metric is a share of episodes, in [0, 1]."""
    return metric == "success" or _AT_LEAST.fullmatch(metric) is not None


def compare(episodes: pd.DataFrame, published: pd.DataFrame, missing: pd.DataFrame | None = None) -> pd.DataFrame:
    """Set each measured mean with its 95 % interval beside the published one.

    Intervals are those of `mcnn_ray.report.results`: a bootstrap over episode starts for returns, scores and shares of
    subtasks, Wilson's for success.

    Args:
        episodes: one row a rollout: task, method, setting, training_seed, episode_seed, steps, return, score (nan where
            no reference fits), success (None where it is not reported), and p1, p2, ... where subtasks are counted.
        published: task, method, setting, metric, mean, std, source, note.
        missing: task, method, setting, reason, command: what was not run, why, and what gets it.

    Returns:
        A row for each (task, method, setting, metric) that is measured, published or missing, in the order of
        `published`, then of the others, but settings by the numbers in them. `difference` is ours less the paper's.
        `inside` tells whether the paper's mean lies in our interval, and is NA without either.
    """
    ours = pd.DataFrame(list(_measured(episodes)), columns=[*KEY, *COLUMNS[4:11]])
    paper = published.rename(columns={"mean": "paper_mean", "std": "paper_std"})
    paper = paper[[*KEY, "paper_mean", "paper_std", "source", "note"]]
    lacking = _lacking(missing, ours, paper)
    order = [list(dict.fromkeys(pd.concat([paper[key], ours[key], lacking[key]]))) for key in KEY]
    table = paper.merge(ours, on=list(KEY), how="outer").merge(lacking, on=list(KEY), how="outer")
    order[2].sort(key=setting_numbers)
    for key, values in zip(KEY, order, strict=True):
        table[key] = pd.Categorical(table[key], values)
    table = table.sort_values(list(KEY), ignore_index=True).astype(dict.fromkeys(KEY, object))
    table["difference"] = table["mean"] - table["paper_mean"]
    low, high, value = table["low"].astype(float), table["high"].astype(float), table["paper_mean"]
    inside = ((low <= value) & (value <= high)).astype("boolean")
    table["inside"] = inside.mask(low.isna() | value.isna())
    words = ["source", "note", "missing", "command", "training_seeds", "episode_seeds", "steps"]
    table[words] = table[words].astype(object).where(table[words].notna(), "")
    table["n"] = table["n"].astype("Int64")
    return table[list(COLUMNS)]


def setting_numbers(setting: str) -> list[float]:
    """Return the numbers in a setting, by which settings are ordered."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", setting)]


def _measured(episodes: pd.DataFrame) -> Iterator[dict[str, Any]]:
    if episodes.empty:
        return
    shares = sorted(str(name) for name in episodes.columns if _AT_LEAST.fullmatch(str(name)))
    for key, rows in episodes.groupby(list(KEY[:3]), sort=False):
        seeds, starts, steps = (rows[name].unique() for name in ("training_seed", "episode_seed", "steps"))
        common = dict(zip(KEY, key, strict=False)) | {
            "training_seeds": ", ".join(str(seed) for seed in sorted(seeds)),
            "episode_seeds": _span(starts),
            "steps": str(int(steps[0])) if len(steps) == 1 else _span(steps),
        }
        for metric, found in _intervals(rows, shares):
            values = {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}
            yield {**common, "metric": metric, **values}


def _span(values: Any) -> str:
    return f"{int(min(values))} to {int(max(values))}"


def _intervals(rows: pd.DataFrame, shares: list[str]) -> Iterator[tuple[str, Interval]]:
    def over_starts(name: str, interval: Callable[..., Interval]) -> Interval:
        return interval(starts_table(rows, name))

    yield "return", over_starts("return", mean_interval)
    if rows["score"].notna().all():
        yield "score", over_starts("score", mean_interval)
    told = rows["success"].dropna() if "success" in rows else pd.Series(dtype=object)
    if len(told):
        yield "success", rate_interval(int(told.astype(bool).sum()), len(told))
    for name in shares:
        if rows[name].notna().any():
            yield name, over_starts(name, share_interval)


def _lacking(missing: pd.DataFrame | None, ours: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return what was not run by KEY, with the metrics that the paper has of it, else its return."""
    columns = [*KEY, "missing", "command"]
    if missing is None or missing.empty:
        return pd.DataFrame(columns=columns)
    rows = missing.rename(columns={"reason": "missing"}).drop_duplicates(list(KEY[:3]))
    run = pd.MultiIndex.from_frame(ours[list(KEY[:3])])
    rows = rows[~pd.MultiIndex.from_frame(rows[list(KEY[:3])]).isin(run)]
    rows = rows.merge(paper[list(KEY)], on=list(KEY[:3]), how="left")
    return rows.fillna({"metric": "return"})[columns]
