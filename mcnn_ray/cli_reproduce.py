"""`mcnn reproduce`: the paper's tables and figures, ours beside its numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from mcnn_ray.errors import ConfigError, McnnError, TrackingError, did_you_mean
from mcnn_ray.terminal import (
    DEFAULT_STORAGE,
    AsJson,
    StageProgress,
    Storage,
    error_console,
    output_console,
    print_json,
)

if TYPE_CHECKING:
    from mcnn_ray.reproduction.budgets import Budget
    from mcnn_ray.reproduction.runner import Reproduced

__all__ = ["reproduce"]

_ALL = "all"


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Table or figure; all runs them one by one; without it they are listed.")
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", help="smoke (minutes, to see that all works), standard or paper.")
    ] = "standard",
    tasks: Annotated[str | None, typer.Option("--tasks", help="Only these, with commas between.")] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="Only these, with commas between.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it will take, and stop.")] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of the paper, and set it beside the paper's numbers; the same command again continues.

    Example: mcnn reproduce returns --budget smoke --tasks door-expert-v1 --methods bc,mcnn+mlp
    """
    from mcnn_ray.reproduction.budgets import BUDGETS
    from mcnn_ray.reproduction.definitions import REPRODUCTIONS
    from mcnn_ray.reproduction.runner import check_choice

    if budget not in BUDGETS:
        raise ConfigError(f"--budget: unknown budget '{budget}'; {did_you_mean(budget, BUDGETS)}")
    spent, chosen_tasks, chosen_methods = BUDGETS[budget], _list(tasks), _list(methods)
    if name is None:
        _print_list(spent, storage, as_json)
        return
    names = list(REPRODUCTIONS) if name == _ALL else [name]
    if name == _ALL:  # those that have none of the tasks or methods asked for are left out
        names = [each for each in names if _concerned(each, chosen_tasks, chosen_methods)]
    for each in names:
        check_choice(each, chosen_tasks, chosen_methods)
    if plan:
        _print_plan(names, spent, storage, chosen_tasks, chosen_methods, as_json)
        return
    _run(names, spent, storage, chosen_tasks, chosen_methods, as_json)


def _list(given: str | None) -> list[str] | None:
    return None if given is None else [part.strip() for part in given.split(",") if part.strip()]


def _concerned(name: str, tasks: list[str] | None, methods: list[str] | None) -> bool:
    from mcnn_ray.reproduction.definitions import REPRODUCTIONS

    definition = REPRODUCTIONS[name]
    if not definition.tasks:
        return tasks is None and methods is None
    return (tasks is None or not set(tasks).isdisjoint(definition.tasks)) and (
        methods is None or not definition.methods.isdisjoint(methods)
    )


def _run(
    names: Sequence[str],
    budget: Budget,
    storage: Path,
    tasks: list[str] | None,
    methods: list[str] | None,
    as_json: bool,
) -> None:
    from mcnn_ray.reproduction.runner import reproduce as run

    done: list[Reproduced] = []
    for each in names:
        try:
            with StageProgress() as progress:
                progress.say(f"{each}: {budget.meaning}")
                done.append(run(each, budget, storage, tasks=tasks, methods=methods, watch=progress, say=progress.say))
        except KeyboardInterrupt:
            error_console.print(
                f"interrupted; the same command continues, and the report so far is in {storage / 'reproduce'}"
            )
            raise typer.Exit(130) from None
        if not as_json:
            _print_result(done[-1], budget)
    if as_json:
        print_json(
            [
                {
                    "name": found.name,
                    "budget": budget.name,
                    "report": str(found.page),
                    "run_id": found.run_id,
                    "rows": json.loads(found.comparison.to_json(orient="records")),
                }
                for found in done
            ]
        )
    if failures := {place: reason for found in done for place, reason in found.failures.items()}:
        (task, part), reason = next(iter(failures.items()))
        raise McnnError(f"{len(failures)} of the sweeps failed, the first {part} of {task}: {reason}")
    if unfiled := [reason for found in done for reason in found.unfiled]:
        raise TrackingError(f"the reports are written, but not all sweeps are filed: {unfiled[0]}")


