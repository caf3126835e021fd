import re

import pytest
from rich.console import Console

from mcnn_ray import terminal
from mcnn_ray.terminal import StageProgress


@pytest.fixture
def lines(monkeypatch):
    """What is printed where standard error is no terminal, with a clock that the test moves."""
    console, clock = Console(width=200, record=True, quiet=False, force_terminal=False), [0.0]
    monkeypatch.setattr(terminal, "error_console", console)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])

    def at(seconds, *told):
        clock[0] = seconds
        progress(*told)
        return console.export_text().splitlines()

    with StageProgress() as progress:
        yield at


def test_first_and_last_are_told_and_between_them_a_line_every_30_s_with_rate_and_time_left(lines):
    assert lines(0.0, "training", 0, 1000) == ["training: 0 of 1,000"]
    assert lines(29.0, "training", 290, 1000) == []
    assert lines(40.0, "training", 400, 1000) == ["training: 400 of 1,000 (10/s, 60 s left)"]
    assert lines(60.0, "training", 600, 1000) == []
    assert lines(100.0, "training", 1000, 1000) == ["training: 1,000 of 1,000 (10/s)"]
    assert lines(101.0, "training", 1000, 1000) == []


def test_continued_stage_has_the_rate_of_this_start(lines):
    lines(0.0, "training", 900, 1000)
    assert lines(50.0, "training", 950, 1000) == ["training: 950 of 1,000 (1.0/s, 50 s left)"]


def test_share_is_shown_in_percent(lines):
    assert lines(0.0, "memories", 0.5, 1.0) == ["memories: 50 of 100"]


def test_bar_in_a_terminal_shows_the_rate(monkeypatch):
    console = Console(width=200, force_terminal=True, record=True)
    monkeypatch.setattr(terminal, "error_console", console)
    with StageProgress() as progress:
        progress("training", 0, 1000)
        progress.say("a plan")
        progress("training", 500, 1000)
        progress("training", 1000, 1000)
    shown = console.export_text()
    assert "a plan" in shown
    assert re.search(r"training .*1000/1000 .*/s", shown)
