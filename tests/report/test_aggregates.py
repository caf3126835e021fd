"""Measures over tasks: closed forms, brute force, and what must hold for any runs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mcnn_ray.report.aggregates import (
    base_of,
    improvement_probability,
    interquartile_mean,
    median_percent_over,
    performance_profile,
    runs_of,
    starts_table,
)
from mcnn_ray.stats import rate_interval
from tests.report.reports import METHODS, TASKS, rollouts


def from_tables(**tables):
    """Episodes of one method a keyword, `task__method` to its (S, E) scores."""
    rows = []
    for name, table in tables.items():
        task, method = name.split("__")
        for seed, values in enumerate(table):
            for start, value in enumerate(values):
                own = {"task": task, "method": method, "setting": "", "training_seed": seed, "episode_seed": start}
                rows.append({**own, "score": value, "return": value})
    return pd.DataFrame(rows)


def runs(method="bc", **tables):
    return runs_of(from_tables(**{f"{task}__{method}": table for task, table in tables.items()}))[method, ""]


scores = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=3)


def test_interquartile_mean_leaves_out_the_least_and_the_greatest_quarter_of_all_runs():
    found = interquartile_mean(runs(a=[[0, 0], [10, 12]], b=[[20, 22], [1000, 1000]]))
    assert (found.mean, found.n) == (16.0, 4)  # of 0, 11, 21, 1000


def test_interquartile_mean_of_fewer_than_four_runs_is_their_mean():
    assert interquartile_mean(runs(a=[[1, 3], [5, 7]], b=[[9, 9]])).mean == pytest.approx((2 + 6 + 9) / 3)


@settings(max_examples=25, deadline=None)
@given(scores, scores)
def test_aggregates_lie_within_the_runs_and_their_intervals_within_all_episodes(a, b):
    found = interquartile_mean(runs(a=a, b=b))
    means = [np.mean(row) for row in (*a, *b)]
    assert min(means) - 1e-6 <= found.mean <= max(means) + 1e-6
    assert np.min(a + b) - 1e-6 <= found.low <= found.high <= np.max(a + b) + 1e-6


@settings(max_examples=25, deadline=None)
@given(scores, scores)
def test_chance_of_improvement_and_of_the_reverse_sum_to_one_and_equal_methods_tie(a, b):
    forth, back = (improvement_probability(runs(a=x), runs(a=y)) for x, y in ((a, b), (b, a)))
    assert forth.mean + back.mean == pytest.approx(1)
    assert 0 <= forth.low <= forth.high <= 1
    assert improvement_probability(runs(a=a), runs(a=a)).mean == pytest.approx(0.5)


def test_chance_of_improvement_is_the_mann_whitney_statistic_over_the_pairs_and_a_mean_over_tasks():
    rng = np.random.default_rng(0)
    mine = {task: rng.integers(0, 6, (5, 4)).astype(float) for task in "ab"}
    base = {task: rng.integers(0, 6, (4, 4)).astype(float) for task in "ab"}
    expected = np.mean([stats.mannwhitneyu(mine[t].mean(1), base[t].mean(1)).statistic / 20 for t in "ab"])
    found = improvement_probability(runs(**mine), runs(**base))
    assert (found.mean, found.n) == (pytest.approx(expected), 10)


def test_chance_on_which_all_pairs_of_runs_agree_is_not_taken_for_certain():
    found = improvement_probability(runs(a=[[5, 6]] * 4), runs(a=[[1, 2]] * 3))
    assert (found.mean, found.low, found.high) == (1, rate_interval(4, 4).low, 1)


def test_methods_without_a_task_in_common_are_not_compared():
    assert improvement_probability(runs(a=[[1, 2]]), runs(b=[[1, 2]])) is None
    assert median_percent_over(runs(a=[[1, 2]]), {"b": 3.0}) is None


def test_profile_counts_runs_above_each_threshold_and_weighs_tasks_alike():
    profile = performance_profile(runs(a=[[0, 0], [2, 2]], b=[[4, 4]]), np.array([-1.0, 0.0, 1.0, 2.0, 4.0]))
    assert profile.share_T == pytest.approx([1, 0.75, 0.75, 0.5, 0])


@settings(max_examples=15, deadline=None)
@given(scores, scores)
def test_profile_and_its_bands_fall_from_one_to_nothing(a, b):
    profile = performance_profile(runs(a=a, b=b), np.linspace(-1001, 1001, 9))
    for shares in (profile.share_T, profile.low_T, profile.high_T):
        assert (np.diff(shares) <= 1e-12).all()
        assert (shares[0], shares[-1]) == (pytest.approx(1), 0)
    assert (profile.low_T <= profile.high_T).all()


def test_percent_over_is_of_the_absolute_value_so_that_more_is_better_where_returns_are_negative():
    mine = runs(a=[[-5, -5]], b=[[30, 30]], c=[[100, 100]])
    found = median_percent_over(mine, {"a": -10.0, "b": 20.0, "c": 400.0, "other": 1.0})
    assert found.mean == 50  # of 50, 50, -75
    assert median_percent_over(mine, runs(a=[[-10, -10]])).mean == 50


def test_starts_are_shared_so_a_constant_lead_on_hard_and_easy_starts_is_certain():
    starts = np.random.default_rng(0).normal(50, 30, (1, 20))
    found = median_percent_over(runs(a=starts), runs(a=starts))
    assert (found.mean, found.low, found.high) == (0, 0, 0)


def test_interval_of_resamples_is_that_of_drawing_seeds_and_starts_by_hand():
    rng = np.random.default_rng(1)
    tables = {task: 10 * t + rng.normal(0, 5, (4, 1)) + rng.normal(0, 9, (4, 12)) for t, task in enumerate("abc")}
    by_hand = []
    for _ in range(4000):
        values = []
        for table in tables.values():
            starts = rng.integers(12, size=12)
            values += [table[seed, starts].mean() for seed in rng.integers(4, size=4)]
        by_hand.append(np.sort(values)[3:9].mean())
    found = interquartile_mean(runs(**tables))
    width = np.ptp(np.percentile(by_hand, [2.5, 97.5]))
    assert (found.low, found.high) == pytest.approx(np.percentile(by_hand, [2.5, 97.5]), abs=0.06 * width)


def test_interval_covers_the_true_interquartile_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(60):
        tables = {task: rng.normal(0, 3, (8, 1)) + rng.normal(0, 9, (1, 20)) for task in "abcd"}
        covered += interquartile_mean(runs(**tables)).covers(0)
    assert 51 <= covered <= 60


def test_single_start_tells_nothing_about_an_interval():
    found = interquartile_mean(runs(a=[[1.0], [3.0]]))
    assert (found.mean, found.low, found.high) == (2, None, None)


def test_lost_episodes_are_left_out_of_a_run_and_a_start_met_twice_is_refused():
    episodes = from_tables(a__bc=[[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]).drop(index=[1])
    assert runs_of(episodes)["bc", ""]["a"].observed_S == pytest.approx([2, 6])
    assert np.isnan(starts_table(episodes, "score")[0, 1])
    with pytest.raises(ValueError, match="duplicate"):
        starts_table(pd.concat([episodes, episodes]), "score")


def test_tasks_without_scores_are_left_out_and_rows_of_others_do_not_move_an_interval():
    alone, both = rollouts(TASKS[:1], METHODS[:1]), rollouts(TASKS[:1], METHODS[:1])
    kitchen = rollouts(("kitchen-complete-v2",), METHODS[:2]).assign(score=np.nan)
    both = pd.concat([kitchen, both])
    assert list(runs_of(both)) == [("bc", "fixed")]
    assert interquartile_mean(runs_of(both)["bc", "fixed"]) == interquartile_mean(runs_of(alone)["bc", "fixed"])


def test_row_is_compared_with_cloning_of_its_own_setting_else_the_only_one():
    several = dict.fromkeys([("bc", "demonstrations=5"), ("bc", "demonstrations=10"), ("mcnn+mlp", "tuned")])
    assert base_of(("mcnn+mlp", "demonstrations=5"), several) == ("bc", "demonstrations=5")
    assert base_of(("mcnn+mlp", "tuned"), several) is None
    assert base_of(("mcnn+mlp", "tuned"), dict.fromkeys([("bc", "fixed")])) == ("bc", "fixed")
    assert base_of(("mcnn+mlp", "tuned"), {**several, ("bc", "fixed"): None}) == ("bc", "fixed")