def _print_result(found: Reproduced, budget: Budget) -> None:
    table = found.comparison
    run, missing = int(table["mean"].notna().sum()), table[table["missing"] != ""]
    if run:
        output_console.print(_comparison_table(found, budget))
    held = table["inside"].dropna()
    if len(table):
        output_console.print(
            f"{run} values measured, {len(held)} beside one of the paper's, {int(held.sum())} of those inside our "
            f"interval; {len(missing)} missing",
            highlight=False,
        )
    for (reason, command), rows in missing.groupby(["missing", "command"], sort=False):
        tasks = ", ".join(dict.fromkeys(rows["task"]))
        output_console.print(f"missing, {tasks}: {reason}; get it: {command}", highlight=False, soft_wrap=True)
    output_console.print(f"report: {found.page}", highlight=False, soft_wrap=True)


def _comparison_table(found: Reproduced, budget: Budget) -> Table:
    table = Table(
        title=f"{found.name}, {budget.meaning}",
        caption="\\[low, high]: 95 % intervals over episode starts; inside: whether the paper's mean lies there",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for column in ("task", "method", "setting", "metric", "ours", "paper", "difference", "inside"):
        right = column in ("ours", "paper", "difference")
        table.add_column(column, justify="right" if right else "left", no_wrap=right or column == "task")
    for row in found.comparison.to_dict("records"):
        if row["mean"] == row["mean"]:  # not nan
            table.add_row(*(str(row[key]) for key in ("task", "method", "setting", "metric")), *_cells(row))
    return table


def _cells(row: dict[Any, Any]) -> list[str]:
    digits = 0 if abs(row["mean"]) >= 100 else 2
    low, high = (
        f"{row[key]:,.{digits}f}" if row[key] == row[key] and row[key] is not None else "n/a" for key in ("low", "high")
    )
    cells = [f"{row['mean']:,.{digits}f} \\[{low}, {high}]"]
    for key in ("paper_mean", "difference"):
        cells.append(f"{row[key]:,.{digits}f}" if row[key] == row[key] else "")
    inside = row["inside"]
    return [*cells, {True: "yes", False: "no"}.get(inside, "") if isinstance(inside, bool) else ""]


def _print_list(budget: Budget, storage: Path, as_json: bool) -> None:
    from mcnn_ray.reproduction.outlook import overview

    rows = overview(budget, storage)
    if as_json:
        print_json(rows)
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=f"members to train and rollouts with --budget {budget.name}; mcnn reproduce NAME --plan says more",
        caption_justify="left",
    )
    for column in ("name", "in the paper", "tasks", "without data", "to train", "rollouts"):
        right = column not in ("name", "in the paper")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "in the paper")
    for row in rows:
        numbers = [f"{number:,}" for number in (row["tasks"], len(row["missing"]), row["members"], row["rollouts"])]
        table.add_row(row["name"], row["shows"], *numbers)
    output_console.print(table)
    for task, command in {task: command for row in rows for task, command in row["missing"].items()}.items():
        output_console.print(f"without data: {task}; get it: {command}", highlight=False, soft_wrap=True)


def _print_plan(
    names: Sequence[str],
    budget: Budget,
    storage: Path,
    tasks: list[str] | None,
    methods: list[str] | None,
    as_json: bool,
) -> None:
    from mcnn_ray.reproduction.outlook import look_ahead

    with StageProgress() as progress:
        found = look_ahead(names, budget, storage, tasks, methods, progress)
    if as_json:
        print_json({"budget": budget.name, **found})
        return
    title = f"{', '.join(names)}: {budget.meaning}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("task", "sweep", "demonstrations", "members", "to train", "steps each", "rollouts", "about"):
        right = column not in ("task", "sweep", "demonstrations")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "demonstrations")
    for row in found["sweeps"]:
        numbers = [f"{row[key]:,}" for key in ("members", "to_train")]
        state = "finished" if row["finished"] else row["about"]
        table.add_row(
            row["task"], row["sweep"], row["demonstrations"], *numbers, row["steps"], f"{row['rollouts']:,}", state
        )
    output_console.print(table)
    output_console.print(found["about"], highlight=False, soft_wrap=True)
    for task, lacking in found["missing"].items():
        output_console.print(
            f"missing, {task}: {lacking['reason']}; get it: {lacking['command']}", highlight=False, soft_wrap=True
        )
