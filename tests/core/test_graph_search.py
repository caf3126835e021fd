"""The graph search on real episodes that chose nothing; its rules are held in test_search.py."""

import numpy as np
import pytest

from mcnn_ray.core.codebook import learn_codebook
from mcnn_ray.core.graph_search import GraphSearch, link_nearest, link_successive, measure_search
from mcnn_ray.core.normalise import Standardiser


@pytest.fixture(scope="module")
def episodes(pen_demonstrations):
    """(N, D) standardised rows of five expert episodes, their offsets, and the sixth episode, held out."""
    stop = int(pen_demonstrations.offsets[5])
    standardise = Standardiser.fit(pen_demonstrations.observations_ND[:stop])
    obs_ND = standardise(pen_demonstrations.observations_ND)
    return obs_ND[:stop], pen_demonstrations.offsets[:6], obs_ND[stop:]


def test_links_to_the_nearest_find_on_a_fresh_episode_what_neural_gas_edges_alone_miss(episodes):
    obs_ND, offsets, fresh_TD = episodes
    book = learn_codebook(obs_ND, 0.4, seed=0)
    memories_MD = obs_ND[book.rows_M]
    links_E2 = np.concatenate(
        [book.edges_E2, link_successive(book.nearest_N, offsets), link_nearest(memories_MD, len(memories_MD) // 2)]
    )
    alone, linked = (
        measure_search(GraphSearch(memories_MD, edges_E2, depth=1), [fresh_TD])
        for edges_E2 in (book.edges_E2, links_E2)
    )
    assert alone.queries == linked.queries == 99
    assert linked.wrong_share <= 0.02 < alone.wrong_share
    assert 1 <= linked.mean_ratio < alone.mean_ratio


def test_memories_all_linked_are_searched_without_a_miss(episodes):
    obs_ND, _, fresh_TD = episodes
    memories_MD = obs_ND[::10]
    graph = GraphSearch(memories_MD, link_nearest(memories_MD, len(memories_MD) - 1), depth=1)
    found = measure_search(graph, [fresh_TD])
    assert (found.wrong_share, found.mean_ratio, found.largest_ratio) == (0.0, 1.0, 1.0)
