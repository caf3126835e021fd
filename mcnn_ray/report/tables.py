"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from mcnn_ray.report.results import Row
from mcnn_ray.stats import Interval

__all__ = ["results_table"]

_STOPPED = (
    "*: stopped early, below the row that led on the same starts (paired sign-flip test; 5 % over all looks and rows, "
    "Bonferroni); its mean leans low, since it was stopped while it was low"
)
_SHARES = "shares on which all episodes agree: Wilson over starts, since a bootstrap would be sure of them"


def results_table(rows: Sequence[Row], title: str, notes: Sequence[str] = ()) -> Group:
    """Return a sweep's rows as a table with 95 % intervals, and what was done of an environment's subtasks as others.

    Args:
        rows: of a sweep.
        title: above the table.
        notes: below it, on how its rows were chosen.
    """
    seeds = sorted({seed for row in rows for seed in row.seeds})
    first, last = min(row.episode_seeds[0] for row in rows), max(row.episode_seeds[1] for row in rows)
    notes = [*notes, *([_STOPPED] if any(row.stopped_early for row in rows) else [])]
    notes += [_SHARES] if any(row.at_least for row in rows) else []
    lite = sorted({name for row in rows for name in row.simulators if "lite server" in name})
    notes += [f"{name}: a simulator of this package, not CARLA; its returns compare with its own only" for name in lite]
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
    columns = [*(["score"] if scored else []), "return", *(["success %"] if succeeded else []), "n"]
    _add_columns(table, columns)
    for row in rows:
        cells = [
            *_setting(row),
            *([_interval(row.score, 1)] if scored else []),
            _interval(row.episode_return, 0 if abs(row.episode_return.mean) >= 100 else 2),
            *([_interval(row.success, 0, 100.0)] if succeeded else []),
            f"{row.episode_return.n}{'*' if row.stopped_early else ''}",
        ]
        table.add_row(*cells)
    return Group(table, *_share_tables(rows))


def _share_tables(rows: Sequence[Row]) -> Iterator[Table]:
    counts = [{f"p{count}": share for count, share in enumerate(row.at_least, 1)} for row in rows]
    for title, shares in (
        ("% of episodes with at least so many subtasks done", counts),
        ("% of episodes in which each was done", [row.subtasks for row in rows]),
    ):
        names = list(dict.fromkeys(name for found in shares for name in found))
        if names:
            yield _share_table(rows, shares, names, title)


def _share_table(rows: Sequence[Row], shares: Sequence[Mapping[str, Interval]], names: list[str], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    _add_columns(table, [name.replace(" ", "\n") for name in names])
    for row, found in zip(rows, shares, strict=True):
        # In two lines: seven of them beside the setting take less than a hundred columns.
        cells = [_interval(found.get(name), 0, 100.0).replace(" ", "\n", 1) for name in names]
        table.add_row(*_setting(row), *cells)
    return table


def _add_columns(table: Table, names: Sequence[str]) -> None:
    for name in ("method", "lambda", "memories", *names):
        if name == "method":
            table.add_column(name, overflow="fold")
        else:
            # In a narrow terminal the widest wraps first: a method's options, then intervals, and no number is cut.
            table.add_column(name, justify="right", no_wrap=name in ("lambda", "memories", "n"))


def _setting(row: Row) -> list[str]:
    member = row.member
    return [member.method_label, "" if member.lambda_ is None else f"{member.lambda_:g}", member.memory_label]


def _interval(value: Interval | None, digits: int, scale: float = 1.0) -> str:
    return "" if value is None else escape(value.text(digits, scale))
