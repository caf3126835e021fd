"""Rows of a results table where episodes were lost."""

import math
from dataclasses import replace

import pytest
from rich.console import Console

from mcnn_ray.member import make_member
from mcnn_ray.report.results import summarise
from mcnn_ray.report.tables import results_table
from mcnn_ray.rollout.episode import EpisodeRecord

MEMBERS = {"a": make_member(method="bc", seed=0, steps=1), "b": make_member(method="bc", seed=1, steps=1)}


def record(member, seed, value):
    return EpisodeRecord(
        member=member,
        task="t",
        episode_seed=seed,
        episode_return=value,
        normalised_score=value / 10,
        success=value > 15,
        length=1,
        most_isolated_distance=None,
        mean_memory_weight=None,
        simulator="s",
        versions={},
        wall_s=1.0,
    )


WHOLE = {
    "a": [record("a", 0, 10.0), record("a", 1, 20.0), record("a", 2, 30.0)],
    "b": [record("b", 0, 10.0), record("b", 1, 20.0), record("b", 2, 30.0)],
}


def test_mean_is_that_of_the_episodes_that_could_be_run():
    (row,) = summarise(MEMBERS, {**WHOLE, "b": WHOLE["b"][1:]}, {"a": 3, "b": 3})
    assert (row.episode_return.mean, row.episode_return.n, row.lost) == (22.0, 5, 1)
    assert row.score is not None
    assert row.score.mean == pytest.approx(2.2)
    assert row.success is not None
    assert row.success.mean == 4 / 5
    assert row.record()["episodes_lost"] == 1
    assert row.episode_return.low < 22.0 < row.episode_return.high


def test_start_that_every_member_lost_counts_as_lost():
    (row,) = summarise(MEMBERS, {name: found[:2] for name, found in WHOLE.items()}, {"a": 3, "b": 3})
    assert (row.lost, row.episode_return.n, row.episodes) == (2, 4, 3)


def test_table_tells_lost_episodes_and_says_nothing_without():
    shown = {}
    for name, found in (("whole", WHOLE), ("lacking", {**WHOLE, "b": WHOLE["b"][1:]})):
        console = Console(width=200)
        with console.capture() as capture:
            console.print(results_table(summarise(MEMBERS, found, {"a": 3, "b": 3}), "t"))
        shown[name] = capture.get()
    assert "1 episode lost to processes that died or stalled, and not scored" in shown["lacking"]
    assert "lost" not in shown["whole"]


def test_environment_without_references_or_success_has_neither_column():
    bare = {name: [replace(one, normalised_score=None, success=None) for one in found] for name, found in WHOLE.items()}
    (row,) = summarise(MEMBERS, bare, {"a": 3, "b": 3})
    assert (row.score, row.success) == (None, None)
    assert not math.isnan(row.episode_return.mean)
