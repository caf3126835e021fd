"""The paper's figures, a panel a task: ours with 95 % intervals, the paper's values beside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from mcnn_ray.report.aggregate_figures import aggregate_figure, curves_figure, iqm_figure, profiles_figure
from mcnn_ray.report.aggregate_table import group_label
from mcnn_ray.report.codebook_pictures import BLUE, COLOURS, STYLE, VERMILION
from mcnn_ray.report.panels import (
    GREY,
    Row,
    draw_band,
    draw_errors,
    draw_paper,
    draw_points,
    finish,
    look,
    task_panels,
    unit,
)
from mcnn_ray.report.published import D4RL_BC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CAPTIONS", "bars_figure", "figures_of", "levels_figure", "lines_figure", "subtasks_figure"]

_LABEL_SHARE = 0.11  # of an axis, that a label takes

CAPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "returns": "Mean return of every method on every task.",
        "scores": "Mean normalised score of every method on every task.",
        "subtasks": "Share of episodes with at least so many subtasks done.",
        "oversampling": "Return of plain cloning where memories are seen more often than other steps.",
        "demonstrations": "Return by number of demonstrations (the paper's Figure 1).",
        "memories": "Return by share of the demonstrated steps that are memories; bands: methods without that choice.",
        "lambda-memories": "Return by lambda and share of memories.",
        "neural-gas": "Return with memories picked by neural gas and at random.",
        "fixed-tuned": "Return with the same hyperparameters on all tasks, and with those chosen for each.",
        "aggregate": "Median over tasks of the return's gain over plain cloning, in %.",
        "iqm": "Interquartile mean of normalised scores over runs of all tasks, and the chance that a run beats one of "
        "plain cloning on the same task.",
        "profiles": "Share of runs above each normalised score, mean over tasks; bands: pointwise 95 % intervals.",
        "figure2": "The model class (the paper's Figure 2): what the memories say, what the network may add, and both.",
        "vary_memories": "The model class by the number of memories.",
        "vary_lambda": "The model class by lambda.",
        "vary_L": "The model class by L.",
        "curves": "On the way through training: means over training seeds, and each seed as a thin line.",
    }
)


def figures_of(
    name: str, comparison: pd.DataFrame, episodes: pd.DataFrame, curves: pd.DataFrame | None = None, note: str = ""
) -> dict[str, Figure]:
    """Return all figures of one of the paper's tables or figures that there are values for, by name.

    Args:
        name: as `mcnn reproduce` takes it.
        comparison: of `mcnn_ray.report.comparison.compare`.
        episodes: that it was made of.
        curves: task, method, setting, training_seed, step, and score or return, measured during training.
        note: below each title, e.g. the budget and the training steps.
    """
    import matplotlib

    run = comparison[comparison["mean"].notna()]
    if run.empty:
        return {}
    with matplotlib.rc_context(STYLE):
        figures = _task_figures(name, comparison[comparison["task"].isin(run["task"])], note)
        if name in ("returns", "aggregate", "fixed-tuned"):
            figures["aggregate"] = aggregate_figure(comparison, episodes, note)
            if episodes["score"].notna().any():
                figures["iqm"] = iqm_figure(episodes, note)
                figures["profiles"] = profiles_figure(episodes, note)
        if curves is not None and not curves.empty:
            figures["curves"] = curves_figure(curves, note)
    return {key: figure for key, figure in figures.items() if figure is not None}


def _task_figures(name: str, shown: pd.DataFrame, note: str) -> dict[str, Figure | None]:
    """Return what is drawn a panel a task."""
    bars = {
        "oversampling": "Memories seen more often",
        "lambda-memories": "Lambda and memories",
        "neural-gas": "Neural gas and random memories",
        "fixed-tuned": "Fixed and tuned hyperparameters",
    }
    lines = {"demonstrations": "demonstrations (episodes)", "memories": "memories (% of the demonstrated steps)"}
    if name in bars:
        return {name: bars_figure(shown, bars[name], note)}
    if name in lines:
        return {name: lines_figure(shown, name, lines[name], note)}
    if name == "kitchen":
        return {"subtasks": subtasks_figure(shown, note)}
    if name == "aggregate":
        return {}
    return {"returns": levels_figure(shown, "return", note), "scores": levels_figure(shown, "score", note)}


def levels_figure(comparison: pd.DataFrame, metric: str, note: str = "") -> Figure | None:
    """Draw every method's mean on every task: a panel a task, a line a method.

    Args:
        comparison: of `mcnn_ray.report.comparison.compare`.
        metric: `return`, `score`, `success` or `p1`, ...
        note: below the title.

    Returns:
        The figure; None where nothing of the metric was measured.
    """
    rows = _of_metric(comparison, metric)
    if rows["mean"].notna().sum() == 0:
        return None
    groups = list(dict.fromkeys(zip(rows["method"], rows["setting"], strict=True)))
    figure, panels = task_panels(rows, f"{metric.capitalize()} by method", note, height=0.9 + 0.27 * len(groups))
    for axes, found in panels:
        places = [groups.index((row.method, row.setting)) for row in found]
        draw_points(axes, [p - 0.13 for p in places], found, {"color": BLUE}, flat=True)
        draw_paper(axes, [p + 0.13 for p in places], found, {"color": VERMILION}, flat=True)
        axes.set_yticks(range(len(groups)), [group_label(group) for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.grid(axis="both", alpha=0.25)
        axes.set_xlabel(unit(metric))
    return finish(figure, panels, rows)


def lines_figure(comparison: pd.DataFrame, key: str, label: str, note: str = "") -> Figure | None:
    """Draw returns against a number in the setting, a panel a task; settings without it are drawn as bands.

    Args:
        comparison: of `mcnn_ray.report.comparison.compare`.
        key: of the setting, as in `demonstrations=25`; a percentage counts as its number.
        label: of the horizontal axis.
        note: below the title.

    Returns:
        The figure; None where nothing was measured.
    """
    rows = _of_metric(comparison, "return")
    if rows["mean"].notna().sum() == 0:
        return None
    figure, panels = task_panels(rows, f"Return by number of {key}", note)
    for axes, found in panels:
        at = {id(row): _number(row.setting, key) for row in found}
        for method in dict.fromkeys(row.method for row in found):
            own = [row for row in found if row.method == method]
            points = sorted((row for row in own if at[id(row)] is not None), key=lambda row: at[id(row)] or 0.0)
            places = [at[id(row)] or 0.0 for row in points]
            style = look(method)
            draw_points(axes, places, points, {**style, "linewidth": 1.6}, label=f"{method}, ours")
            draw_paper(axes, places, points, {**style, "linewidth": 1.0, "linestyle": ":"}, label=f"{method}, paper")
            for row in own:
                if at[id(row)] is None:
                    draw_band(axes, row, style["color"])
        ticks = sorted({place for place in at.values() if place is not None})
        axes.set_xscale("log")
        axes.set_xticks(ticks, _tick_labels(ticks))
        axes.minorticks_off()
        axes.tick_params(axis="x", labelsize=8.5)
        axes.grid(axis="y", alpha=0.3)
        axes.set(xlabel=label, ylabel=unit("return"))
    return finish(figure, panels, rows)


def bars_figure(comparison: pd.DataFrame, title: str, note: str = "") -> Figure | None:
    """Draw returns as bars grouped by the setting's first word, coloured by method and its second word.

    Args:
        comparison: of `mcnn_ray.report.comparison.compare`.
        title: above.
        note: below it.

    Returns:
        The figure; None where nothing was measured.
    """
    rows = _of_metric(comparison, "return")
    if rows["mean"].notna().sum() == 0:
        return None
    figure, panels = task_panels(rows, title, note)
    several = rows.loc[rows["method"] != D4RL_BC, "method"].nunique() > 1
    words = list(dict.fromkeys(_words(setting)[1] for setting in rows["setting"]))
    for axes, found in panels:
        bars = [row for row in found if row.method != D4RL_BC]
        groups = list(dict.fromkeys(_words(row.setting)[0] for row in bars))
        places, width = _bar_places(bars, groups)
        for place, row in zip(places, bars, strict=True):
            axes.bar(place, row.mean, 0.92 * width, alpha=0.75, **_bar_look(row, several, words))
        draw_errors(axes, places, bars, {"color": "#222222"})
        draw_paper(axes, places, bars, {"color": "#222222"})
        for row in found:
            if row.method == D4RL_BC:
                draw_band(axes, row, GREY)
        axes.axhline(0.0, color=GREY, linewidth=0.6)
        axes.set_xticks(range(len(groups)), [group.rpartition("=")[2] for group in groups])
        axes.grid(axis="y", alpha=0.3)
        axes.set(xlabel=groups[0].rpartition("=")[0], ylabel=unit("return"))
    return finish(figure, panels, rows)


def subtasks_figure(comparison: pd.DataFrame, note: str = "") -> Figure | None:
    """Draw the share of episodes with at least 1, 2, ... subtasks done, a panel a task, a line a method.

    Args:
        comparison: of `mcnn_ray.report.comparison.compare`, with metrics p1, p2, ...
        note: below the title.

    Returns:
        The figure; None where nothing was measured.
    """
    rows = comparison[comparison["metric"].str.fullmatch(r"p\d")]
    if rows["mean"].notna().sum() == 0:
        return None
    figure, panels = task_panels(rows, "Subtasks done", note, height=3.4, width=6.2)
    groups = list(dict.fromkeys(zip(rows["method"], rows["setting"], strict=True)))
    for axes, found in panels:
        for g, group in enumerate(groups):
            own = [row for row in found if (row.method, row.setting) == group]
            places = [int(row.metric[1:]) + 0.6 * ((g + 0.5) / len(groups) - 0.5) for row in own]
            style = {**look(group[0]), "linestyle": ""}
            draw_points(axes, places, own, style, label=f"{group_label(group)}, ours")
            draw_paper(axes, places, own, style, label=f"{group_label(group)}, paper")
        counts = sorted({int(row.metric[1:]) for row in found})
        axes.set_xticks(counts, [f"p{count}" for count in counts])
        axes.set(ylim=(-0.04, 1.06), ylabel="share of episodes", xlabel="at least so many subtasks")
        axes.grid(axis="y", alpha=0.3)
    return finish(figure, panels, rows)


def _tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the labels of a logarithmic axis, from the right on; none for those that would overlap the one after."""
    labels: list[str] = []
    after = inf
    for tick in reversed(ticks):
        fits = after / tick >= (ticks[-1] / ticks[0]) ** _LABEL_SHARE
        labels.insert(0, f"{tick:g}" if fits else "")
        after = tick if fits else after
    return labels


