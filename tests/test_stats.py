import numpy as np
import pytest

from mcnn_ray.stats import mean_interval, rate_interval, share_interval


def test_wilson_interval_has_the_textbook_value():
    # Wilson score interval for 18 of 20 at 95 %.
    found = rate_interval(18, 20)
    assert (found.mean, found.n) == (0.9, 20)
    assert (found.low, found.high) == (pytest.approx(0.699, abs=1e-3), pytest.approx(0.972, abs=1e-3))


def test_bootstrap_interval_covers_the_true_mean_about_as_often_as_it_says_though_starts_are_shared():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        starts = rng.normal(0, 1, 30)  # hard and easy starts are so for both training seeds
        covered += mean_interval([3 + starts + rng.normal(0, 0.2, 30), 5 + starts + rng.normal(0, 0.2, 30)]).covers(4)
    assert 0.90 <= covered / 300 <= 0.98


def test_single_start_tells_nothing_about_the_interval():
    found = mean_interval([[1.0], [3.0]])
    assert (found.mean, found.low, found.high, found.n) == (2.0, None, None, 2)
    assert not found.covers(2.0)
    assert found.text(1) == "2.0 [n/a]"


def test_interval_text_has_the_digits_and_scale_asked_for():
    assert rate_interval(18, 20).text(0, 100) == "90 [70, 97]"


def test_interval_repeats():
    values = [np.random.default_rng(0).normal(size=20)]
    assert mean_interval(values) == mean_interval(values)


def test_missing_cells_are_left_out_of_the_mean_and_a_start_without_any_is_no_start():
    nan = float("nan")
    found = mean_interval([[1.0, nan, 3.0], [5.0, nan, nan]])
    assert (found.mean, found.n) == (3.0, 3)
    assert mean_interval([[1.0, nan]]) == mean_interval([[1.0]])


def test_share_on_which_all_agree_is_not_taken_for_certain_and_others_are_bootstrapped_over_starts():
    nan = float("nan")
    none = share_interval(np.array([[0.0, 0.0, nan], [0.0, 0.0, nan]]))
    assert (none.mean, none.low, none.n) == (0, 0, 4)
    assert none.high == rate_interval(0, 2).high  # two starts, however many seeds met them
    assert share_interval(np.ones((2, 20))).low == rate_interval(20, 20).low
    some = np.array([[1.0, 0.0, 0.0, 1.0]])
    assert share_interval(some) == mean_interval(some)


def test_interval_text_has_no_negative_zero():
    assert mean_interval([[-0.01, 0.02]]).text(1) == "0.0 [0.0, 0.0]"
