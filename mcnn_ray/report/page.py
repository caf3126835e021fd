"""A report as one HTML page that opens offline, with its numbers as CSV and its figures as files."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from mcnn_ray.artifacts import write_text
from mcnn_ray.report.aggregate_table import Aggregate, aggregate, counted, group_label
from mcnn_ray.report.codebook_pictures import save_figure
from mcnn_ray.report.paper_figures import CAPTIONS
from mcnn_ray.report.published import D4RL_BC
from mcnn_ray.stats import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_report"]

_SHARES = "shares"
_HEADINGS = {
    "return": "Return",
    "score": "Normalised score",
    "success": "Success rate",
    _SHARES: "Share of episodes with at least so many subtasks done",
}
_DIGITS = {"score": 1, "return": 2}
_WHOLE_FROM = 100.0  # returns of which decimals say nothing
_NOTHING = "–"


def write_report(
    folder: Path,
    title: str,
    comparison: pd.DataFrame,
    episodes: pd.DataFrame,
    curves: pd.DataFrame | None,
    figures: Mapping[str, Figure],
    labels: Mapping[str, str],
) -> Path:
    """Write a report; each file appears whole or not at all, the page last.

    Args:
        folder: to write into: `index.html`, which holds the figures and asks for nothing from outside,
            `comparison.csv`, `statistics.csv`, `curves.csv`, and `figures/NAME.svg` and `.png`.
        title: of the page.
        comparison: of `mcnn_ray.report.comparison.compare`.
        episodes: that it was made of.
        curves: task, method, setting, training_seed, step, and score or return; None or empty where there are none.
        figures: by name, of `mcnn_ray.report.paper_figures.figures_of`.
        labels: how it was made: budget, steps, seeds, machine, versions. A budget that says `smoke` is shown large.

    Returns:
        The page.
    """
    smoke = re.search(r"\bsmoke\b", labels.get("budget", ""), re.IGNORECASE) is not None
    rows = [] if episodes.empty else aggregate(episodes)
    statistics = pd.DataFrame([row.record() for row in rows])
    tables = {"comparison.csv": comparison, "statistics.csv": statistics, "curves.csv": curves}
    files = {name: table for name, table in tables.items() if table is not None and not table.empty}
    pictures = [_picture(folder / "figures", name, figure) for name, figure in figures.items()]
    for name, table in files.items():
        write_text(folder / name, table.to_csv(index=False))
    metrics = comparison["metric"].where(comparison["metric"].isin(list(_HEADINGS)), _SHARES)
    environment = Environment(
        loader=PackageLoader("mcnn_ray", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("report.html.j2").render(
        title=title,
        smoke=smoke,
        summary=_summary(comparison),
        labels=labels,
        statistics=[_statistics(row) for row in rows] if any(row.iqm for row in rows) else [],
        compared=any(row.base for row in rows),
        figures=pictures,
        tables=[_table(str(name), own) for name, own in comparison.groupby(metrics, sort=False)],
        files=list(files),
    )
    write_text(folder / "index.html", page)
    return folder / "index.html"


def _picture(folder: Path, name: str, figure: Figure) -> dict[str, str]:
    """Write a figure; as a data URI its ids meet no other figure's."""
    save_figure(figure, folder / name)
    data = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
    return {"name": name, "caption": CAPTIONS.get(name, name), "data": data}


def _statistics(row: Aggregate) -> dict[str, str]:
    return {
        "name": group_label(row.group),
        "tasks": str(len(row.tasks)),
        "runs": _NOTHING if row.iqm is None else str(row.iqm.n),
        "iqm": _text(row.iqm, 1),
        "improvement": _text(row.improvement, 2),
        "percent": _text(row.percent, 0),
    }


def _text(value: Interval | None, digits: int) -> str:
    return _NOTHING if value is None else value.text(digits)


