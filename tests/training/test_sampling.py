import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mcnn_ray.training.sampling import sample_rows


def draw(seeds, first, steps, batch, counts):
    return sample_rows(torch.tensor(seeds), first, steps, batch, torch.tensor(counts))


@given(
    seed=st.integers(0, 2**63 - 1),
    first=st.integers(0, 10**7),
    steps=st.integers(1, 20),
    batch=st.integers(1, 300),
    count=st.integers(1, 2**31 - 1),
)
def test_rows_are_in_range_and_depend_on_seed_and_step_alone(seed, first, steps, batch, count):
    rows = draw([seed, 7], first, steps, batch, [count, 5])
    assert rows.shape == (steps, 2, batch)
    assert rows[:, 0].min() >= 0
    assert rows[:, 0].max() < count
    assert rows[:, 1].max() < 5
    alone = draw([seed], first + steps - 1, 1, batch, [count])
    assert torch.equal(rows[-1, 0], alone[0, 0])


def test_rows_are_uniform():
    counts = torch.bincount(draw([3], 0, 1000, 256, [100]).flatten(), minlength=100).numpy()
    assert stats.chisquare(counts).pvalue > 1e-3


def test_neighbouring_seeds_and_steps_are_independent():
    rows = draw([0, 1, 2], 0, 500, 256, [10, 10, 10])
    pairs = [
        (rows[:, 0], rows[:, 1]),
        (rows[:, 1], rows[:, 2]),
        (rows[1:, 0], rows[:-1, 0]),
        (rows[:, 0, 1:], rows[:, 0, :-1]),
    ]
    for first, second in pairs:
        table = np.histogram2d(first.flatten().numpy(), second.flatten().numpy(), bins=10)[0]
        assert stats.chi2_contingency(table).pvalue > 1e-3
