"""What the commands share: common flags, progress on standard error, results alone on standard output."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from mcnn_ray.errors import McnnError

__all__ = [
    "DEFAULT_STORAGE",
    "AsJson",
    "StageProgress",
    "Storage",
    "TrustedBackbone",
    "TrustedModule",
    "error_console",
    "output_console",
    "print_facts",
    "print_json",
    "run_app",
]

Storage = Annotated[Path, typer.Option("--storage", help="Folder for sweeps, caches and the MLflow store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
TrustedBackbone = Annotated[
    str | None,
    typer.Option("--backbone", help="The class the policy was trained with, module.Class, if you trust that module."),
]
TrustedModule = Annotated[
    str | None,
    typer.Option("--trust-module", help="The module that the task's environment is imported from, if you trust it."),
]
DEFAULT_STORAGE = Path("runs")

_LINE_EVERY_S = 30.0

error_console = Console(stderr=True)
# What is piped into a file or another program is not cut to the width of a terminal that is not there.
output_console = Console(width=None if sys.stdout.isatty() else 140)


class _RateColumn(ProgressColumn):
    """What is done a second."""

    def render(self, task: Task) -> Text:
        """Return the rate of a stage, or nothing before it is known."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.{0 if speed >= 10 else 1}f}/s", style="dim")


class StageProgress:
    """Shows the stages of a command: a bar each in a terminal, elsewhere a line every 30 s, with rates and time left.

    Use as a context manager and call with a stage's name, what is done and what there is in all.
    """

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=error_console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, tuple[float, float]] = {}  # when, and what was done then
        self._printed: dict[str, float] = {}
        self._ended: set[str] = set()

    def __enter__(self) -> StageProgress:
        if error_console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_console.is_terminal:
            self._bars.stop()

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Show how far a stage is."""
        # A stage measured as a share, a float, is shown in percent.
        shown, whole = (round(100 * done), 100) if isinstance(total, float) else (round(done), round(total))
        if error_console.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=whole)
            self._bars.update(self._tasks[stage], completed=shown)
            return
        now = time.monotonic()
        ended = done >= total
        if (ended and stage not in self._ended) or now - self._printed.get(stage, -_LINE_EVERY_S) >= _LINE_EVERY_S:
            self._printed[stage] = now
            error_console.print(f"{stage}: {shown:,} of {whole:,}{self._pace(stage, shown, whole)}", highlight=False)
        if ended:
            self._ended.add(stage)

    def say(self, text: str) -> None:
        """Show a sentence once, above the bars."""
        error_console.print(text, highlight=False, markup=False, soft_wrap=not error_console.is_terminal)

    def _pace(self, stage: str, shown: float, whole: float) -> str:
        now = time.monotonic()
        since, done = self._started.setdefault(stage, (now, shown))
        if shown <= done or now - since < 1.0:
            return ""
        rate = (shown - done) / (now - since)
        left = f", {(whole - shown) / rate:,.0f} s left" if shown < whole else ""
        return f" ({rate:,.{0 if rate >= 10 else 1}f}/s{left})"


def run_app(app: typer.Typer, arguments: list[str], **options: Any) -> None:
    """Run a command line; faults end it with one sentence and status 1 or 2, or with their traceback under --debug.

    Args:
        app: whose commands are run.
        arguments: without the program's name.
        options: of the call, e.g. `obj` or `prog_name`.
    """
    debug = "--debug" in arguments
    try:
        app([part for part in arguments if part != "--debug"], **options)
    except McnnError as error:
        if debug:
            raise
        error_console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if debug:
            raise
        where = f" ({error.filename})" if error.filename else ""
        error_console.print(f"error: {error.strerror or error}{where}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


def print_facts(facts: dict[str, Any]) -> None:
    """Print names and values as an aligned table."""
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value))
    output_console.print(table)


def print_json(value: Any) -> None:
    """Print a JSON value as one line on standard output."""
    sys.stdout.write(json.dumps(value) + "\n")
