import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.core.blend import beta_at, blend, sigma_beta, sigma_beta_slope

floats = st.floats(-50, 50, width=32)


def paper_sigma(x, beta):
    """Algorithm 2, line 3, as printed."""
    leaky = torch.nn.functional.leaky_relu((x + 1) / 2, beta)
    return 2 * (leaky - (1 - beta) * torch.relu((x - 1) / 2)) - 1


@given(st.lists(floats, min_size=1, max_size=20), st.floats(0, 1, width=32))
def test_sigma_beta_is_the_paper_s_formula(values, beta):
    x = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(sigma_beta(x, beta), paper_sigma(x, beta), atol=1e-9, rtol=1e-9)


@given(st.lists(floats.filter(lambda v: abs(abs(v) - 1) > 1e-3), min_size=1, max_size=20), st.floats(0, 1, width=32))
def test_slope_is_the_derivative_of_sigma_beta(values, beta):
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    paper_sigma(x, beta).sum().backward()
    torch.testing.assert_close(sigma_beta_slope(x.detach(), beta).double(), x.grad)


def test_beta_is_one_for_the_first_99_steps_and_zero_after():
    assert [beta_at(step) for step in (1, 99, 100, 101, 1_000_000)] == [1, 1, 0, 0, 0]


@given(st.lists(floats, min_size=3, max_size=3), st.lists(floats, min_size=3, max_size=3), st.floats(0.1, 5))
def test_blend_at_weight_one_is_the_memory_action_to_the_last_bit(action, output, bound):
    action = np.array([action], dtype=np.float32)
    network = sigma_beta(np.array([output], dtype=np.float32), 0.0)
    assert (blend(np.ones((1, 1), np.float32), action, network, bound) == action).all()


@given(st.floats(0, 1), st.floats(-1, 1), floats, st.floats(0.1, 5))
def test_blend_departs_from_the_weighted_memory_by_at_most_the_cone(weight, action, output, bound):
    network = sigma_beta(np.array([output]), 0.0)
    departure = blend(np.array([weight]), np.array([action]), network, bound) - weight * action
    assert abs(departure[0]) <= bound * (1 - weight) * (1 + 1e-12) + 1e-15 * (1 + abs(action))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_numpy_and_torch_share_one_definition(make):
    assert float(sigma_beta(make([3.0]), 0.5)[0]) == 2.0
    assert float(sigma_beta_slope(make([3.0]), 0.5)[0]) == 0.5
