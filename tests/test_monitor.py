import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.errors import ConfigError
from mcnn_ray.monitor import conformal_threshold
from mcnn_ray.watching import measure_watch

scores = st.lists(st.floats(0, 100, width=16), min_size=1, max_size=40)


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=2, max_size=14), st.floats(0.05, 0.95))
def test_further_episode_is_flagged_at_most_as_often_as_promised_whichever_it_is(episodes, alpha):
    """Exchangeable: each of the n + 1 episodes is the further one equally often, so the mean over them is the rate."""
    arrays = [np.array(values, dtype=np.float64) for values in episodes]
    if len(arrays) - 1 < 1 / alpha - 1:
        return
    for per in ("episode", "step"):
        losses = []
        for out, further in enumerate(arrays):
            threshold = conformal_threshold([d for i, d in enumerate(arrays) if i != out], alpha, per)
            outside = further > threshold
            losses.append(outside.any() if per == "episode" else outside.mean())
        assert np.mean(losses) <= alpha + 1e-6


@given(scores, st.floats(0.02, 0.9))
def test_threshold_per_episode_is_the_conformal_quantile(values, alpha):
    n = len(values)
    if n < 1 / alpha - 1 + 1e-6:
        return
    place = math.ceil((n + 1) * (1 - alpha) - 1e-6)
    assert conformal_threshold([np.array([v]) for v in values], alpha) == sorted(values)[max(place, 1) - 1]


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1))
def test_false_alarm_rate_of_many_calibrations_is_between_alpha_and_what_few_demonstrations_lose(seed):
    """Distances of a distribution nobody told it: the rate is in [alpha - 1 / (n + 1), alpha]."""
    rng, n, alpha = np.random.default_rng(seed), 30, 0.1
    flagged = []
    for _ in range(200):
        drawn = [rng.gamma(1 + rng.random(), 1, rng.integers(3, 9)) for _ in range(n + 25)]
        threshold = conformal_threshold(drawn[:n], alpha)
        flagged.append(np.mean([d.max() > threshold for d in drawn[n:]]))
    error = 4 * np.std(flagged) / np.sqrt(len(flagged))
    assert alpha - 1 / (n + 1) - error < np.mean(flagged) < alpha + error


def test_too_few_demonstrations_for_alpha_are_refused_with_the_number_needed():
    with pytest.raises(ConfigError, match="8 held-out demonstrations are too few .* of 0.1: .*, 9, are needed"):
        conformal_threshold([np.array([1.0])] * 8, 0.1)
    assert conformal_threshold([np.array([float(i)]) for i in range(9)], 0.1) == 8.0
    with pytest.raises(ConfigError, match="alpha is 1.5"):
        conformal_threshold([np.array([1.0])], 1.5)


def test_more_of_a_flag_is_allowed_by_a_larger_alpha():
    rng = np.random.default_rng(0)
    drawn = [rng.random(10) for _ in range(50)]
    for per in ("episode", "step"):
        found = [conformal_threshold(drawn, alpha, per) for alpha in (0.02, 0.1, 0.5, 0.9)]
        assert found == sorted(found, reverse=True)
        assert found[0] > found[-1]
    assert conformal_threshold(drawn, 0.1, "step") < conformal_threshold(drawn, 0.1, "episode")


def test_flags_are_counted_by_outcome_and_their_lead_is_to_the_end():
    far, near = np.float32([0, 0, 2, 0, 0, 0, 0, 0, 0, 0]), np.float32([0] * 10)
    monitor = SimpleNamespace(threshold=1.0)
    rollouts = [(0, False, far), (1, False, near), (2, True, near), (3, True, near), (4, True, far[::-1])]
    found = measure_watch(monitor, 0.1, "episode", 99, [near, near, far], rollouts)
    assert (found.false_alarms.mean, found.false_alarms.n) == (pytest.approx(1 / 3), 3)
    assert (found.failures.mean, found.successes.mean) == (0.5, pytest.approx(1 / 3))
    assert (found.lead_steps.mean, found.lead_quartiles) == (8.0, (8.0, 8.0, 8.0))
    assert [one.first_flag for one in found.rollouts] == [2, None, None, None, 7]
    steps = measure_watch(monitor, 0.1, "step", 99, [near, near, far], rollouts)
    assert (steps.failures.mean, steps.false_alarms.mean) == (pytest.approx(0.05), pytest.approx(1 / 30))
    assert steps.likely_rates is None
    none = measure_watch(monitor, 0.1, "episode", 99, [], rollouts[2:4])
    assert (none.false_alarms, none.failures, none.lead_steps, none.successes.mean) == (None, None, None, 0.0)


def test_rates_of_calibrations_of_one_size_lie_where_they_are_said_to():
    rng, n, alpha = np.random.default_rng(0), 40, 0.1
    low, high = measure_watch(SimpleNamespace(threshold=1.0), alpha, "episode", n, [], []).likely_rates
    rates = [1 - conformal_threshold([rng.random(1) for _ in range(n)], alpha) for _ in range(3000)]
    assert np.percentile(rates, [5, 95]) == pytest.approx([low, high], abs=0.012)
