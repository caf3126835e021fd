"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from mcnn_ray.report.results import Row
from mcnn_ray.stats import Interval

__all__ = ["results_table"]

_STOPPED = (
    "*: stopped early, below the row that led on the same starts (paired sign-flip test; 5 % over all looks and rows, "
    "Bonferroni); its mean leans low, since it was stopped while it was low"
)


def results_table(rows: Sequence[Row], title: str, notes: Sequence[str] = ()) -> Table:
    """Return a sweep's rows as a table with 95 % intervals.

    Args:
        rows: of a sweep.
        title: above the table.
        notes: below it, on how its rows were chosen.
    """
    seeds = sorted({seed for row in rows for seed in row.seeds})
    first, last = min(row.episode_seeds[0] for row in rows), max(row.episode_seeds[1] for row in rows)
    notes = [*notes, *([_STOPPED] if any(row.stopped_early for row in rows) else [])]
    if lost := sum(row.lost for row in rows):
        notes.append(f"{lost} episode{'s' if lost > 1 else ''} lost to processes that died or stalled, and not scored")
    table = Table(
        title=title,
        caption=(
            "\\[low, high]: 95 % intervals (bootstrap over episode starts; Wilson for success); "
            f"n: rollouts; training seeds {', '.join(map(str, seeds))}; episode seeds {first} to {last}"
            + "".join(f"\n{note}" for note in notes)
        ),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    scored = any(row.score is not None for row in rows)
    succeeded = any(row.success is not None for row in rows)
    columns = ["method", "lambda", "memories", *(["score"] if scored else []), "return"]
    columns += [*(["success %"] if succeeded else []), "n"]
    for name in columns:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in rows:
        member = row.member
        cells = [
            member.method_label,
            "" if member.lambda_ is None else f"{member.lambda_:g}",
            member.memory_label,
            *([_interval(row.score, 1)] if scored else []),
            _interval(row.episode_return, 0 if abs(row.episode_return.mean) >= 100 else 2),
            *([_interval(row.success, 0, 100.0)] if succeeded else []),
            f"{row.episode_return.n}{'*' if row.stopped_early else ''}",
        ]
        table.add_row(*cells)
    return table


def _interval(value: Interval | None, digits: int, scale: float = 1.0) -> str:
    return "" if value is None else escape(value.text(digits, scale))
