import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcnn_ray.core.distance import MemorySearch, nearest_memory


def by_subtraction(obs, memories):
    """The plain definition, in float64."""
    squared = ((obs[:, None].astype(np.float64) - memories[None].astype(np.float64)) ** 2).sum(-1)
    index = squared.argmin(1)
    return index, np.sqrt(squared[np.arange(len(obs)), index])


@st.composite
def clouds(draw):
    """Points in tight clusters far from the origin: where a matrix product loses most digits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim = draw(st.integers(1, 50))
    memories = draw(st.integers(1, 60))
    centre = rng.standard_normal(dim) * draw(st.sampled_from([0.0, 1.0, 30.0, 1000.0]))
    spread = draw(st.sampled_from([1e-6, 1e-3, 1.0]))
    points = (centre + spread * rng.standard_normal((memories, dim))).astype(np.float32)
    queries = (centre + spread * rng.standard_normal((20, dim))).astype(np.float32)
    return np.concatenate([queries, points[rng.integers(memories, size=5)]]), points


@settings(max_examples=150)
@given(clouds())
def test_both_searches_find_the_true_nearest_memory_and_its_distance(cloud):
    queries, memories = cloud
    expected, distance = by_subtraction(queries, memories)
    for found, measured in (
        MemorySearch(memories)(queries),
        (part.numpy() for part in nearest_memory(torch.from_numpy(queries), torch.from_numpy(memories))),
    ):
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(measured, distance, rtol=1e-6)


@settings(max_examples=50)
@given(clouds())
def test_distance_is_exactly_zero_at_every_memory(cloud):
    _, memories = cloud
    _, numpy_distance = MemorySearch(memories)(memories)
    _, torch_distance = nearest_memory(torch.from_numpy(memories), torch.from_numpy(memories))
    assert (numpy_distance == 0).all()
    assert (torch_distance == 0).all()


def test_ties_go_to_the_lowest_index():
    memories = np.array([[1.0], [-1.0], [1.0], [3.0]], dtype=np.float32)
    queries = np.array([[0.0], [1.0], [2.0]], dtype=np.float32)
    assert MemorySearch(memories)(queries)[0].tolist() == [0, 0, 0]
    assert nearest_memory(torch.from_numpy(queries), torch.from_numpy(memories))[0].tolist() == [0, 0, 0]


def test_overflowing_queries_still_find_a_memory():
    memories = np.array([[1e19, 0.0], [0.0, 1e19]], dtype=np.float32)
    assert MemorySearch(memories)(np.array([[2e19, 1e19]], dtype=np.float32))[0].tolist() == [0]


def test_many_equal_memories_are_searched_in_bounded_memory():
    memories = torch.zeros(3000, 4)
    index, distance = nearest_memory(torch.zeros(300, 4), memories)
    assert (index == 0).all()
    assert (distance == 0).all()


def test_reduced_matmul_precision_still_finds_the_true_nearest():
    rng = np.random.default_rng(0)
    memories = rng.standard_normal((500, 40)).astype(np.float32)
    queries = memories[:100] + np.float32(1e-4) * rng.standard_normal((100, 40)).astype(np.float32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found, _ = nearest_memory(torch.from_numpy(queries), torch.from_numpy(memories))
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(found.numpy(), by_subtraction(queries, memories)[0])


def test_no_queries_give_empty_results():
    index, distance = nearest_memory(torch.empty(0, 3), torch.zeros(1, 3))
    assert index.shape == distance.shape == (0,)


def test_no_memories_are_refused():
    with pytest.raises(ValueError, match="memories of shape"):
        nearest_memory(torch.zeros(1, 3), torch.empty(0, 3))
