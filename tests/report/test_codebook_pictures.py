"""What the pictures of a codebook say is right: variance explained, weights per lambda, whole files."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from mcnn_ray.core.codebook import learn_codebook
from mcnn_ray.report import codebook_pictures
from mcnn_ray.report.codebook_pictures import (
    codebook_figure,
    distances_to_memories,
    fit_projection,
    half_weight_lambda,
    save_figure,
    summarise_weights,
    weight_figure,
)


@pytest.fixture(scope="module")
def obs_ND():
    """Rows whose variance is 9, 4 and 1 along three directions of six, and 0 along the rest."""
    rng = np.random.default_rng(0)
    directions, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    return (5 + rng.standard_normal((4000, 3)) * (3, 2, 1) @ directions[:3]).astype(np.float32)


@pytest.fixture(scope="module")
def book(obs_ND):
    return learn_codebook(obs_ND, 0.02)


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_explained_variance_is_that_of_made_data(obs_ND):
    projection = fit_projection(obs_ND)
    np.testing.assert_allclose(projection.explained, (9 / 14, 4 / 14), atol=0.02)
    values_D = np.linalg.svd(obs_ND - obs_ND.mean(0, dtype=np.float64), compute_uv=False) ** 2
    np.testing.assert_allclose(projection.explained, values_D[:2] / values_D.sum(), rtol=1e-9)
    coordinates_N2 = projection(obs_ND)
    np.testing.assert_allclose(coordinates_N2.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(coordinates_N2.var(0) / obs_ND.var(0, dtype=np.float64).sum(), projection.explained)
    np.testing.assert_allclose(projection.axes_2D @ projection.axes_2D.T, np.eye(2), atol=1e-12)


def test_projection_does_not_depend_on_chunks_or_flip(obs_ND, monkeypatch):
    whole = fit_projection(obs_ND)
    monkeypatch.setattr(codebook_pictures, "_CHUNK_ROWS", 1001)
    chunked = fit_projection(obs_ND)
    np.testing.assert_allclose(chunked.axes_2D, whole.axes_2D, atol=1e-9)
    largest_2 = whole.axes_2D[np.arange(2), np.abs(whole.axes_2D).argmax(1)]
    assert (largest_2 > 0).all()


def test_one_column_and_equal_rows_project_to_a_line_and_a_point():
    line = fit_projection(np.arange(5, dtype=np.float32)[:, None])
    assert line.explained == (1.0, 0.0)
    assert np.ptp(line(np.arange(5, dtype=np.float32)[:, None])[:, 1]) == 0
    assert fit_projection(np.ones((5, 3), np.float32)).explained == (0.0, 0.0)


def test_weights_per_lambda_are_exp_of_minus_lambda_d():
    distances_N = np.float32([0.0, 0.5, 1.0, 2.0, 4.0])
    for summary, lambda_ in zip(summarise_weights(distances_N, (0.0, 0.3, 1000.0)), (0.0, 0.3, 1000.0), strict=True):
        weights_N = np.exp(-lambda_ * distances_N.astype(float))
        assert summary.lambda_ == lambda_
        assert summary.mean == pytest.approx(weights_N.mean())
        assert summary.median == pytest.approx(weights_N[2])
        assert (summary.low, summary.high) == pytest.approx(tuple(np.quantile(weights_N, (0.05, 0.95))))


def test_half_weight_lambda_halves_the_weight_at_the_median_distance():
    distances_N = np.float32([0.1, 0.5, 7.0])
    assert np.exp(-half_weight_lambda(distances_N) * 0.5) == pytest.approx(0.5)
    assert half_weight_lambda(np.zeros(3, np.float32)) is None


def test_distances_leave_out_the_memories_but_not_rows_equal_to_one():
    obs_ND = np.float32([[0], [0], [1], [5]])
    book = learn_codebook(obs_ND, 0.5, method="random", seed=1)
    left_N = distances_to_memories(book)
    assert len(left_N) == 2
    np.testing.assert_array_equal(left_N, book.distances_N[np.setdiff1d(np.arange(4), book.rows_M)])
    with pytest.raises(ValueError, match="every demonstration is a memory, so no distance is left to weigh"):
        summarise_weights(np.empty(0, np.float32), [1.0])


def test_codebook_figure_shows_every_memory_and_edge_and_the_variance(obs_ND, book):
    (axes,) = codebook_figure(obs_ND, book, "made").axes
    projection = fit_projection(obs_ND)
    dots, memories = axes.lines
    np.testing.assert_array_equal(dots.get_xydata(), projection(obs_ND))
    np.testing.assert_array_equal(memories.get_xydata(), projection(obs_ND[book.rows_M]))
    assert len(axes.collections[0].get_segments()) == len(book.edges_E2) > 0
    assert f"{100 * projection.explained[0]:.1f} % of the variance (standardised units)" in axes.get_xlabel()
    assert f"{100 * projection.explained[1]:.1f} % of the variance (standardised units)" in axes.get_ylabel()


def test_large_datasets_are_thinned_and_the_legend_says_so(obs_ND, book, monkeypatch):
    monkeypatch.setattr(codebook_pictures, "_DOTS", 100)
    (axes,) = codebook_figure(obs_ND, book, "made").axes
    assert len(axes.lines[0].get_xydata()) == 100
    assert axes.lines[0].get_label() == "demonstration steps (100 of 4,000 drawn)"


def test_weight_figure_draws_each_lambda_and_writes_its_numbers(book):
    distances_N = distances_to_memories(book)
    lambdas = [0.0, 0.1, 1.0, 1e6]
    figure = weight_figure(distances_N, lambdas, "made")
    upper, lower, _ = figure.axes
    for line, lambda_ in zip(upper.lines, lambdas, strict=False):
        d, weight = line.get_xydata().T
        np.testing.assert_allclose(weight, np.exp(-lambda_ * d))
    counted = sum(bar.get_height() for bar in lower.containers[0])
    assert counted == (distances_N <= upper.get_xlim()[1]).sum() > 0.99 * len(distances_N)
    for summary in summarise_weights(distances_N, lambdas):
        assert set(summary.texts()) <= set(texts(figure))
    assert "<0.001" in texts(figure)


def test_a_far_outlier_does_not_flatten_the_histogram_but_is_told():
    distances_N = np.append(np.linspace(0, 1, 999), 50).astype(np.float32)
    figure = weight_figure(distances_N, [1.0], "made")
    assert figure.axes[1].get_xlim()[1] < 2
    assert "1 beyond, up to 50 →" in texts(figure)


def test_distances_of_zero_many_lambdas_and_a_strange_name_can_be_drawn():
    weight_figure(np.zeros(9, np.float32), list(range(30)), "price in $, twice: $x_{1").draw_without_rendering()


def test_files_are_whole_and_repeat_to_the_byte(tmp_path):
    contents = []
    for name in ("a", "b"):
        figure = Figure(figsize=(4.0, 3.0), layout="constrained")
        figure.add_subplot().plot([0, 1], [1, 0], label="falls")
        figure.legend(loc="outside lower center")
        png, svg = save_figure(figure, tmp_path / name / "weights-0.1")
        assert {path.name for path in (tmp_path / name).iterdir()} == {"weights-0.1.png", "weights-0.1.svg"}
        assert imread(png).shape[:2] == (450, 600)
        assert ElementTree.parse(svg).getroot().tag.endswith("svg")
        contents.append((png.read_bytes(), svg.read_bytes()))
    assert contents[0] == contents[1]


def test_a_figure_that_fails_half_way_leaves_no_file(tmp_path, monkeypatch):
    savefig = Figure.savefig

    def fail_at_svg(self, target, **settings):
        savefig(self, target, **settings)
        if settings["format"] == "svg":
            raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail_at_svg)
    with pytest.raises(OSError, match="disk full"):
        save_figure(Figure(), tmp_path / "figure")
    assert list(tmp_path.iterdir()) == []