def _of_metric(comparison: pd.DataFrame, metric: str) -> pd.DataFrame:
    return comparison[comparison["metric"] == metric]


def _number(setting: str, key: str) -> float | None:
    """Return the number that a setting has under a key, as 10 of `memories=10%`; None without."""
    found = re.search(rf"(?:^| ){re.escape(key)}=([\d.]+)%?(?: |$)", setting)
    return float(found[1]) if found else None


def _words(setting: str) -> tuple[str, str]:
    first, _, rest = setting.partition(" ")
    return first, rest


def _bar_look(row: Row, several: bool, words: Sequence[str]) -> dict[str, Any]:
    """Return a bar's colour and name: the method's, or, where its setting has a second word, that word's."""
    rest = _words(row.setting)[1]
    if not rest:
        return {"color": look(row.method)["color"], "label": row.method}
    return {"color": COLOURS[words.index(rest) % len(COLOURS)], "label": f"{row.method} {rest}" if several else rest}


def _bar_places(rows: Sequence[Row], groups: Sequence[str]) -> tuple[list[float], float]:
    """Return where each row's bar stands, those of a group side by side about its number, and a bar's width."""
    members = {group: [row for row in rows if _words(row.setting)[0] == group] for group in groups}
    width = 0.8 / max(2, *(len(own) for own in members.values()))
    places = []
    for row in rows:
        group = _words(row.setting)[0]
        own = members[group]
        places.append(groups.index(group) + width * (own.index(row) - (len(own) - 1) / 2))
    return places, width
