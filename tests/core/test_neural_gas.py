"""Tests of `mcnn_ray.core.neural_gas`."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.neural_gas import grow_neural_gas, snap_to_rows
from tests.core.sequential_neural_gas import sequential_neural_gas

NO_EDGES = torch.zeros(0, 2, dtype=torch.long)


def normal(rows, dim, seed=0):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def distances(obs, rows):
    return nearest_memory(obs, obs[rows])[1]


def assert_valid_edges(edges, count):
    assert edges.dtype == torch.int64
    assert edges.shape[1:] == (2,)
    assert bool((edges[:, 0] < edges[:, 1]).all())
    assert bool(((edges >= 0) & (edges < count)).all())
    keys = edges[:, 0] * count + edges[:, 1]
    assert bool((keys.diff() > 0).all())


@st.composite
def datasets(draw):
    """Rows on a coarse grid, so that many repeat, or in general position; and a count."""
    rows, dim = draw(st.integers(1, 60)), draw(st.integers(1, 5))
    obs = normal(rows, dim, draw(st.integers(0, 99)))
    if draw(st.booleans()):
        obs = obs.round()
    return obs * draw(st.sampled_from([1e-3, 1.0, 1e3])) + draw(st.sampled_from([0.0, 50.0])), draw(
        st.integers(1, rows)
    )


@settings(max_examples=40, deadline=None)
@given(data=datasets(), seed=st.integers(0, 5), epochs=st.integers(1, 3), start=st.sampled_from([0.0, 0.025, 0.5, 1.0]))
def test_any_dataset_gives_exactly_count_finite_nodes_and_distinct_rows(data, seed, epochs, start):
    obs, count = data
    nodes, edges = grow_neural_gas(obs, count, seed=seed, epochs=epochs, start_fraction=start)
    assert nodes.shape == (count, obs.shape[1])
    assert nodes.dtype == torch.float32
    assert bool(torch.isfinite(nodes).all())
    assert_valid_edges(edges, count)
    rows, snapped = snap_to_rows(nodes, edges, obs)
    assert rows.dtype == torch.int64
    assert len(rows) == count
    assert bool((rows.diff() > 0).all())
    assert bool(((rows >= 0) & (rows < len(obs))).all())
    assert_valid_edges(snapped, count)
    assert len(snapped) == len(edges)


def test_a_seed_repeats_bit_for_bit_and_another_differs():
    obs = normal(700, 6)
    first, again, other = (grow_neural_gas(obs, 70, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_neither_the_observations_nor_the_ambient_seed_are_touched():
    obs = normal(100, 3)
    kept, state = obs.clone(), torch.get_rng_state()
    nodes, edges = grow_neural_gas(obs, 10, seed=0)
    snap_to_rows(nodes, edges, obs)
    assert torch.equal(obs, kept)
    assert torch.equal(torch.get_rng_state(), state)


def test_progress_rises_to_one():
    for epochs in (1, 2, 10):
        seen = []
        grow_neural_gas(normal(50, 2), 5, seed=0, epochs=epochs, progress=seen.append)
        assert seen == sorted(seen)
        assert seen[0] > 0.0
        assert seen[-1] == 1.0


def test_count_equal_to_rows_keeps_every_row():
    obs = normal(150, 4)
    rows, _ = snap_to_rows(*grow_neural_gas(obs, 150, seed=0), obs)
    assert torch.equal(rows, torch.arange(150))


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_equal_rows_give_nodes_at_that_row(count):
    obs = torch.full((40, 3), 7.25)
    nodes, edges = grow_neural_gas(obs, count, seed=0)
    assert torch.equal(nodes, obs[:count])
    assert torch.equal(snap_to_rows(nodes, edges, obs)[0].unique(), snap_to_rows(nodes, edges, obs)[0])


def test_one_node_ends_at_the_mean():
    obs = normal(500, 3) + 20.0
    nodes, edges = grow_neural_gas(obs, 1, seed=0)
    assert torch.allclose(nodes[0], obs.mean(0), atol=1e-4)
    assert len(edges) == 0


def test_two_nodes_find_two_clusters():
    obs = torch.cat([normal(200, 2), normal(100, 2, 1) + 50.0])
    nodes, _ = grow_neural_gas(obs, 2, seed=0)
    means = torch.stack([obs[:200].mean(0), obs[200:].mean(0)])
    assert torch.allclose(nodes[nodes[:, 0].argsort()], means, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_no_edge_joins_two_separated_clusters(seed):
    obs = torch.cat([normal(600, 2, seed), normal(300, 2, seed + 10) + 20.0])
    rows, edges = snap_to_rows(*grow_neural_gas(obs, 60, seed=seed), obs)
    side = rows[edges] < 600
    assert len(edges) >= 58
    assert bool((side[:, 0] == side[:, 1]).all())


@pytest.mark.parametrize("seed", range(3))
def test_edges_follow_a_ring(seed):
    angle = torch.rand(2000, generator=torch.Generator().manual_seed(seed)) * 2 * math.pi
    obs = torch.stack([angle.cos(), angle.sin()], 1)
    nodes, edges = grow_neural_gas(obs, 40, seed=seed)
    order = torch.atan2(nodes[:, 1], nodes[:, 0]).argsort()
    place = torch.empty_like(order)
    place[order] = torch.arange(40)
    step = (place[edges[:, 0]] - place[edges[:, 1]]).abs()
    assert bool(((step == 1) | (step == 39)).all())
    assert len(edges) == 40  # closed, nothing across


@pytest.mark.parametrize("seed", range(3))
def test_each_edge_has_an_observation_between_its_nodes(seed):
    obs = normal(800, 2, seed)
    nodes, edges = grow_neural_gas(obs, 80, seed=seed)
    length = (nodes[edges[:, 0]] - nodes[edges[:, 1]]).norm(dim=1)
    assert float(length.median()) < 0.5 * float(torch.cdist(nodes, nodes).median())
    touched = torch.zeros(80, dtype=torch.bool)
    touched[edges.flatten()] = True
    assert int(touched.sum()) >= 78


def toy(seed):
    """Rows of very unequal density: a dense blob, a thin arc, a few far points."""
    angle = torch.rand(500, generator=torch.Generator().manual_seed(seed)) * 3.0
    arc = 6.0 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * normal(500, 2, seed)
    return torch.cat([0.5 * normal(700, 2, seed + 1), arc, 10.0 + 2.0 * normal(20, 2, seed + 2)])


@pytest.mark.parametrize("seed", range(3))
def test_snapped_nodes_cover_better_than_random_rows(seed):
    obs = toy(seed)
    rows, _ = snap_to_rows(*grow_neural_gas(obs, 120, seed=seed), obs)
    random = [torch.randperm(len(obs), generator=torch.Generator().manual_seed(k))[:120] for k in range(5)]
    assert float(distances(obs, rows).mean()) < 0.9 * min(float(distances(obs, r).mean()) for r in random)
    assert float(distances(obs, rows).max()) < min(float(distances(obs, r).max()) for r in random)


@pytest.mark.parametrize("obs", [toy(0), normal(600, 8), normal(1000, 30) * torch.linspace(2.0, 0.1, 30)])
def test_quantisation_error_is_that_of_the_sequential_algorithm(obs):
    count = len(obs) // 10
    nodes, _ = sequential_neural_gas(obs.double().numpy(), count, seed=0)
    reference, _ = snap_to_rows(torch.from_numpy(nodes).float(), NO_EDGES, obs)
    rows, _ = snap_to_rows(*grow_neural_gas(obs, count, seed=0), obs)
    assert float(distances(obs, rows).mean()) <= 1.02 * float(distances(obs, reference).mean())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999), rows=st.integers(1, 15), extra=st.integers(0, 40), spread=st.sampled_from([0.0, 0.3, 3.0])
)
def test_snapping_gives_each_contested_row_to_the_closest_node(seed, rows, extra, spread):
    obs, nodes = normal(rows + extra, 3, seed), spread * normal(rows, 3, seed + 1)
    near, distance = nearest_memory(nodes, obs)
    for node in range(rows):
        edges = torch.tensor([[node, other] for other in range(rows) if other != node], dtype=torch.long).view(-1, 2)
        snapped, moved = snap_to_rows(nodes, edges, obs)
        assert len(snapped.unique()) == rows
        rivals = [k for k in range(rows) if k != node and near[k] == near[node] and distance[k] <= distance[node]]
        if rows > 2 and not rivals:  # the node's edges meet at the row it took
            position = int(torch.bincount(moved.flatten(), minlength=rows).argmax())
            assert int(snapped[position]) == int(near[node])


def test_nodes_on_rows_snap_to_themselves_and_edges_follow():
    obs = normal(50, 3)
    picked = torch.tensor([30, 4, 17])
    rows, edges = snap_to_rows(obs[picked], torch.tensor([[0, 1], [0, 2]]), obs)
    assert rows.tolist() == [4, 17, 30]
    assert edges.tolist() == [[0, 2], [1, 2]]


def test_a_contested_row_goes_to_the_closest_node_and_the_other_takes_the_next():
    obs = torch.tensor([[0.0], [1.0], [5.0]])
    rows, edges = snap_to_rows(torch.tensor([[0.4], [0.1], [0.3]]), torch.tensor([[0, 1]]), obs)
    assert rows.tolist() == [0, 1, 2]
    assert edges.tolist() == [[0, 1]]  # 0.1 has row 0; of the others 0.4 is closer to row 1; 0.3 is left row 2


def test_many_nodes_at_one_place_take_the_rows_around_it():
    obs = normal(300, 2)
    rows, _ = snap_to_rows(torch.zeros(100, 2), NO_EDGES, obs)
    assert set(rows.tolist()) == set(obs.norm(dim=1).argsort()[:100].tolist())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 0}, "0 memories"),
        ({"count": 11}, "11 memories cannot be learnt from 10"),
        ({"epochs": 0}, "at least 1 epoch"),
        ({"start_fraction": 1.5}, "start_fraction 1.5"),
        ({"obs_ND": torch.tensor([[0.0], [float("nan")]]), "count": 1}, "row 1 holds NaN"),
        ({"obs_ND": torch.tensor([[float("inf")]]), "count": 1}, "row 0 holds"),
        ({"obs_ND": torch.zeros(3), "count": 1}, r"shape \(3,\)"),
        ({"obs_ND": torch.zeros(0, 3), "count": 1}, r"shape \(0, 3\)"),
    ],
)
def test_errors_say_what_is_wrong(change, words):
    with pytest.raises(ValueError, match=words):
        grow_neural_gas(**{"obs_ND": normal(10, 2), "count": 5, "seed": 0, **change})


def test_snapping_more_nodes_than_rows_is_refused():
    with pytest.raises(ValueError, match="one each"):
        snap_to_rows(normal(4, 2), NO_EDGES, normal(3, 2))
