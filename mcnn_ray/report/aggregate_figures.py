"""Figures over all tasks: gains over plain cloning, interquartile means, profiles; and learning curves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mcnn_ray.report.aggregate_table import aggregate, counted, group_label, reference_returns
from mcnn_ray.report.aggregates import Group, Runs, base_of, median_percent_over, performance_profile, runs_of
from mcnn_ray.report.codebook_pictures import BLUE, COLOURS, VERMILION
from mcnn_ray.report.panels import legend_below, look, unit
from mcnn_ray.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["aggregate_figure", "curves_figure", "iqm_figure", "profiles_figure"]

_KIND = re.compile(r"-(human|expert|cloned)-")
_THRESHOLDS = 101
# The fifth setting of a method has the first one's dash: with its marker, where lines have any.
_DASHES = ("-", "--", ":", "-.")
_MARKERS = (".", "s", "^", "D")


def aggregate_figure(comparison: pd.DataFrame, episodes: pd.DataFrame, note: str = "") -> Figure | None:
    """Draw the median gain over plain cloning, a panel for each kind of demonstrations.

    The gain is over D4RL's published cloning, as in the paper, on tasks where that is in the comparison; where it is on
    none, it is over our own.

    Args:
        comparison: of `mcnn_ray.report.comparison.compare`.
        episodes: that it was made of.
        note: below the title.

    Returns:
        The figure; None where nothing can be compared with cloning.
    """
    runs, published = runs_of(episodes, "return"), reference_returns(comparison)
    tasks = list(dict.fromkeys(task for own in runs.values() for task in own))
    reference = {task: published[task] for task in tasks if task in published}
    kinds: dict[str, list[str]] = {}
    for task in reference or tasks:
        found = _KIND.search(task)
        kinds.setdefault(found[1] if found else "other", []).append(task)
    panels = []
    for kind, members in kinds.items():
        rows = list(_gains(runs, comparison, members, reference))
        if rows:
            panels.append((f"{kind}: {', '.join(members)}", rows))
    if not panels:
        return None
    over = "D4RL's published cloning" if reference else "our plain cloning"
    height = 1.4 + sum(0.8 + 0.26 * len(rows) for _, rows in panels)
    figure, axes_of = _stack(len(panels), (8.0, height), f"Median gain in return over {over}, %", note)
    for axes, (title, rows) in zip(axes_of, panels, strict=True):
        axes.set_title(title, wrap=True)
        axes.barh(range(len(rows)), [ours.mean for _, ours, _ in rows], 0.7, color=BLUE, alpha=0.45)
        _draw_forest(axes, [label for label, _, _ in rows], [ours for _, ours, _ in rows])
        told = [(i, paper) for i, (_, _, paper) in enumerate(rows) if paper is not None]
        axes.plot(
            [paper for _, paper in told],
            [i for i, _ in told],
            "D",
            color=VERMILION,
            mfc="white",
            label="the paper, same tasks",
        )
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_xlabel(f"% over {over}, median over tasks")
    legend_below(figure, axes_of)
    return figure


def _gains(
    runs: Mapping[Group, Mapping[str, Runs]],
    comparison: pd.DataFrame,
    tasks: Sequence[str],
    reference: Mapping[str, float],
) -> list[tuple[str, Interval, float | None]]:
    """Return label, our gain and the paper's on the same tasks, for each method that can be compared."""
    rows = []
    for group, found in runs.items():
        own = {task: found[task] for task in tasks if task in found}
        base = base_of(group, runs)
        if not own or (not reference and base in (None, group)):
            continue
        over = reference if reference or base is None else runs[base]
        ours = median_percent_over(own, over)
        if ours is not None:
            label = f"{group_label(group)}  [{counted(len(own), 'task')}]"
            rows.append((label, ours, _paper_gain(comparison, group, list(own), reference)))
    return rows


def _paper_gain(
    comparison: pd.DataFrame, group: Group, tasks: Sequence[str], reference: Mapping[str, float]
) -> float | None:
    """Return the paper's median gain, where it has a return on each of the tasks."""
    chosen = (comparison["method"] == group[0]) & (comparison["setting"] == group[1])
    rows = comparison[chosen & (comparison["metric"] == "return") & comparison["task"].isin(tasks)]
    paper = dict(zip(rows["task"], rows["paper_mean"].astype(float), strict=True))
    if any(task not in reference or np.isnan(paper.get(task, np.nan)) for task in tasks):
        return None
    return float(np.median([100 * (paper[task] - reference[task]) / abs(reference[task]) for task in tasks]))


def iqm_figure(episodes: pd.DataFrame, note: str = "") -> Figure:
    """Draw interquartile means with their intervals, and beside, where there is any, the chances of beating cloning.

    Args:
        episodes: as of `mcnn_ray.report.comparison.compare`, with scores on some task.
        note: below the title.
    """
    rows = [row for row in aggregate(episodes) if row.iqm is not None]
    compared = any(row.improvement is not None for row in rows)
    columns = 2 if compared else 1
    size = (10.0 if compared else 6.4, 1.7 + 0.27 * len(rows))
    figure, panels = _stack(columns, size, "All tasks together", note, columns=columns)
    labels = [f"{group_label(row.group)}  [{counted(row.iqm.n, 'run')}]" for row in rows if row.iqm is not None]
    _draw_forest(panels[0], labels, [row.iqm for row in rows])
    panels[0].set_xlabel("interquartile mean of normalised scores")
    for right in panels[1:]:
        _draw_forest(right, labels, [row.improvement for row in rows])
        right.tick_params(labelleft=False)
        right.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
        right.set(xlabel="probability that a run beats one of bc", xlim=(-0.03, 1.03))
    legend_below(figure, panels[:1])
    return figure


