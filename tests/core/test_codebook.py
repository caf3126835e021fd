import numpy as np
import pytest

from mcnn_ray.core.codebook import CODEBOOK_METHODS, learn_codebook, memory_count


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32)


@pytest.mark.parametrize("method", CODEBOOK_METHODS)
def test_codebook_has_exactly_the_asked_number_of_distinct_rows(points, method):
    book = learn_codebook(points, 0.1, method=method)
    assert len(book.rows_M) == 40
    assert len(np.unique(points[book.rows_M], axis=0)) == 40
    assert (np.diff(book.rows_M) > 0).all()


@pytest.mark.parametrize("method", CODEBOOK_METHODS)
def test_codebook_repeats_with_its_seed_and_differs_with_another(points, method):
    first, again, other = (learn_codebook(points, 0.1, method=method, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.rows_M, again.rows_M)
    assert first.rows_M.tolist() != other.rows_M.tolist()


def test_nearest_and_distances_are_those_of_the_memories(points):
    book = learn_codebook(points, 0.1)
    memories = points[book.rows_M]
    np.testing.assert_allclose(np.linalg.norm(points - memories[book.nearest_N], axis=1), book.distances_N, rtol=1e-5)
    assert (book.distances_N[book.rows_M] == 0).all()
    assert book.most_isolated_distance == book.distances_N.max()
    assert book.quantisation_error == pytest.approx(book.distances_N.mean())


def test_neural_gas_covers_better_than_random_memories(points):
    gas, random = learn_codebook(points, 0.1), learn_codebook(points, 0.1, method="random")
    assert gas.quantisation_error < random.quantisation_error
    assert len(gas.edges_E2) > 0


def test_repeated_observations_become_one_memory():
    points = np.repeat(np.arange(10, dtype=np.float32)[:, None], 5, axis=0)
    book = learn_codebook(points, 0.2, method="random")
    assert sorted(points[book.rows_M, 0].tolist()) == list(range(10))
    with pytest.raises(ValueError, match="only 10 of the 50 observations are distinct"):
        learn_codebook(points, 0.3)


def test_negative_zero_is_the_same_observation_as_zero():
    points = np.array([[0.0], [-0.0], [1.0], [2.0]], dtype=np.float32)
    with pytest.raises(ValueError, match="only 3 of the 4"):
        learn_codebook(points, 1.0, method="random")


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_fraction_outside_its_range_is_refused(fraction):
    with pytest.raises(ValueError, match=r"not in \(0, 1\]"):
        memory_count(100, fraction)


def test_fraction_of_less_than_one_memory_is_refused_with_the_least_that_works():
    with pytest.raises(ValueError, match="use at least 0.01"):
        memory_count(100, 0.005)


def test_fraction_is_not_spoiled_by_rounding():
    assert memory_count(30, 0.1) == 3
    assert memory_count(1000, 0.025) == 25