def _summary(comparison: pd.DataFrame) -> list[str]:
    """Return how many values were measured, how many of the paper's lie inside our intervals, and what is missing."""
    known, run = comparison["inside"].notna(), comparison["mean"].notna()
    lines = []
    if known.any():
        inside = int(comparison["inside"].sum())
        lines.append(
            f"Of {counted(int(known.sum()), 'published value')} that we measured too, {inside} lie inside our 95 % "
            f"interval and {int(known.sum()) - inside} do not."
        )
    rows = comparison[~run & (comparison["method"] != D4RL_BC)].drop_duplicates(["task", "method", "setting"])
    lacking = rows[rows["missing"] != ""]
    if len(lacking):
        tasks = ", ".join(dict.fromkeys(lacking["task"]))
        lines.append(f"{counted(len(lacking), 'row')} of these tasks not run, each with the reason: {tasks}.")
    if waiting := len(rows) - len(lacking):
        lines.append(f"{counted(waiting, 'row')} not run yet.")
    return lines


def _table(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """Return a table of one metric, or of all shares of subtasks together."""
    notes: dict[str, int] = {}
    for note in rows["note"]:
        if note:
            notes.setdefault(note, len(notes) + 1)
    sources = ", ".join(dict.fromkeys(source for source in rows["source"] if source))
    method = "Wilson's" if name == "success" else "a bootstrap over episode starts, which all training seeds share"
    starts = ", ".join(dict.fromkeys(value for value in rows["episode_seeds"] if value))
    return {
        "heading": _HEADINGS[name],
        "shares": name == _SHARES,
        "tasks": [_task(str(task), name, own, notes) for task, own in rows.groupby("task", sort=False)],
        "notes": list(notes),
        "published": bool(rows["paper_mean"].notna().any()),
        "legend": f"Intervals: {method}; n: rollouts"
        + (f"; episode seeds {starts}" if starts else "")
        + (f". The paper's: {sources}." if sources else "."),
    }


def _task(task: str, name: str, rows: pd.DataFrame, notes: Mapping[str, int]) -> dict[str, Any]:
    """Return the rows of a task; what all of them miss is said once, above them."""
    lacking = rows[rows["mean"].isna() & (rows["method"] != D4RL_BC)]
    reasons = lacking[["missing", "command"]].drop_duplicates()
    shared = reasons.iloc[0] if len(reasons) == 1 and len(lacking) > 1 else None
    largest = float(np.nanmax(np.abs(rows[["mean", "paper_mean"]].to_numpy(dtype=float)), initial=0.0))
    digits = 0 if name == "return" and largest >= _WHOLE_FROM else _DIGITS.get(name, 2)
    ordered = rows.sort_values("metric", kind="stable")
    return {
        "name": task,
        "missing": "" if shared is None else shared["missing"],
        "command": "" if shared is None else shared["command"],
        "rows": [_row(row, digits, notes, said=shared is not None) for row in ordered.itertuples()],
    }


def _row(row: Any, digits: int, notes: Mapping[str, int], said: bool) -> dict[str, Any]:
    def number(value: float, sign: str = "") -> str:
        return _NOTHING if pd.isna(value) else f"{round(value, digits) + 0.0:{sign}.{digits}f}"  # no -0.0

    absent = ""
    if pd.isna(row.mean):
        absent = "published only" if row.method == D4RL_BC else _NOTHING if said and row.missing else row.missing
        absent = absent or "not run yet"
    return {
        "method": row.method,
        "metric": row.metric,
        "setting": row.setting,
        "mark": notes.get(row.note, ""),
        "absent": absent,
        "command": "" if said else row.command,
        "mean": number(row.mean),
        "interval": _NOTHING if pd.isna(row.low) else f"[{number(row.low)}, {number(row.high)}]",
        "n": "" if pd.isna(row.n) else row.n,
        "training_seeds": row.training_seeds,
        "steps": f"{int(row.steps):,}" if row.steps.isdecimal() else row.steps,
        "paper_mean": number(row.paper_mean),
        "paper_std": number(row.paper_std),
        "difference": number(row.difference, "+"),
        "inside": "" if pd.isna(row.inside) else "yes" if row.inside else "no",
    }
