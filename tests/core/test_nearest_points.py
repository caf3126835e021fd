"""Tests of `mcnn_ray.core.nearest_points`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.core.nearest_points import PointFinder


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 30),
    size=st.integers(1, 150),
    tile=st.integers(1, 200),
    chunk=st.integers(1, 400),
    coarse=st.booleans(),
    data=st.data(),
)
def test_the_nearest_points_are_found_in_order_whatever_the_tiles_and_chunks(
    seed, rows, size, tile, chunk, coarse, data
):
    generator = torch.Generator().manual_seed(seed)
    obs, points = torch.randn(rows, 3, generator=generator), torch.randn(size, 3, generator=generator)
    if coarse:  # so that many points are equal
        obs, points = obs.round(), points.round()
    k = data.draw(st.integers(1, size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcnn_ray.core.nearest_points._TILE_POINTS", tile)
        patch.setattr("mcnn_ray.core.nearest_points._CHUNK_ELEMENTS", chunk)
        index, square = PointFinder(obs.device)(obs, points, k)
    true = (obs[:, None].double() - points.double()).square().sum(2)
    assert index.shape == square.shape == (rows, k)
    assert index.dtype == torch.int64
    assert all(len(found.unique()) == k for found in index)
    torch.testing.assert_close(square.double(), true.sort(1).values[:, :k], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(true.gather(1, index), square.double(), atol=1e-4, rtol=1e-5)


def test_a_finder_serves_growing_sets_of_points():
    find, obs = PointFinder(torch.device("cpu")), torch.tensor([[0.2], [8.6]])
    for size in (2, 5, 10):
        points = torch.arange(float(size))[:, None]
        index, square = find(obs, points, 1)
        assert index[:, 0].tolist() == [0, size - 1]
        torch.testing.assert_close(square[:, 0], (obs[:, 0] - torch.tensor([0.0, size - 1.0])).square())
