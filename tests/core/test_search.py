import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.core.batch_search import BatchSearch
from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.graph_search import GraphSearch, link_nearest, link_successive, measure_search
from mcnn_ray.core.search import MemorySearch, TreeSearch, make_search
from mcnn_ray.core.shortening import Shortening


def shortened(memories, *, measured_share=1.0):
    """`MemorySearch` by half of the principal components, as many memories are searched."""

    def half(memories):
        dim = memories.shape[1]
        if dim < 2:
            return None
        centred = memories.astype(np.float64) - memories.mean(0, dtype=np.float64)
        axes = np.linalg.eigh(centred.T @ centred)[1]
        return Shortening(memories, np.ascontiguousarray(axes[:, ::-1]), dim // 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcnn_ray.core.search.shorten", half)
        patch.setattr("mcnn_ray.core.search._MEASURED_SHARE", measured_share)
        patch.setattr("mcnn_ray.core.search._LARGEST_REST", np.inf)
        return MemorySearch(memories)


def shortened_in_vain(memories):
    """The same, but wherever more than one memory would have to be measured, all are ranked in full."""
    return shortened(memories, measured_share=0.0)


EXACT = (MemorySearch, shortened, shortened_in_vain, TreeSearch)


def many_at_once(memories):
    """`nearest_memory` in the form of the other searches."""
    return lambda obs: tuple(
        part.numpy() for part in nearest_memory(torch.from_numpy(obs), torch.from_numpy(np.ascontiguousarray(memories)))
    )


def in_batches(memories):
    """`BatchSearch` beside the search for single observations that a policy has."""
    return BatchSearch(make_search(memories))


EVERY = (*EXACT, in_batches, many_at_once)
NO_EDGES = np.empty((0, 2), dtype=np.int64)


def by_subtraction(obs, memories):
    """The plain definition, in float64."""
    squared = ((obs[:, None].astype(np.float64) - memories[None].astype(np.float64)) ** 2).sum(-1)
    index = squared.argmin(1)
    return index, np.sqrt(squared[np.arange(len(obs)), index])


@st.composite
def clouds(draw):
    """Points in tight clusters far from the origin, where a product loses most digits; or it under- or overflows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim = draw(st.integers(1, 50))
    memories = draw(st.integers(1, 60))
    centre = rng.standard_normal(dim) * draw(st.sampled_from([0.0, 1.0, 30.0, 1000.0]))
    spread = draw(st.sampled_from([1e-22, 1e-6, 1e-3, 1.0, 1e18, 3e19]))
    points = (centre + spread * rng.standard_normal((memories, dim))).astype(np.float32)
    queries = (centre + spread * rng.standard_normal((20, dim))).astype(np.float32)
    return np.concatenate([queries, points[rng.integers(memories, size=5)]]), points


@st.composite
def ties(draw):
    """Memories and queries on a coarse grid, so that many memories are equal and many equally near."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim = draw(st.integers(1, 4))
    memories = rng.integers(-2, 3, (draw(st.integers(1, 80)), dim)).astype(np.float32)
    return rng.integers(-6, 7, (20, dim)).astype(np.float32) / 2, memories


@st.composite
def graphs(draw):
    """Memories on a connected graph: a random tree, and some more edges."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 40))
    tree = [(int(rng.integers(node)), node) for node in range(1, count)]
    more = rng.integers(count, size=(draw(st.integers(0, 20)), 2))
    edges = np.concatenate([np.array(tree, dtype=np.int64).reshape(-1, 2), more])
    dim = draw(st.integers(1, 5))
    memories = rng.standard_normal((count, dim)).astype(np.float32)
    return rng.standard_normal((10, dim)).astype(np.float32), memories, edges, rng.integers(count, size=10)


@pytest.mark.parametrize("search", EVERY)
@settings(max_examples=150)
@given(clouds())
def test_exact_search_finds_the_true_nearest_memory_and_its_distance(search, cloud):
    queries, memories = cloud
    expected, distance = by_subtraction(queries, memories)
    found, measured = search(memories)(queries)
    assert (found.dtype, measured.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(measured, distance, rtol=1e-6)


@pytest.mark.parametrize("search", EVERY)
@settings(max_examples=50)
@given(clouds())
def test_distance_is_exactly_zero_at_every_memory(search, cloud):
    _, memories = cloud
    assert (search(memories)(memories)[1] == 0).all()


@pytest.mark.parametrize("search", EVERY)
@settings(max_examples=50)
@given(ties())
def test_ties_go_to_the_lowest_index(search, case):
    queries, memories = case
    np.testing.assert_array_equal(search(memories)(queries)[0], by_subtraction(queries, memories)[0])


@pytest.mark.parametrize("search", EVERY)
def test_ranks_that_overflow_do_not_hide_the_nearest(search):
    # |m|^2 of the first is beyond float32, so its rank is infinite, and that of the second is not.
    memories = np.array([[2e19, 0.0], [0.0, 1.1e19]], dtype=np.float32)
    assert search(memories)(np.array([[0.8e19, 0.0], [0.0, 0.0]], dtype=np.float32))[0].tolist() == [0, 1]


@pytest.mark.parametrize("search", EVERY)
def test_products_that_underflow_do_not_hide_the_nearest(search):
    memories = np.array([[3e-23], [1e-23], [2e-23]], dtype=np.float32)
    assert search(memories)(np.array([[1.1e-23], [4e-23]], dtype=np.float32))[0].tolist() == [1, 0]


@pytest.mark.parametrize("search", EVERY)
def test_many_equal_memories_give_the_first(search):
    index, distance = search(np.ones((10_000, 3), dtype=np.float32))(np.zeros((2, 3), dtype=np.float32))
    assert index.tolist() == [0, 0]
    np.testing.assert_allclose(distance, math.sqrt(3.0), rtol=1e-7)


@pytest.mark.parametrize("search", EXACT)
def test_observation_with_nan_has_distance_nan(search):
    index, distance = search(np.eye(3, dtype=np.float32))(np.array([[0.0, np.nan, 0.0]], dtype=np.float32))
    assert index.tolist() == [0]
    assert np.isnan(distance).all()


@pytest.mark.parametrize("search", EXACT)
def test_results_do_not_change_with_the_next_search(search):
    memories = np.eye(3, dtype=np.float32)
    found = search(memories)
    index, distance = found(memories)
    found(memories[::-1] * 2)
    assert index.tolist() == [0, 1, 2]
    assert distance.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("search", EXACT)
def test_no_queries_give_empty_results(search):
    index, distance = search(np.zeros((1, 3), dtype=np.float32))(np.empty((0, 3), dtype=np.float32))
    assert index.shape == distance.shape == (0,)


@pytest.mark.parametrize("search", EXACT)
def test_memories_or_observations_that_cannot_be_searched_are_refused(search):
    for shape in ((0, 3), (3,), (2, 0)):
        with pytest.raises(ValueError, match="memories of shape"):
            search(np.empty(shape, dtype=np.float32))
    with pytest.raises(ValueError, match="memory 1 holds NaN or infinity"):
        search(np.array([[0.0], [np.inf]], dtype=np.float32))
    for shape in ((3,), (1, 2), (1, 1, 3)):
        with pytest.raises(ValueError, match=r"observations of shape .* pass \(B, 3\)"):
            search(np.zeros((1, 3), dtype=np.float32))(np.zeros(shape, dtype=np.float32))


@pytest.mark.parametrize(
    ("count", "dim", "kind"), [(50, 2, MemorySearch), (60_000, 2, TreeSearch), (60_000, 20, MemorySearch)]
)
def test_search_is_chosen_by_size(count, dim, kind):
    memories = np.random.default_rng(0).standard_normal((count, dim)).astype(np.float32)
    search = make_search(memories)
    assert type(search) is kind
    np.testing.assert_array_equal(search(memories[:20])[0], np.arange(20))


@settings(max_examples=50)
@given(graphs())
def test_graph_search_deep_enough_finds_the_true_nearest(case):
    queries, memories, edges, starts = case
    found, distance = GraphSearch(memories, edges, depth=40)(queries, starts)
    expected, true_distance = by_subtraction(queries, memories)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(distance, true_distance, rtol=1e-6)


@settings(max_examples=100)
@given(graphs(), st.integers(1, 4))
def test_graph_search_ends_at_the_nearest_within_its_depth_and_no_farther_than_it_started(case, depth):
    queries, memories, edges, starts = case
    found, distance = GraphSearch(memories, edges, depth=depth)(queries, starts)
    squared = ((queries[:, None].astype(np.float64) - memories) ** 2).sum(-1)
    one = np.eye(len(memories), dtype=int)
    one[edges[:, 0], edges[:, 1]] = one[edges[:, 1], edges[:, 0]] = 1
    within = np.linalg.matrix_power(one, depth) > 0
    for query, (start, end) in enumerate(zip(starts, found, strict=True)):
        assert distance[query] == np.float32(np.sqrt(squared[query, end])) or np.isclose(
            distance[query], np.sqrt(squared[query, end]), rtol=1e-6
        )
        assert squared[query, end] <= squared[query, start] * (1 + 1e-12)
        assert squared[query, end] <= squared[query, within[end]].min() * (1 + 1e-12)


def test_graph_search_looks_no_farther_than_its_depth():
    # From 0 the way to the nearest, 3, leads over two memories that are farther away.
    memories = np.array([[1.0], [5.0], [6.0], [0.1]], dtype=np.float32)
    edges = np.array([[0, 1], [1, 2], [2, 3]])
    query, start = np.zeros((1, 1), dtype=np.float32), np.array([0])
    assert [GraphSearch(memories, edges, depth=d)(query, start)[0].tolist() for d in (1, 2, 3)] == [[0], [0], [3]]


def test_graph_search_moves_on_while_that_improves():
    memories = np.arange(50.0, dtype=np.float32)[:, None]
    edges = np.stack([np.arange(49), np.arange(1, 50)], 1)
    index, distance = GraphSearch(memories, edges, depth=1)(np.array([[42.25]], dtype=np.float32), np.array([3]))
    assert (index.tolist(), distance.tolist()) == ([42], [0.25])


def test_graph_search_without_a_memory_before_is_exact():
    rng = np.random.default_rng(0)
    memories, queries = rng.standard_normal((50, 3)).astype(np.float32), rng.standard_normal((4, 3)).astype(np.float32)
    graph = GraphSearch(memories, NO_EDGES, depth=1)
    expected = by_subtraction(queries, memories)[0]
    np.testing.assert_array_equal(graph(queries)[0], expected)
    np.testing.assert_array_equal(graph(queries, np.array([7, -1, 8, -1]))[0], [7, expected[1], 8, expected[3]])


def test_errors_are_counted_against_the_true_nearest():
    # No edge leads from the first two memories, so the search stays where each trajectory began.
    memories = np.array([[0.0], [1.0], [4.0]], dtype=np.float32)
    graph = GraphSearch(memories, NO_EDGES, depth=1)
    errors = measure_search(
        graph, [np.array([[0.0], [0.25], [0.8]], dtype=np.float32), np.array([[4.0], [3.0]], np.float32)]
    )
    assert errors.queries == 3
    assert errors.wrong_share == pytest.approx(1 / 3)
    assert errors.mean_ratio == pytest.approx((1.0 + 4.0 + 1.0) / 3)
    assert errors.largest_ratio == pytest.approx(4.0)


def test_missing_a_memory_that_is_met_exactly_is_an_infinite_ratio():
    memories = np.array([[0.0], [1.0]], dtype=np.float32)
    errors = measure_search(GraphSearch(memories, NO_EDGES, depth=1), [memories])
    assert (errors.wrong_share, errors.largest_ratio) == (1.0, math.inf)
    errors = measure_search(GraphSearch(memories, np.array([[0, 1]]), depth=1), [memories])
    assert (errors.wrong_share, errors.largest_ratio) == (0.0, 1.0)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.data())
def test_links_lead_to_the_nearest_others(seed, count, data):
    k = data.draw(st.integers(1, count - 1))
    memories = np.random.default_rng(seed).standard_normal((count, 6)).astype(np.float32)
    links = link_nearest(memories, k).reshape(count, k, 2)
    squared = ((memories[:, None].astype(np.float64) - memories) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    for memory, linked in enumerate(links):
        assert (linked[:, 0] == memory).all()
        np.testing.assert_array_equal(np.sort(linked[:, 1]), np.sort(squared[memory].argsort()[:k]))


def test_successive_links_stay_within_episodes():
    nearest, offsets = np.array([3, 3, 1, 2, 1, 3, 0]), np.array([0, 3, 5, 7])
    assert link_successive(nearest, offsets).tolist() == [[0, 3], [1, 2], [1, 3]]


def test_graphs_that_cannot_be_searched_are_refused():
    memories = np.zeros((3, 2), dtype=np.float32)
    for edges in (np.array([[0, 3]]), np.array([[-1, 0]]), np.array([0, 1])):
        with pytest.raises(ValueError, match="memory indices 0 to 2"):
            GraphSearch(memories, edges)
    with pytest.raises(ValueError, match="depth 0 is not at least 1"):
        GraphSearch(memories, NO_EDGES, depth=0)
    graph = GraphSearch(memories, NO_EDGES)
    with pytest.raises(ValueError, match="observations of shape"):
        graph(np.zeros((1, 3), dtype=np.float32), np.array([0]))
    with pytest.raises(ValueError, match="previous memories of shape"):
        graph(memories, np.array([0]))
    with pytest.raises(ValueError, match="previous memory 3 is neither"):
        graph(memories[:1], np.array([3]))
    with pytest.raises(ValueError, match="no trajectory has two observations"):
        measure_search(graph, [memories[:1]])
    for k in (0, 3):
        with pytest.raises(ValueError, match="3 memories allow 1 to 2"):
            link_nearest(memories, k)
    with pytest.raises(ValueError, match="episode offsets end with"):
        link_successive(np.array([0, 1]), np.array([0, 3]))


def test_neighbourhoods_too_large_to_list_are_refused(monkeypatch):
    monkeypatch.setattr("mcnn_ray.core.graph_search._LIST_ENTRIES", 10)
    with pytest.raises(ValueError, match="use a smaller depth or fewer edges"):
        GraphSearch(np.eye(5, dtype=np.float32), link_nearest(np.eye(5, dtype=np.float32), 4))
