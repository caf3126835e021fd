"""Results as figures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mcnn_ray.artifacts import write_bytes
from mcnn_ray.report.results import Row
from mcnn_ray.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_score_figure"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: told apart by all


def save_score_figure(rows: Sequence[Row], task_id: str, path: Path) -> Path:
    """Draw scores against lambda: a line per memory fraction, a band per method without memories.

    Args:
        rows: of a sweep.
        task_id: for the title.
        path: PNG to write, whole or not at all.

    Returns:
        The path.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.4), layout="constrained")
    colours = iter(_COLOURS * (1 + len(rows)))
    with_memories = [row for row in rows if row.member.lambda_ is not None]
    for setting in dict.fromkeys(_setting(row) for row in with_memories):
        points = sorted(
            (row for row in with_memories if _setting(row) == setting), key=lambda row: row.member.lambda_ or 0
        )
        _draw_line(axes, points, setting, next(colours))
    for row in rows:
        if row.member.lambda_ is None:
            _draw_band(axes, row, next(colours))
    if with_memories:
        lambdas = sorted({row.member.lambda_ for row in with_memories if row.member.lambda_ is not None})
        if lambdas[0] > 0:
            axes.set_xscale("log")
        else:  # 0 has no logarithm; it gets a place a decade below the rest
            axes.set_xscale("symlog", linthresh=min([value for value in lambdas if value > 0], default=1.0))
        axes.set_xticks(lambdas, [f"{value:g}" for value in lambdas])
        axes.minorticks_off()
        axes.set_xlabel("lambda (per standardised unit of distance)")
    else:
        axes.set_xticks([])
    axes.margins(x=0.08)
    axes.set_ylabel(f"{_quantity(rows)}, 95 % interval")
    seeds = max(len(row.seeds) for row in rows)
    counts = sorted({row.episodes for row in rows})
    episodes = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    axes.set_title(f"{task_id}: {episodes} episodes for each of {seeds} training seed(s)")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="png")
    plt.close(figure)
    write_bytes(path, drawn.getvalue())
    return path


def _quantity(rows: Sequence[Row]) -> str:
    return "normalised score" if all(row.score is not None for row in rows) else "return"


def _value(row: Row) -> Interval:
    return row.score if row.score is not None else row.episode_return


def _setting(row: Row) -> str:
    member = row.member
    return f"{member.method_label}, memories: {member.memory_label}"


def _draw_line(axes: Axes, points: Sequence[Row], label: str, colour: str) -> None:
    values = [_value(row) for row in points]
    axes.errorbar(
        [row.member.lambda_ or 0.0 for row in points],
        [value.mean for value in values],
        yerr=[
            [v.mean - (v.mean if v.low is None else v.low) for v in values],
            [(v.mean if v.high is None else v.high) - v.mean for v in values],
        ],
        marker="o",
        capsize=3,
        color=colour,
        label=label,
    )


def _draw_band(axes: Axes, row: Row, colour: str) -> None:
    value = _value(row)
    axes.axhline(value.mean, color=colour, linestyle="--", label=row.member.method_label)
    if value.low is not None and value.high is not None:
        axes.axhspan(value.low, value.high, color=colour, alpha=0.12)
