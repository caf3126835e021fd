import numpy as np
import pytest

from mcnn_ray.stats import mean_interval, rate_interval


def test_wilson_interval_has_the_textbook_value():
    # Wilson score interval for 18 of 20 at 95 %.
    found = rate_interval(18, 20)
    assert (found.mean, found.n) == (0.9, 20)
    assert (found.low, found.high) == (pytest.approx(0.699, abs=1e-3), pytest.approx(0.972, abs=1e-3))


def test_bootstrap_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        found = mean_interval([rng.normal(3, 1, 30), rng.normal(5, 1, 30)])
        covered += found.low <= 4 <= found.high
    assert 0.90 <= covered / 300 <= 0.98


def test_strata_are_resampled_on_their_own():
    """Between two seeds that never vary there is nothing left to resample."""
    found = mean_interval([[1.0] * 20, [3.0] * 20])
    assert (found.mean, found.low, found.high, found.n) == (2.0, 2.0, 2.0, 40)


def test_equal_or_single_values_have_an_interval_of_no_width():
    assert mean_interval([[2.0, 2.0]]).low == mean_interval([[2.0]]).high == 2.0


def test_interval_repeats():
    values = [np.random.default_rng(0).normal(size=20)]
    assert mean_interval(values) == mean_interval(values)
