"""Tests of `mcnn_ray.core.shortening`; that shortened searches stay exact is held in test_search."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.search import MemorySearch
from mcnn_ray.core.shortening import Shortening, shorten


def principal_axes(obs):
    centred = obs.astype(np.float64) - obs.mean(0, dtype=np.float64)
    return np.ascontiguousarray(np.linalg.eigh(centred.T @ centred)[1][:, ::-1])


def low_rank(rng, rows, dim, rank, noise):
    """Rows near one plane of `rank` dimensions, the same in every call."""
    plane = np.random.default_rng(0).standard_normal((rank, dim))
    flat = rng.standard_normal((rows, rank)) @ plane
    return (flat + noise * rng.standard_normal((rows, dim))).astype(np.float32)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    dim=st.integers(2, 40),
    spread=st.sampled_from([1e-20, 1e-3, 1.0, 1e15]),
    far=st.sampled_from([0.0, 1.0, 1e3]),
    data=st.data(),
)
def test_no_distance_is_lengthened(seed, dim, spread, far, data):
    rng = np.random.default_rng(seed)
    obs = (spread * (far * rng.standard_normal(dim) + rng.standard_normal((30, dim)))).astype(np.float32)
    short = Shortening(obs, principal_axes(obs), data.draw(st.integers(1, dim - 1)))
    shortened = short.many(obs)
    assert shortened.shape == (30, short.length)
    true = np.linalg.norm(obs[:, None].astype(np.float64) - obs, axis=2)
    kept = np.linalg.norm(shortened[:, None] - shortened, axis=2)
    assert (kept <= true + 1e-12 * true.max()).all()


def test_one_observation_is_shortened_like_many():
    obs = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
    short = Shortening(obs, principal_axes(obs), 3)
    many, one = short.many(obs), np.empty(4)
    for row, expected in zip(obs, many, strict=True):
        short.one(row.astype(np.float64), one)
        np.testing.assert_allclose(one, expected, rtol=1e-12)


def test_many_memories_in_few_dimensions_are_searched_by_shortened_ranks_and_exactly():
    rng = np.random.default_rng(1)
    memories, queries = low_rank(rng, 50_000, 20, 6, 0.05), low_rank(rng, 200, 20, 6, 0.05)
    memories[7_000:7_010] = memories[20_000]
    queries[:50] = memories[rng.integers(50_000, size=50)]
    queries[50] = memories[20_000]
    queries[51:60] *= 1e4
    queries[60:100] += rng.standard_normal((40, 20)).astype(np.float32)  # off the plane, so that few are ruled out
    short = shorten(memories)
    assert short is not None
    assert short.length <= 8
    index, distance = MemorySearch(memories)(queries)
    expected, true = nearest_memory(torch.from_numpy(queries), torch.from_numpy(memories))
    np.testing.assert_array_equal(index, expected.numpy())
    np.testing.assert_array_equal(distance, true.numpy())
    assert index[50] == 7_000


def test_what_a_shortening_would_not_make_cheaper_is_left_as_it_is():
    rng = np.random.default_rng(0)
    assert shorten(low_rank(rng, 1_000, 20, 6, 0.05)) is None  # few
    assert shorten(rng.standard_normal((50_000, 20)).astype(np.float32)) is None  # spread in every direction
    assert shorten(np.ones((50_000, 20), dtype=np.float32)) is None  # no spread
    assert shorten(rng.standard_normal((50_000, 1)).astype(np.float32)) is None
