import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.core import neighbours as module
from mcnn_ray.core.neighbours import NeighbourSearch


def by_sorting(points_MD, obs_BD, count):
    """The definition: distances by subtraction in float64, the lower index first on ties."""
    difference_BMD = obs_BD[:, None].astype(np.float64) - points_MD[None]
    squared_BM = np.square(difference_BMD).sum(2)
    index_BK = np.argsort(squared_BM, axis=1, kind="stable")[:, :count]
    return index_BK, np.sqrt(np.take_along_axis(squared_BM, index_BK, 1)).astype(np.float32)


@given(
    seed=st.integers(0, 10_000),
    memories=st.integers(1, 400),
    dim=st.integers(1, 30),
    count=st.integers(1, 20),
    coarse=st.booleans(),
    offset=st.sampled_from([0.0, 1e3, 1e19]),
)
def test_neighbours_are_those_of_sorting_by_subtraction_ties_included(seed, memories, dim, count, coarse, offset):
    rng = np.random.default_rng(seed)
    points_MD = rng.standard_normal((memories, dim)) + offset
    points_MD = (np.round(points_MD) if coarse else points_MD).astype(np.float32)
    obs_BD = np.concatenate([points_MD[:2], (rng.standard_normal((3, dim)) + offset).astype(np.float32)])
    count = min(count, memories)
    index_BK, distance_BK = NeighbourSearch(points_MD, count)(obs_BD)
    expected_BK, expected_distance_BK = by_sorting(points_MD, obs_BD, count)
    if coarse or offset == 0.0:  # distances that differ in the last bit of float64 sums alone may change places
        np.testing.assert_array_equal(index_BK, expected_BK)
    np.testing.assert_allclose(distance_BK, expected_distance_BK, rtol=1e-6)
    assert (distance_BK[: min(2, memories), 0] == 0).all()


@pytest.mark.parametrize("far", [0.0, 30.0])
def test_shortened_products_find_the_same_neighbours(monkeypatch, far):
    """Most of the spread in a few directions, as in hand postures; observations near them, or far off in the others."""
    rng = np.random.default_rng(1)
    mixing_KD = rng.standard_normal((6, 40))
    points_MD = (rng.standard_normal((60_000, 6)) @ mixing_KD + 0.05 * rng.standard_normal((60_000, 40))).astype("f4")
    obs_BD = points_MD[::6_000] + (0.05 + far) * rng.standard_normal((10, 40)).astype(np.float32)
    found = NeighbourSearch(points_MD, 10)
    assert len(found._ranks) == 2
    monkeypatch.setattr(module, "shorten", lambda memories_MD: None)
    full = NeighbourSearch(points_MD, 10)
    for some, other in zip(found(obs_BD), full(obs_BD), strict=True):
        np.testing.assert_array_equal(some, other)


def test_more_neighbours_than_memories_are_refused():
    with pytest.raises(ValueError, match="3 neighbours asked of 2 memories"):
        NeighbourSearch(np.zeros((2, 4), dtype=np.float32), 3)
