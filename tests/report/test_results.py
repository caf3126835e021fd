"""Rows of a results table where episodes were lost."""

import io
import math
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

from mcnn_ray.member import make_member
from mcnn_ray.report.results import rows_to_csv, summarise
from mcnn_ray.report.tables import results_table
from mcnn_ray.rollout.episode import EpisodeRecord
from mcnn_ray.stats import mean_interval, rate_interval
from mcnn_ray.tasks.catalogue import KITCHEN_OBJECTS

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


DONE = (("kettle",), (), ("kettle", "top burner"))


def with_subtasks(found):
    names = ("kettle", "microwave", "top burner")
    return [
        replace(one, success=None, normalised_score=None, subtasks={name: name in done for name in names})
        for one, done in zip(found, DONE, strict=True)
    ]


def test_shares_of_subtasks_are_counted_by_number_and_by_name_over_starts():
    (row,) = summarise(MEMBERS, {name: with_subtasks(found) for name, found in WHOLE.items()}, {"a": 3, "b": 3})
    assert [share.mean for share in row.at_least] == pytest.approx([2 / 3, 1 / 3, 0])
    assert {name: share.mean for name, share in row.subtasks.items()} == pytest.approx(
        {"kettle": 2 / 3, "microwave": 0, "top burner": 1 / 3}
    )
    assert all(share.n == 6 for share in (*row.at_least, *row.subtasks.values()))
    # Both seeds meet the same three starts, so there are three observations, not six.
    assert row.at_least[0] == mean_interval([[1, 0, 1], [1, 0, 1]])
    assert (row.at_least[2].low, row.at_least[2].high) == pytest.approx((0, rate_interval(0, 3).high))
    values = row.metrics()
    assert (values["p1"], values["p3_high"]) == (row.at_least[0].mean, row.at_least[2].high)
    assert values["done_top_burner"] == pytest.approx(1 / 3)
    (table,) = pd.read_csv(io.StringIO(rows_to_csv([row]))).to_dict("records")
    assert {"p1", "p1_low", "p3_high", "done_kettle", "done_top_burner_low"} <= table.keys()


def test_narrow_terminal_cuts_neither_methods_nor_numbers():
    rows = summarise(MEMBERS, WHOLE, {"a": 3, "b": 3})
    console = Console(width=64)
    with console.capture() as capture:
        console.print(results_table(rows, "t"))
    shown = capture.get()
    assert "…" not in shown
    assert all(word in shown.split() for word in ("method", "lambda", "memories", "n", rows[0].member.method_label))


def test_lost_episodes_count_in_no_share():
    found = {"a": with_subtasks(WHOLE["a"]), "b": with_subtasks(WHOLE["b"])[:1]}
    (row,) = summarise(MEMBERS, found, {"a": 3, "b": 3})
    assert row.at_least[0].mean == pytest.approx(3 / 4)
    assert row.at_least[0].n == 4


def test_tables_of_seven_subtasks_fit_120_columns_and_others_have_none():
    names = list(KITCHEN_OBJECTS)
    done = [replace(one, subtasks=dict.fromkeys(names, True)) for one in with_subtasks(WHOLE["a"])]
    options = {"width": 32, "predicted": 4, "executed": 2, "denoising_steps": 20, "inference_steps": 5, "warmup": 100}
    member = make_member(
        method="mcnn+diff", lambda_=0.01, memory_fraction=0.025, seed=0, steps=1, learning_rate=0.0015, options=options
    )
    (row,) = summarise({"a": member}, {"a": done}, {"a": 3})
    console = Console(width=120)
    with console.capture() as capture:
        console.print(results_table([row, row], "t"))
    shown = capture.get()
    assert "…" not in shown
    assert all(len(line) <= 120 for line in shown.splitlines())
    assert all(word in shown.split() for name in names for word in name.split())
    assert all(f"p{count}" in shown.split() for count in range(1, 8))
    assert shown.split().count("100") == 2 * 14  # each with its interval below
    assert shown.split().count("100]") == 2 * 14
    (bare,) = summarise(MEMBERS, WHOLE, {"a": 3, "b": 3})
    assert not [name for name in bare.record() if name.startswith(("p1", "done_"))]
    with console.capture() as capture:
        console.print(results_table([bare], "t"))
    assert "p1" not in capture.get()


def test_shares_are_unknown_where_some_episodes_were_recorded_without_subtasks():
    found = {
        "a": with_subtasks(WHOLE["a"]),
        "b": [*with_subtasks(WHOLE["b"])[:2], replace(WHOLE["b"][2], subtasks=None)],
    }
    (row,) = summarise(MEMBERS, found, {"a": 3, "b": 3})
    assert (row.at_least, row.subtasks) == ((), {})
