"""One row a method over all tasks: interquartile mean, chance of improvement over plain cloning, median gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from mcnn_ray.report.aggregates import (
    Group,
    base_of,
    improvement_probability,
    interquartile_mean,
    median_percent_over,
    runs_of,
)
from mcnn_ray.report.comparison import setting_numbers
from mcnn_ray.report.published import D4RL_BC
from mcnn_ray.stats import Interval

__all__ = ["Aggregate", "aggregate", "counted", "group_label", "reference_returns", "statistics_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """A method in one setting, over tasks.

    Attributes:
        group: method and setting.
        tasks: that it ran on.
        iqm: interquartile mean of normalised scores; None where no task has scores.
        improvement: chance that a run beats one of plain cloning on the same task; None likewise, and without any.
        base: the plain cloning compared with; None without any.
        percent: median % by which it earns more than that; None without any.
    """

    group: Group
    tasks: tuple[str, ...]
    iqm: Interval | None
    improvement: Interval | None
    base: Group | None
    percent: Interval | None

    def record(self) -> dict[str, object]:
        """Return the row as values, one per column; None where there is none."""
        values: dict[str, object] = {"method": self.group[0], "setting": self.group[1], "tasks": len(self.tasks)}
        values["runs"] = None if self.iqm is None else self.iqm.n
        known = {"iqm": self.iqm, "improvement": self.improvement, "median_percent": self.percent}
        for name, found in known.items():
            ends = (None, None, None) if found is None else (found.mean, found.low, found.high)
            values |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        return values | {"compared_with": None if self.base is None else group_label(self.base)}


def aggregate(episodes: pd.DataFrame) -> list[Aggregate]:
    """Return a row for each (method, setting), in the order of the rollouts, but settings by the numbers in them.

    Args:
        episodes: as of `mcnn_ray.report.comparison.compare`.
    """
    scores, returns = runs_of(episodes, "score"), runs_of(episodes, "return")
    rows = []
    methods = list(dict.fromkeys(method for method, _ in returns))
    for group in sorted(returns, key=lambda one: (methods.index(one[0]), setting_numbers(one[1]))):
        runs = returns[group]
        base = base_of(group, returns)
        other = None if base is None or base == group else base
        rows.append(
            Aggregate(
                group=group,
                tasks=tuple(runs),
                iqm=interquartile_mean(scores[group]) if group in scores else None,
                improvement=improvement_probability(scores.get(group, {}), scores.get(other, {})) if other else None,
                base=other,
                percent=median_percent_over(runs, returns[other]) if other else None,
            )
        )
    return rows


def reference_returns(comparison: pd.DataFrame) -> Mapping[str, float]:
    """Return the published return of D4RL's behaviour cloning by task; empty where none is published."""
    rows = comparison[(comparison["method"] == D4RL_BC) & (comparison["metric"] == "return")]
    return {str(task): float(value) for task, value in zip(rows["task"], rows["paper_mean"], strict=True)}


def group_label(group: Group) -> str:
    """Return a method with its setting, which is left out where it is the paper's fixed one."""
    method, setting = group
    return method if setting in ("", "fixed") else f"{method} ({setting})"


def counted(number: int, noun: str) -> str:
    """Return a number with what it counts, as `1 run` or `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def statistics_lines(episodes: pd.DataFrame) -> list[str]:
    """Return a line for each (method, setting) with its interquartile mean and its chance of beating plain cloning."""
    rows = aggregate(episodes)
    width = max((len(group_label(row.group)) for row in rows), default=0)
    return [f"{group_label(row.group):{width}}  {_line(row)}" for row in rows]


def _line(row: Aggregate) -> str:
    if row.iqm is None:
        return "no normalised scores, so no interquartile mean"
    count = f"{counted(row.iqm.n, 'run')} on {counted(len(row.tasks), 'task')}"
    line = f"IQM {row.iqm.text(1)} of {count}"
    if row.improvement is None or row.base is None:
        return line
    return f"{line}; beats {group_label(row.base)} with probability {row.improvement.text(2)}"
