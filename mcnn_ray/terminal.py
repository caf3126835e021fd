"""What people see while a command works: progress on standard error, so that standard output holds results alone."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["StageProgress", "error_console", "output_console"]

_LINE_EVERY_S = 15.0

error_console = Console(stderr=True)
# What is piped into a file or another program is not cut to the width of a terminal that is not there.
output_console = Console(width=None if sys.stdout.isatty() else 140)


class StageProgress:
    """Shows the stages of a command: a bar each in a terminal, a line now and then elsewhere.

    Use as a context manager and call with a stage's name, what is done and what there is in all.
    """

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=error_console,
        )
        self._tasks: dict[str, TaskID] = {}
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
        # A stage measured as a share is shown in percent.
        shown, whole = (round(100 * done), 100) if total == 1.0 else (round(done), round(total))
        if error_console.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=whole)
            self._bars.update(self._tasks[stage], completed=shown)
            return
        now = time.monotonic()
        ended = done >= total
        if (ended and stage not in self._ended) or now - self._printed.get(stage, -_LINE_EVERY_S) >= _LINE_EVERY_S:
            self._printed[stage] = now
            error_console.print(f"{stage}: {shown:,} of {whole:,}", highlight=False)
        if ended:
            self._ended.add(stage)
