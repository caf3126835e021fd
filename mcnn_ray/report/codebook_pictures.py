"""A codebook as pictures: where its memories lie, and what each lambda makes of them on this dataset.

Shapes: N demonstration rows, M memories, B observations, D observation numbers, E edges, 2 principal components.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import write_bytes
from mcnn_ray.core.codebook import Codebook

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "COLOURS",
    "ORANGE",
    "SKY",
    "STYLE",
    "VERMILION",
    "Projection",
    "WeightSummary",
    "codebook_figure",
    "distances_to_memories",
    "fit_projection",
    "half_weight_lambda",
    "save_figure",
    "summarise_weights",
    "weight_figure",
]

Float32Array = npt.NDArray[np.float32]

# Okabe and Ito's palette, told apart by all; their yellow is left out, since lines in it fade on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BLUE, VERMILION, _, _, ORANGE, SKY = COLOURS
STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a user's own task may have a $ in its name
    "svg.hashsalt": "mcnn",  # else the ids within a file, and so its bytes, change from run to run
}
_DASHES = ("-", "--", "-.", ":")
_CHUNK_ROWS = 1 << 16  # in float64 at once: 24 MiB at D = 46
_DOTS = 20_000  # demonstrations drawn at most; more only blacken the picture
_RASTER_FROM = 2_000  # dots or lines that a vector file holds as an image: as paths they take megabytes
_BINS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The first two principal components of observations.

    Attributes:
        mean_D: (D,) float64, standardised.
        axes_2D: (2, D) float64, orthonormal; the second is 0 where D is 1.
        explained: share of the variance along each, in [0, 1].
    """

    mean_D: npt.NDArray[np.float64]
    axes_2D: npt.NDArray[np.float64]
    explained: tuple[float, float]

    def __call__(self, obs_BD: Float32Array) -> npt.NDArray[np.float64]:
        """Return (B, 2) coordinates, in standardised units, of (B, D) standardised observations."""
        return (obs_BD - self.mean_D) @ self.axes_2D.T


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSummary:
    """What a lambda makes of the distances: the memory weight `exp(-lambda d)` over demonstrations.

    Attributes:
        lambda_: at least 0, per standardised unit.
        mean: of the weights, in [0, 1], as are the rest.
        median: half the demonstrations give their memory less.
        low: 5 % of them give it less.
        high: 5 % of them give it more.
    """

    lambda_: float
    mean: float
    median: float
    low: float
    high: float

    def texts(self) -> list[str]:
        """Return lambda, mean, median, 5 % and 95 % for a table; no weight is written as 0, since none is."""
        weights = (self.mean, self.median, self.low, self.high)
        return [f"{self.lambda_:g}", *("<0.001" if w < 0.0005 else f"{w:.3f}" for w in weights)]


def fit_projection(obs_ND: Float32Array) -> Projection:
    """Find the two directions of most variance, by a singular value decomposition of the covariance.

    Args:
        obs_ND: (N, D) float32, standardised.

    Returns:
        The projection; the sign of an axis is such that its largest entry is positive, so pictures do not flip.
    """
    dim = obs_ND.shape[1]
    mean_D = obs_ND.mean(0, dtype=np.float64)
    covariance_DD = np.zeros((dim, dim))
    for start in range(0, len(obs_ND), _CHUNK_ROWS):  # a million rows at once would take gigabytes
        centred_BD = obs_ND[start : start + _CHUNK_ROWS] - mean_D
        covariance_DD += centred_BD.T @ centred_BD
    directions_DD, variances_D, _ = np.linalg.svd(covariance_DD)
    axes_2D, explained_2 = np.zeros((2, dim)), np.zeros(2)
    kept = min(2, dim)
    axes_2D[:kept] = directions_DD[:, :kept].T
    if variances_D.sum() > 0:
        explained_2[:kept] = variances_D[:kept] / variances_D.sum()
    largest_2 = np.take_along_axis(axes_2D, np.abs(axes_2D).argmax(1)[:, None], 1)
    axes_2D *= np.where(largest_2 < 0, -1.0, 1.0)
    return Projection(mean_D=mean_D, axes_2D=axes_2D, explained=(float(explained_2[0]), float(explained_2[1])))


