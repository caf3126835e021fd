import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.errors import ConfigError
from mcnn_ray.monitor import conformal_threshold

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
    with pytest.raises(ConfigError, match="8 held-out demonstrations are too few .* of 0.1: .* = 9 are needed"):
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
