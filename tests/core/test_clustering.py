import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcnn_ray.core.clustering import k_center, k_means
from mcnn_ray.core.codebook import learn_codebook


def points(count, dim=2, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32))


def covering_radius(obs, rows):
    return float(torch.cdist(obs, obs[rows]).min(1).values.max())


@given(st.integers(0, 1000), st.integers(2, 4))
def test_k_center_covers_within_twice_the_best_possible_radius(seed, count):
    obs = points(12, seed=seed)
    best = min(covering_radius(obs, list(rows)) for rows in itertools.combinations(range(12), count))
    assert covering_radius(obs, k_center(obs, count, seed=seed)) <= 2 * best + 1e-5


def test_k_center_picks_distinct_rows_even_of_nearly_equal_points():
    obs = torch.full((50, 3), 100.0) + 1e-5 * points(50, 3)
    assert sorted(k_center(obs, 50, seed=0).tolist()) == list(range(50))


def test_k_means_settles_where_each_centre_is_the_mean_of_its_rows():
    obs = torch.cat([points(100) + 20, points(100, seed=1) - 20])
    centres = k_means(obs, 2, seed=0)
    expected = torch.stack([obs[:100].mean(0), obs[100:].mean(0)])
    torch.testing.assert_close(centres[centres[:, 0].argsort(descending=True)], expected, atol=1e-4, rtol=1e-4)


def test_k_means_keeps_centres_that_lose_all_rows():
    assert torch.isfinite(k_means(torch.zeros(10, 2), 5, seed=0)).all()


def test_methods_trade_mean_distance_for_the_most_isolated_one():
    obs = points(2000, 5).numpy()
    books = {
        method: learn_codebook(obs, 0.05, method=method) for method in ("neural-gas", "k-means", "k-center", "random")
    }
    isolated = {method: book.most_isolated_distance for method, book in books.items()}
    mean = {method: book.quantisation_error for method, book in books.items()}
    assert min(isolated, key=isolated.get) == "k-center"
    assert max(mean["neural-gas"], mean["k-means"]) < mean["random"]
