"""Panels, one a task, and how ours and the paper's values are drawn in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from mcnn_ray.methods import METHODS
from mcnn_ray.report.codebook_pictures import COLOURS
from mcnn_ray.report.comparison import is_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "GREY",
    "PAPER",
    "Row",
    "draw_band",
    "draw_errors",
    "draw_paper",
    "draw_points",
    "finish",
    "legend_below",
    "look",
    "task_panels",
    "unit",
]

GREY = "#8A8A8A"
_MORE_COLOURS = (*COLOURS, "#000000", "#7B4B2A", "#5B3A9E", "#808000", "#A05050")  # for methods beyond the sixth
PAPER = "the paper, ± its standard deviation"
Row = Any  # of `DataFrame.itertuples`, which has no type


def unit(metric: str) -> str:
    """Return what a metric is measured in, for an axis."""
    if is_rate(metric):
        return "share of episodes"
    return "normalised score" if metric == "score" else "return (sum of rewards)"


def look(method: str) -> dict[str, Any]:
    """Return a method's colour and marker, the same in every figure; grey where it is none of ours."""
    known = list(METHODS)
    if method not in known:
        return {"color": GREY, "marker": "o"}
    place = known.index(method)
    return {"color": _MORE_COLOURS[place % len(_MORE_COLOURS)], "marker": "osD"[place // len(COLOURS) % 3]}


def task_panels(
    rows: pd.DataFrame, title: str, note: str, *, height: float = 2.9, width: float = 4.0
) -> tuple[Figure, list[tuple[Axes, list[Row]]]]:
    """Return a figure with a panel for each task, and the rows of each.

    Args:
        rows: of a comparison.
        title: above all.
        note: below it, e.g. the budget.
        height: of a panel, inches.
        width: of a panel, inches.
    """
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(rows["task"]))
    columns = min(3, len(tasks)) if len(tasks) != 4 else 2
    lines = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(max(6.4, width * columns), 1.2 + height * lines), layout="constrained")
    panels = []
    for i, task in enumerate(tasks):
        axes = figure.add_subplot(lines, columns, i + 1)
        axes.set_title(task)
        panels.append((axes, list(rows[rows["task"] == task].itertuples())))
    figure.suptitle(f"{title}\n{note}" if note else title, fontsize=11, wrap=True)
    return figure, panels


def finish(figure: Figure, panels: Sequence[tuple[Axes, Sequence[Row]]], rows: pd.DataFrame) -> Figure:
    """Put the legend below all panels, with how many rollouts there are."""
    n = rows["n"].dropna()
    span = f"{n.min()}" if n.min() == n.max() else f"{n.min()} to {n.max()}"
    legend_below(figure, [axes for axes, _ in panels], f"ours: mean and 95 % interval of {span} rollouts")
    return figure


def legend_below(figure: Figure, panels: Sequence[Axes], title: str | None = None) -> None:
    """Put one legend below all panels, each thing in it once."""
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    options: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "title": title, "title_fontsize": 8.5}
    widest = max((len(label) for label in entries), default=1)
    columns = max(1, min(len(entries), int(13 * figure.get_figwidth() / (widest + 7))))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, **options)


def _errors(rows: Sequence[Row]) -> list[list[float]]:
    """Return how far intervals reach below and above; 0 where there is none."""
    ends = [(row.mean, row.low, row.high) for row in rows]
    known = [[0.0, 0.0] if pd.isna(low) or pd.isna(high) else [mean - low, high - mean] for mean, low, high in ends]
    return [[max(0.0, pair[side]) for pair in known] for side in (0, 1)]


def draw_errors(axes: Axes, places: Sequence[float], rows: Sequence[Row], style: Mapping[str, Any]) -> None:
    """Draw intervals alone, over bars."""
    axes.errorbar(places, [row.mean for row in rows], yerr=_errors(rows), fmt="none", capsize=2.5, **style)


def draw_points(
    axes: Axes,
    places: Sequence[float],
    rows: Sequence[Row],
    style: Mapping[str, Any],
    *,
    label: str = "ours",
    flat: bool = False,
) -> None:
    """Draw means with their intervals at places along the axis, or, where flat, with the values along it."""
    run = [(place, row) for place, row in zip(places, rows, strict=True) if not math.isnan(row.mean)]
    if not run:
        return
    at, values, reach = [place for place, _ in run], [row.mean for _, row in run], _errors([row for _, row in run])
    drawn = {"marker": "o", "markersize": 4.5, "linestyle": "" if flat else "-", "capsize": 2.5, **style}
    if flat:
        axes.errorbar(values, at, xerr=reach, label=label, **drawn)
    else:
        axes.errorbar(at, values, yerr=reach, label=label, **drawn)


def draw_paper(
    axes: Axes,
    places: Sequence[float],
    rows: Sequence[Row],
    style: Mapping[str, Any],
    *,
    label: str = PAPER,
    flat: bool = False,
) -> None:
    """Draw the paper's means, hollow, with its standard deviations where it has them."""
    told = [(place, row) for place, row in zip(places, rows, strict=True) if not pd.isna(row.paper_mean)]
    if not told:
        return
    at, values = [place for place, _ in told], [row.paper_mean for _, row in told]
    reach = [0.0 if pd.isna(row.paper_std) else row.paper_std for _, row in told]
    hollow = {"marker": "D", "markersize": 5.0, "markerfacecolor": "white"}
    drawn = {"linestyle": "", "linewidth": 1.0, **style, **hollow}
    if flat:
        axes.errorbar(values, at, xerr=reach, label=label, **drawn)
    else:
        axes.errorbar(at, values, yerr=reach, label=label, **drawn)


def draw_band(axes: Axes, row: Row, colour: str) -> None:
    """Draw a mean with its interval, and the paper's, across the whole panel."""
    if not math.isnan(row.mean):
        axes.axhline(row.mean, color=colour, linestyle="--", linewidth=1.2, label=f"{row.method}, ours")
        if not pd.isna(row.low):
            axes.axhspan(row.low, row.high, color=colour, alpha=0.12, linewidth=0)
    if not pd.isna(row.paper_mean):
        axes.axhline(row.paper_mean, color=colour, linestyle=":", linewidth=1.0, label=f"{row.method}, paper")