def distances_to_memories(book: Codebook) -> Float32Array:
    """Return (N - M,) float32 distances of the demonstrations that are no memory to their nearest one."""
    return np.delete(book.distances_N, book.rows_M)


def summarise_weights(distances_N: Float32Array, lambdas: Sequence[float]) -> list[WeightSummary]:
    """Tell what weight memories keep over demonstrations, for each lambda.

    Args:
        distances_N: (N,) float32 distances to the nearest memory, standardised units.
        lambdas: at least 0 each, per standardised unit.

    Raises:
        ValueError: there is no distance.
    """
    if len(distances_N) == 0:
        raise ValueError("every demonstration is a memory, so no distance is left to weigh; use a smaller fraction")
    summaries = []
    for lambda_ in lambdas:
        weights_N = np.exp(-lambda_ * distances_N.astype(np.float64))
        low, median, high = np.quantile(weights_N, (0.05, 0.5, 0.95)).tolist()
        mean = float(weights_N.mean())
        summaries.append(WeightSummary(lambda_=lambda_, mean=mean, median=median, low=low, high=high))
    return summaries


def half_weight_lambda(distances_N: Float32Array) -> float | None:
    """Return the lambda that leaves a weight of 1/2 at the median distance, `ln 2 / d`, or None where that is 0."""
    median = float(np.median(distances_N))
    return float(np.log(2.0)) / median if median > 0 else None


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as `STEM.png` (150 dots an inch) and `STEM.svg`, each whole or not at all.

    Args:
        figure: to write; equal figures give equal bytes.
        stem: path without suffix; a dot in its last part is kept.

    Returns:
        The two paths.
    """
    import matplotlib

    contents = {}
    with matplotlib.rc_context(STYLE):
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            figure.set_layout_engine("none")  # laid out by now; doing it again takes as long as drawing
            contents[stem.with_name(f"{stem.name}.{kind}")] = buffer.getvalue()
    for path, content in contents.items():
        write_bytes(path, content)
    return list(contents)


def codebook_figure(obs_ND: Float32Array, book: Codebook, title: str) -> Figure:
    """Draw demonstrations, memories and edges in the plane of the first two principal components.

    Args:
        obs_ND: (N, D) float32, standardised, that the codebook was learned from.
        book: the codebook.
        title: above the picture.
    """
    import matplotlib
    from matplotlib.figure import Figure

    projection, count = fit_projection(obs_ND), len(obs_ND)
    shown_B = np.arange(count) if count <= _DOTS else np.random.default_rng(0).choice(count, _DOTS, replace=False)
    drawn = "" if count <= _DOTS else f" ({_DOTS:,} of {count:,} drawn)"
    memories_M2 = projection(obs_ND[book.rows_M])
    size = float(np.clip(80.0 / len(memories_M2) ** 0.5, 1.3, 5.5))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.0, 6.4), layout="constrained")
        axes = figure.add_subplot()
        _draw_dots(axes, projection(obs_ND[shown_B]), "#C4C4C4", 2.4, f"demonstration steps{drawn}")
        _draw_edges(axes, memories_M2, book.edges_E2)
        _draw_dots(axes, memories_M2, VERMILION, size, f"{len(memories_M2):,} memories")
        first, second = (f"{100 * share:.1f} % of the variance (standardised units)" for share in projection.explained)
        axes.set(xlabel=f"first principal component, {first}", ylabel=f"second principal component, {second}")
        axes.set_aspect("equal", adjustable="datalim")  # both are distances in the same units
        axes.set_title(title, wrap=True)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, markerscale=max(1.0, 3.5 / size))
    return figure


def _draw_dots(axes: Axes, points_B2: npt.NDArray[np.float64], colour: str, size: float, label: str) -> None:
    raster = len(points_B2) > _RASTER_FROM
    look: dict[str, Any] = {"markersize": size, "markeredgewidth": 0, "zorder": 2.5}  # as the edges' zorder
    axes.plot(*points_B2.T, "o", color=colour, label=label, rasterized=raster, **look)


def _draw_edges(axes: Axes, memories_M2: npt.NDArray[np.float64], edges_E2: npt.NDArray[np.int64]) -> None:
    from matplotlib.collections import LineCollection

    count = len(edges_E2)
    if not count:
        return
    width = float(np.clip(25.0 / count**0.5, 0.2, 0.9))
    lines = LineCollection(list(memories_M2[edges_E2]), colors=BLUE, linewidths=width, alpha=0.55, zorder=2.5)
    lines.set(label=f"{count:,} edges", rasterized=count > _RASTER_FROM)
    axes.add_collection(lines)


def weight_figure(distances_N: Float32Array, lambdas: Sequence[float], title: str) -> Figure:
    """Draw the distances to the nearest memory, what each lambda makes of them, and the numbers beside.

    Args:
        distances_N: (N,) float32, standardised units, N >= 1.
        lambdas: at least 0 each, per standardised unit.
        title: above the picture.

    Raises:
        ValueError: there is no distance.
    """
    import matplotlib
    from matplotlib.figure import Figure

    summaries = summarise_weights(distances_N, lambdas)
    looks: list[dict[str, Any]] = [{"color": colour, "linestyle": dash} for dash in _DASHES for colour in COLOURS]
    # The axis ends at the largest distance, unless that is far from nearly all others.
    largest, most = float(distances_N.max()), float(np.quantile(distances_N, 0.995))
    reach = 1.02 * (largest if largest <= 1.5 * most or most == 0 else 1.2 * most) or 1.0
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, max(5.0, 1.8 + 0.3 * len(lambdas))), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(1.65, 1.0))
        upper = figure.add_subplot(grid[0, 0])
        lower = figure.add_subplot(grid[1, 0], sharex=upper)
        d = np.linspace(0.0, reach, 401)
        for summary, look in zip(summaries, itertools.cycle(looks), strict=False):
            upper.plot(d, np.exp(-summary.lambda_ * d), linewidth=1.8, **look)
        upper.set(ylabel="memory weight exp(−λd)", xlim=(0.0, reach), ylim=(-0.02, 1.04))
        upper.tick_params(labelbottom=False)
        _draw_histogram(lower, distances_N, reach)
        low, median, high = np.quantile(distances_N, (0.05, 0.5, 0.95))
        for axes, labels in ((upper, (None, None)), (lower, ("5 to 95 % of these steps", "their median"))):
            axes.axvspan(low, high, color=SKY, alpha=0.18, linewidth=0, zorder=0, label=labels[0])
            axes.axvline(median, color="black", linewidth=0.9, linestyle="--", zorder=1.5, label=labels[1])
        _draw_table(figure.add_subplot(grid[:, 1]), summaries, looks, half_weight_lambda(distances_N))
        figure.suptitle(title, fontsize=STYLE["axes.titlesize"], wrap=True)
        figure.legend(loc="outside lower left", ncols=2, frameon=False)
    return figure


def _draw_histogram(axes: Axes, distances_N: Float32Array, reach: float) -> None:
    axes.hist(distances_N, bins=np.linspace(0.0, reach, _BINS + 1).tolist(), color="#B8B8B8")
    axes.set(ylabel="demonstration steps", xlabel="distance d to the nearest memory (standardised units)")
    beyond = int((distances_N > reach).sum())
    if beyond:
        note = f"{beyond:,} beyond, up to {distances_N.max():.3g} →"
        axes.text(0.99, 0.25, note, transform=axes.transAxes, ha="right")


def _draw_table(axes: Axes, summaries: list[WeightSummary], looks: list[dict[str, Any]], half: float | None) -> None:
    """Write the weights per lambda; the line before each lambda is its curve's."""
    axes.set_axis_off()
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    columns = (0.22, 0.42, 0.62, 0.81, 1.0)  # right edges, in shares of the panel
    step = min(0.085, 0.85 / (len(summaries) + 3))
    rows = [["λ", "mean", "median", "5 %", "95 %"], *(summary.texts() for summary in summaries)]
    axes.text(0.0, 1.0, "weight of the nearest memory", va="top", fontweight="bold")
    for r, texts in enumerate(rows):
        height = 1.0 - (r + 1.5) * step
        for column, text in zip(columns, texts, strict=True):
            axes.text(column, height, text, ha="right", va="center", color="black" if r else "#6E6E6E")
        if r:
            axes.plot([0.0, 0.09], [height, height], linewidth=2.2, **looks[(r - 1) % len(looks)])
    if half is not None:
        axes.text(0.0, 1.0 - (len(rows) + 1.5) * step, f"λ = {half:.3g} halves it at the median distance", va="center")
