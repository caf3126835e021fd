"""The pictures of the model class show the real one: its exact bounds, and members inside them."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.image import imread

from mcnn_ray.report import function_class
from mcnn_ray.report.codebook_pictures import BLUE
from mcnn_ray.report.function_class import ModelClass, random_networks, save_function_class

NAMES = ("figure2", "vary_memories", "vary_lambda", "vary_L")


def make_model(seed=0, memories=5, dim=1, lambda_=1.0, L=1.0):
    rng = np.random.default_rng(seed)
    return ModelClass(
        memories_MD=rng.standard_normal((memories, dim)).astype(np.float32),
        actions_M=rng.uniform(-1, 1, memories).astype(np.float32),
        lambda_=lambda_,
        L=L,
    )


def test_region_is_the_memory_part_plus_minus_the_network_bound():
    model = make_model(dim=3, lambda_=0.7, L=1.3)
    obs_BD = np.random.default_rng(1).standard_normal((200, 3)).astype(np.float32)
    distance_BM = np.linalg.norm(obs_BD[:, None].astype(float) - model.memories_MD[None], axis=2)
    weight_B, action_B = np.exp(-0.7 * distance_BM.min(1)), model.actions_M[distance_BM.argmin(1)]
    half_B = 1.3 * (1 - weight_B)
    for found_B, expected_B in zip(
        (*model.bounds(obs_BD), *model.network_bounds(obs_BD)),
        (weight_B * action_B - half_B, weight_B * action_B + half_B, -half_B, half_B),
        strict=True,
    ):
        np.testing.assert_allclose(found_B, expected_B, atol=2e-6)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**16),
    lambda_=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 10.0, 1e3]),
    L=st.sampled_from([0.1, 0.5, 1.0, 1.5]),
    scale=st.sampled_from([0.3, 1.0, 100.0]),
)
def test_no_network_leaves_the_region_by_a_single_bit(seed, lambda_, L, scale):
    model = make_model(seed, lambda_=lambda_, L=L)
    rng = np.random.default_rng(seed)
    obs_BD = np.concatenate([rng.standard_normal((60, 1)).astype(np.float32), model.memories_MD])
    outputs_KB = (scale * rng.standard_normal((20, len(obs_BD)))).astype(np.float32)
    for (low_B, high_B), values_KB in (
        (model.bounds(obs_BD), model.members(obs_BD, outputs_KB)),
        (model.network_bounds(obs_BD), model.network_parts(obs_BD, outputs_KB)),
    ):
        assert (low_B <= values_KB).all()
        assert (values_KB <= high_B).all()


def test_region_is_reached_by_the_networks_that_are_always_1_or_minus_1():
    model = make_model(L=1.5)
    obs_BD = np.linspace(-3, 3, 101, dtype=np.float32)[:, None]
    outputs_KB = np.repeat(np.float32([[-1], [1]]), len(obs_BD), axis=1)
    np.testing.assert_array_equal(model.members(obs_BD, outputs_KB), model.bounds(obs_BD))


def test_region_closes_on_the_stored_action_at_every_memory():
    model = make_model(lambda_=10.0, L=1.5)
    for side_M in model.bounds(model.memories_MD):
        np.testing.assert_array_equal(side_M, model.actions_M)


def test_random_networks_repeat_with_their_seed_and_use_the_whole_range():
    obs_BD = np.linspace(-2, 2, 200, dtype=np.float32)[:, None]
    outputs_KB = random_networks(obs_BD, 6, seed=0)
    assert outputs_KB.shape == (6, 200)
    np.testing.assert_array_equal(outputs_KB, random_networks(obs_BD, 6, seed=0))
    assert not np.array_equal(outputs_KB, random_networks(obs_BD, 6, seed=1))
    assert np.abs(outputs_KB).max() > 1
    assert (outputs_KB > 0).any(1).all() or (outputs_KB < 0).any(1).all()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder and the figures by name; all are caught, Figure 2 alone is written, since drawing takes seconds."""
    figures, save = {}, function_class.save_figure

    def catch(figure, stem):
        figures[stem.name] = figure
        return save(figure, stem) if stem.name == "figure2" else [stem]

    folder = tmp_path_factory.mktemp("pictures") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function_class, "save_figure", catch)
        paths = save_function_class(folder, seed=1)
    assert paths == [folder / "figure2.png", folder / "figure2.svg", *(folder / name for name in NAMES[1:])]
    return folder, figures


def test_drawn_networks_stay_inside_the_drawn_region_in_every_panel(saved):
    _, figures = saved
    assert tuple(figures) == NAMES
    shaded = 0
    for figure in figures.values():
        for axes in figure.axes:
            corners = np.concatenate([path.vertices for c in axes.collections for path in c.get_paths()] or [[[0, 0]]])
            low, high = {}, {}
            for x, y in corners:
                low[x], high[x] = min(y, low.get(x, y)), max(y, high.get(x, y))
            networks = [line for line in axes.lines if to_hex(line.get_color()) == to_hex(BLUE)]
            shaded += bool(networks)
            for line in networks:
                points = line.get_xydata()
                assert all(low[x] <= y <= high[x] for x, y in points[~np.isnan(points).any(1)])
    assert shaded == 4 + 2 * (4 + 3 + 3)  # all panels but Figure 2's first, which has no network


def test_every_panel_has_its_axes_named(saved):
    _, figures = saved
    for figure in figures.values():
        for axes in figure.axes:
            edges = axes.get_subplotspec()
            assert bool(axes.get_ylabel()) == edges.is_first_col()
            assert bool(axes.get_xlabel()) == edges.is_last_row()
            assert axes.get_title() or edges.is_last_row()


def test_files_are_whole_and_nothing_else_is_left(saved):
    folder, _ = saved
    assert {path.name for path in folder.iterdir()} == {"figure2.png", "figure2.svg"}
    assert imread(folder / "figure2.png").shape[:2] == (840, 1500)
    assert ElementTree.parse(folder / "figure2.svg").getroot().tag.endswith("svg")
