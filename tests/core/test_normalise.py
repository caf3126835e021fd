import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.core.normalise import ActionScale, Standardiser


def test_standardiser_divides_by_std_plus_a_thousandth():
    obs = np.array([[0.0, 5.0], [2.0, 7.0]], dtype=np.float32)
    np.testing.assert_allclose(Standardiser.fit(obs)(obs), np.array([[-1, -1], [1, 1]]) / 1.001, rtol=1e-6)


def test_constant_columns_are_ignored_even_when_they_change_later():
    obs = np.array([[0.0, 5.0], [2.0, 5.0]], dtype=np.float32)
    assert Standardiser.fit(obs)(np.array([[1.0, 6.0]]))[0, 1] == 0.0


def test_float64_observations_standardise_to_the_bits_of_float32_ones():
    obs = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    standardise = Standardiser.fit(obs)
    np.testing.assert_array_equal(standardise(obs.astype(np.float64)), standardise(obs))


@given(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2))
def test_bounds_of_one_leave_actions_unchanged_to_the_last_bit(values):
    ones = np.ones(2, dtype=np.float32)
    scale = ActionScale(low_A=-ones, high_A=ones)
    action = np.array([values], dtype=np.float32)
    np.testing.assert_array_equal(scale.to_unit(action), action)
    np.testing.assert_array_equal(scale.to_raw(action), action)


def test_bounds_map_to_minus_one_and_one():
    scale = ActionScale(low_A=np.array([-2.0, 0.0], np.float32), high_A=np.array([4.0, 1.0], np.float32))
    np.testing.assert_allclose(scale.to_unit(np.array([[-2.0, 1.0]], np.float32)), [[-1.0, 1.0]])
    np.testing.assert_allclose(scale.to_raw(np.array([[-1.0, 1.0]], np.float32)), [[-2.0, 1.0]])