def profiles_figure(episodes: pd.DataFrame, note: str = "") -> Figure:
    """Draw the share of runs above each score, with pointwise 95 % bands.

    Args:
        episodes: as of `mcnn_ray.report.comparison.compare`, with scores on some task.
        note: below the title.
    """
    groups = runs_of(episodes)
    values = np.concatenate([runs.observed_S for tasks in groups.values() for runs in tasks.values()])
    margin = 0.03 * float(np.ptp(values)) or 1.0
    thresholds_T = np.linspace(values.min() - margin, values.max() + margin, _THRESHOLDS)
    figure, (axes,) = _stack(1, (8.6, 4.6), "Performance profiles", note)
    styles = _line_styles(list(groups))
    for group, tasks in groups.items():
        profile = performance_profile(tasks, thresholds_T)
        runs = sum(len(one.observed_S) for one in tasks.values())
        label = f"{group_label(group)} [{counted(runs, 'run')}]"
        axes.plot(thresholds_T, profile.share_T, drawstyle="steps-post", label=label, **styles[group])
        band = {"color": styles[group]["color"], "alpha": 0.08, "linewidth": 0}
        axes.fill_between(thresholds_T, profile.low_T, profile.high_T, step="post", **band)
    axes.set(xlabel="normalised score τ", ylabel="share of runs with a score above τ", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False, fontsize=8.5)
    return figure


def curves_figure(curves: pd.DataFrame, note: str = "") -> Figure:
    """Draw learning curves, a panel a task: the mean over training seeds, each seed thin.

    Args:
        curves: task, method, setting, training_seed, step, and score or return.
        note: below the title.
    """
    tasks = list(dict.fromkeys(curves["task"]))
    columns = min(2, len(tasks))
    size = (5.0 * columns if columns > 1 else 7.0, 1.2 + 2.8 * -(-len(tasks) // columns))
    figure, panels = _stack(len(tasks), size, "Learning curves", note, columns=columns)
    for axes, task in zip(panels, tasks, strict=True):
        rows = curves[curves["task"] == task]
        metric = "score" if "score" in rows and rows["score"].notna().any() else "return"
        groups = list(dict.fromkeys(zip(rows["method"], rows["setting"], strict=True)))
        styles, places = _line_styles(groups), _settings(groups)
        for (method, setting), own in rows.groupby(["method", "setting"], sort=False):
            style = styles[method, setting]
            for _, seed in own.groupby("training_seed"):
                axes.plot(seed["step"], seed[metric], color=style["color"], linewidth=0.6, alpha=0.5)
            mean = own.groupby("step")[metric].mean()
            label = group_label((method, setting))
            marker = _MARKERS[places[method].index(setting) // len(_DASHES) % len(_MARKERS)]
            axes.plot(mean.index, mean, marker=marker, markersize=5.5, linewidth=1.9, label=label, **style)
        seeds = rows["training_seed"].nunique()
        axes.set_title(f"{task}, {counted(seeds, 'training seed')}")
        axes.set(xlabel="training steps", ylabel=unit(metric))
        axes.locator_params(axis="x", nbins=5)
        axes.grid(axis="y", alpha=0.3)
    legend_below(figure, panels)
    return figure


def _stack(count: int, size: tuple[float, float], title: str, note: str, columns: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    panels = [figure.add_subplot(-(-count // columns), columns, i + 1) for i in range(count)]
    figure.suptitle(f"{title}\n{note}" if note else title, fontsize=11, wrap=True)
    return figure, panels


def _line_styles(groups: Sequence[Group]) -> dict[Group, dict[str, Any]]:
    """Return each row's colour, its method's, and dash, its setting's; of one method settings have colours first."""
    if len({method for method, _ in groups}) == 1:
        colours = len(COLOURS)
        return {
            group: {"color": COLOURS[i % colours], "linestyle": _DASHES[i // colours % len(_DASHES)]}
            for i, group in enumerate(groups)
        }
    settings = _settings(groups)
    return {
        (method, setting): {
            "color": look(method)["color"],
            "linestyle": _DASHES[settings[method].index(setting) % len(_DASHES)],
        }
        for method, setting in groups
    }


def _settings(groups: Sequence[Group]) -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for method, setting in groups:
        settings.setdefault(method, []).append(setting)
    return settings


def _draw_forest(axes: Axes, labels: Sequence[str], values: Sequence[Interval | None]) -> None:
    """Draw a line for each label, with its mean and interval; none where there is no value."""
    known = [(i, value) for i, value in enumerate(values) if value is not None]
    reach = [
        [0.0 if v.low is None else max(0.0, v.mean - v.low) for _, v in known],
        [0.0 if v.high is None else max(0.0, v.high - v.mean) for _, v in known],
    ]
    means, places = [v.mean for _, v in known], [i for i, _ in known]
    axes.errorbar(
        means, places, xerr=reach, fmt="o", markersize=4.5, capsize=2.5, color=BLUE, label="ours, 95 % interval"
    )
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="both", alpha=0.25)
