"""Ours beside the paper's: intervals, differences, what lies inside, what is missing."""

import numpy as np
import pandas as pd
import pytest

from mcnn_ray.report.comparison import COLUMNS, compare
from mcnn_ray.stats import mean_interval, rate_interval, share_interval
from tests.report.reports import METHODS, TASKS, lacking, paper, rollouts

NONE = paper().iloc[:0]


def row(table, **key):
    found = table
    for name, value in key.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


def published(mean, std=np.nan, task="pen-human-v1", method="bc", setting="fixed", metric="return", note=""):
    values = {"task": task, "method": method, "setting": setting, "metric": metric, "mean": mean, "std": std}
    return pd.DataFrame([{**values, "source": "Table 1", "note": note}])


def test_intervals_are_those_of_the_projects_tables_and_seeds_and_steps_are_told():
    episodes = rollouts(TASKS[:1], ("bc", "1nn"))
    table = compare(episodes, NONE)
    own = episodes[episodes["method"] == "bc"]
    for metric in ("return", "score"):
        cells = own.pivot(index="training_seed", columns="episode_seed", values=metric).to_numpy()
        expected, found = mean_interval(cells), row(table, method="bc", metric=metric)
        assert (found["mean"], found["low"], found["high"], found["n"]) == (
            expected.mean,
            expected.low,
            expected.high,
            40,
        )
    wilson, found = rate_interval(int(own["success"].sum()), 40), row(table, method="bc", metric="success")
    assert (found["mean"], found["low"], found["high"]) == (wilson.mean, wilson.low, wilson.high)
    assert (found["training_seeds"], found["episode_seeds"], found["steps"]) == ("0, 1", "1000000 to 1000019", "20000")
    assert row(table, method="1nn", metric="return")["steps"] == "0"
    assert tuple(table.columns) == COLUMNS


def test_difference_is_ours_less_the_papers_and_inside_says_whether_our_interval_has_its_mean():
    episodes = rollouts(TASKS[:1], ("bc",))
    ours = row(compare(episodes, NONE), metric="return")
    for value, inside in (
        (ours["low"], True),
        (ours["high"], True),
        (ours["low"] - 1e-6, False),
        (ours["high"] + 1, False),
    ):
        found = row(compare(episodes, published(value, 5.0)), metric="return")
        assert (found["inside"], found["paper_std"], found["source"]) == (inside, 5.0, "Table 1")
        assert found["difference"] == pytest.approx(ours["mean"] - value)
    unpublished = row(compare(episodes, published(1.0)), metric="score")
    assert pd.isna(unpublished["inside"])
    assert pd.isna(unpublished["difference"])


def test_single_start_says_nothing_of_inside():
    episodes = rollouts(TASKS[:1], ("bc",), starts=1)
    found = row(compare(episodes, published(row(compare(episodes, NONE), metric="return")["mean"])), metric="return")
    assert pd.isna(found["low"])
    assert pd.isna(found["inside"])
    assert found["difference"] == 0


def test_missing_row_says_why_and_the_command_in_each_metric_of_the_paper_until_it_is_run():
    reason = "D4RL/pen/human-v2 is not on this machine", "minari download D4RL/pen/human-v2"
    missing = lacking(("pen-human-v1", "bc", "fixed", *reason), ("hammer-human-v1", "bc", "fixed", *reason))
    table = compare(rollouts(TASKS[:1], ("1nn",)), paper(TASKS[:1], ("bc", "1nn")), missing)
    for metric in ("return", "score"):
        found = row(table, task="pen-human-v1", method="bc", metric=metric)
        assert (found["missing"], found["command"]) == reason
        assert pd.isna(found["mean"])
    assert row(table, task="hammer-human-v1")["metric"] == "return"  # of which the paper has nothing here
    run = compare(rollouts(TASKS[:1], ("bc",)), paper(TASKS[:1], ("bc",)), missing)
    assert (run.loc[run["task"] == "pen-human-v1", "missing"] == "").all()


def test_published_row_without_ours_stands_there_and_its_correction_too():
    found = compare(rollouts(TASKS[:1], ("1nn",)), published(969.0, method="d4rl-bc", note="corrected"))
    assert row(found, method="d4rl-bc")["note"] == "corrected"
    assert pd.isna(row(found, method="d4rl-bc")["mean"])


def test_shares_of_subtasks_are_those_of_the_projects_tables():
    episodes = rollouts(("kitchen-relay-v0",), ("bet",)).assign(score=np.nan, success=None)
    episodes["p1"] = 1.0
    episodes["p2"] = (episodes["return"] > episodes["return"].median()).astype(float)
    table = compare(episodes, published(0.99, task="kitchen-relay-v0", method="bet", metric="p1"))
    assert set(table["metric"]) == {"return", "p1", "p2"}
    for metric in ("p1", "p2"):
        cells = episodes.pivot(index="training_seed", columns="episode_seed", values=metric).to_numpy()
        expected, found = share_interval(cells), row(table, metric=metric)
        assert (found["low"], found["high"]) == (expected.low, expected.high)
    assert row(table, metric="p1")["inside"]


def test_rows_follow_the_papers_order_and_settings_their_numbers():
    settings = [f"memories={share}%" for share in (10, 2.5, 80)]
    table = compare(rollouts(TASKS, METHODS[-1:], settings), paper(TASKS[::-1], METHODS[-1:], settings[2:]))
    assert list(dict.fromkeys(table["task"])) == list(TASKS[::-1])
    ours = table[table["method"] == "mcnn+mlp"]
    assert list(dict.fromkeys(ours["setting"])) == [settings[1], settings[0], settings[2]]


def test_nothing_run_or_published_is_an_empty_table():
    empty = rollouts().iloc[:0]
    assert compare(empty, NONE).empty
    assert list(compare(pd.DataFrame(), NONE).columns) == list(COLUMNS)
    assert len(compare(empty, paper(), lacking())) == len(paper())
