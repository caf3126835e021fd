"""What is special to many queries at once; that the nearest is always the true one is held in test_search."""

import numpy as np
import pytest
import torch

from mcnn_ray.core.distance import nearest_memory


def by_subtraction(obs, memories):
    """The plain definition, in float64."""
    squared = ((obs[:, None].astype(np.float64) - memories[None].astype(np.float64)) ** 2).sum(-1)
    index = squared.argmin(1)
    return index, np.sqrt(squared[np.arange(len(obs)), index])


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
