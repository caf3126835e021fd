"""The model class as pictures: the paper's Figure 2 and the three families of its appendix, on one observation number.

The paper's source names the figures but holds no image, so its captions are the model: what each panel shows is
theirs, the one-dimensional dataset is ours. Every curve and region is computed by `mcnn_ray.core`, as in a policy.

Shapes: B observations, M memories, N demonstrations, K networks, H hidden units, D = 1 observation number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.blend import blend, sigma_beta
from mcnn_ray.core.codebook import learn_codebook
from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.report.codebook_pictures import BLUE, ORANGE, SKY, STYLE, VERMILION, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ModelClass", "function_class_figures", "random_networks", "save_function_class"]

Float32Array = npt.NDArray[np.float32]

_GREY = "#8A8A8A"

_DEMONSTRATIONS = 60
_NETWORKS = 6
_HIDDEN = 48
_POINTS = 501
_MARGIN = 0.5  # drawn beyond the outermost demonstrations, standardised units: there the network takes over
_MEMORIES, _LAMBDA, _L = 6, 1.0, 1.0  # of Figure 2; lambda and L as in the appendix's file names
_MEMORY_FAMILY = (3, 6, 12, 24)
_LAMBDA_FAMILY = (0.1, 1.0, 10.0)
_L_FAMILY = (0.5, 1.0, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """All memory-consistent functions of one codebook, lambda and L (Definition 4.2).

    Attributes:
        memories_MD: (M, D) float32, standardised.
        actions_M: (M,) float32, one action number each, in [-1, 1].
        lambda_: rate at which a memory loses weight, at least 0, per standardised unit.
        L: bound of the network's part, above 0.
    """

    memories_MD: Float32Array
    actions_M: Float32Array
    lambda_: float
    L: float

    def nearest(self, obs_BD: Float32Array) -> tuple[npt.NDArray[np.int64], Float32Array]:
        """Return the (B,) index of each observation's memory and its (B,) float32 weight `exp(-lambda d)`."""
        index_B, distance_B = nearest_memory(torch.from_numpy(obs_BD), torch.from_numpy(self.memories_MD))
        return index_B.numpy(), np.exp(np.float32(-self.lambda_) * distance_B.numpy())

    def network_bounds(self, obs_BD: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Return (B,) least and greatest value of the network's part, `-+ L (1 - exp(-lambda d))`."""
        _, weight_B = self.nearest(obs_BD)
        return self._extremes(weight_B, np.zeros_like(weight_B))

    def bounds(self, obs_BD: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Return (B,) least and greatest value of any member, `exp(-lambda d) a_memory -+ L (1 - exp(-lambda d))`.

        They are exact: the blend at the two ends of the activation's range. Rounding does not break them, since the
        blend's operations are monotone in the network's part.
        """
        index_B, weight_B = self.nearest(obs_BD)
        return self._extremes(weight_B, self.actions_M[index_B])

    def _extremes(self, weight_B: Float32Array, action_B: Float32Array) -> tuple[Float32Array, Float32Array]:
        one_B = np.ones_like(weight_B)
        return blend(weight_B, action_B, -one_B, self.L), blend(weight_B, action_B, one_B, self.L)

    def network_parts(self, obs_BD: Float32Array, outputs_KB: Float32Array) -> Float32Array:
        """Return (K, B) `L (1 - exp(-lambda d)) sigma(f(x))` of networks with outputs f(x), any range."""
        _, weight_B = self.nearest(obs_BD)
        return blend(weight_B, np.zeros_like(weight_B), sigma_beta(outputs_KB, 0.0), self.L)

    def members(self, obs_BD: Float32Array, outputs_KB: Float32Array) -> Float32Array:
        """Return (K, B) actions of the members with network outputs f(x), any range."""
        index_B, weight_B = self.nearest(obs_BD)
        return blend(weight_B, self.actions_M[index_B], sigma_beta(outputs_KB, 0.0), self.L)


def random_networks(obs_BD: Float32Array, count: int, seed: int) -> Float32Array:
    """Return outputs of networks with random weights: two hidden layers of tanh.

    Args:
        obs_BD: (B, D) float32, standardised.
        count: K, how many networks.
        seed: of their weights.

    Returns:
        (K, B) float32; the gains make them bend several times and leave [-1, 1] here and there, so that a picture
        shows what the activation cuts off.
    """
    rng = np.random.default_rng(seed)
    outputs = []
    for _ in range(count):
        hidden_BH = np.tanh(obs_BD @ rng.normal(0, 2, (obs_BD.shape[1], _HIDDEN)) + rng.normal(0, 2, _HIDDEN))
        hidden_BH = np.tanh(hidden_BH @ rng.normal(0, 2.0 / _HIDDEN**0.5, (_HIDDEN, _HIDDEN)))
        outputs.append(hidden_BH @ rng.normal(0, 1.15 / _HIDDEN**0.5, _HIDDEN))
    return np.stack(outputs).astype(np.float32)


def save_function_class(
    folder: Path, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> list[Path]:
    """Draw Figure 2 and the families over the number of memories, lambda and L.

    Args:
        folder: to write into; each file appears whole or not at all.
        seed: of the dataset, the codebooks and the networks; the same seed gives the same bytes.
        progress: called with (pictures written, pictures in all).

    Returns:
        The paths: for each of `figure2`, `vary_memories`, `vary_lambda` and `vary_L` a PNG and an SVG.
    """
    import matplotlib

    figures, paths = function_class_figures(seed), list[Path]()
    with matplotlib.rc_context(STYLE):
        for done, (name, figure) in enumerate(figures.items()):
            paths += save_figure(figure, folder / name)
            if progress is not None:
                progress(done + 1, len(figures))
    return paths


def function_class_figures(seed: int = 0) -> dict[str, Figure]:
    """Return `figure2`, `vary_memories`, `vary_lambda` and `vary_L`; see `save_function_class`."""
    import matplotlib

    scene = _Scene.make(seed)
    with matplotlib.rc_context(STYLE):
        return {
            "figure2": _figure2(scene),
            "vary_memories": _family(scene, [scene.model(memories=count) for count in _MEMORY_FAMILY]),
            "vary_lambda": _family(scene, [scene.model(lambda_=value) for value in _LAMBDA_FAMILY]),
            "vary_L": _family(scene, [scene.model(L=value) for value in _L_FAMILY]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """A one-dimensional dataset, where it is looked at, and the networks that are drawn.

    Attributes:
        obs_N1: (N, 1) float32 demonstrated observations, standardised.
        actions_N: (N,) float32 demonstrated actions, in [-1, 1].
        span: least and greatest observation drawn.
        seed: of the codebooks and the networks.
    """

    obs_N1: Float32Array
    actions_N: Float32Array
    span: tuple[float, float]
    seed: int

    @classmethod
    def make(cls, seed: int) -> _Scene:
        rng = np.random.default_rng(seed)
        raw_N1 = np.sort(rng.uniform(0.0, 10.0, (_DEMONSTRATIONS, 1)), axis=0).astype(np.float32)
        wave_N = 0.55 * np.sin(0.8 * raw_N1[:, 0]) + 0.2 * np.sin(1.7 * raw_N1[:, 0])
        actions_N = np.clip(wave_N + rng.normal(0.0, 0.03, _DEMONSTRATIONS), -1.0, 1.0).astype(np.float32)
        obs_N1 = Standardiser.fit(raw_N1)(raw_N1)
        span = (float(obs_N1.min()) - _MARGIN, float(obs_N1.max()) + _MARGIN)
        return cls(obs_N1=obs_N1, actions_N=actions_N, span=span, seed=seed)

    def model(self, *, memories: int = _MEMORIES, lambda_: float = _LAMBDA, L: float = _L) -> ModelClass:
        """Return the class around memories that neural gas picks."""
        rows_M = learn_codebook(self.obs_N1, memories / _DEMONSTRATIONS, seed=self.seed).rows_M
        return ModelClass(memories_MD=self.obs_N1[rows_M], actions_M=self.actions_N[rows_M], lambda_=lambda_, L=L)

    def points(self, model: ModelClass) -> Float32Array:
        """Return (B, 1) observations to draw at, ascending: a grid, the memories, both sides of every cell's end."""
        ordered_M = np.sort(model.memories_MD[:, 0])
        ends = (ordered_M[1:] + ordered_M[:-1]) / 2
        sides = [np.nextafter(ends, np.float32(way)) for way in (-np.inf, np.inf)]
        grid = np.linspace(*self.span, _POINTS, dtype=np.float32)
        points_B1: Float32Array = np.unique(np.concatenate([grid, ordered_M, ends, *sides]))[:, None]
        return points_B1


def _figure2(scene: _Scene) -> Figure:
    base = scene.model()
    larger, fewer = replace(base, lambda_=4 * base.lambda_), scene.model(memories=_MEMORIES // 2)
    figure, (top, bottom) = _panels(scene, [3, 2], [base, larger, fewer])
    _draw_memory_part(top[0], scene, base)
    top[0].set_title("a  Nearest memory")
    _draw_network_part(top[1], scene, base)
    top[1].set_title("b  Constrained network")
    _draw_class(top[2], scene, base)
    top[2].set_title("c  Both together: the MCNN class")
    for axes, model, title in (
        (bottom[0], larger, f"d  Larger λ: {larger.lambda_:g} instead of {base.lambda_:g}"),
        (bottom[1], fewer, f"e  Fewer memories: {len(fewer.actions_M)} instead of {len(base.actions_M)}"),
    ):
        _draw_class(axes, scene, model)
        axes.set_title(title)
    _legend(figure, [*top, *bottom])
    return figure


def _family(scene: _Scene, models: Sequence[ModelClass]) -> Figure:
    """Draw a column for each class: its two parts above, all of it below."""
    figure, (top, bottom) = _panels(scene, [len(models)] * 2, models)
    for upper, lower, model in zip(top, bottom, models, strict=True):
        _draw_network_part(upper, scene, model)
        _draw_memory_part(upper, scene, model)
        _draw_class(lower, scene, model)
        upper.set_title(f"{len(model.actions_M)} memories, λ = {model.lambda_:g}, L = {model.L:g}")
    top[0].set_ylabel("its two parts, action")
    bottom[0].set_ylabel("MCNN class, action")
    _legend(figure, [*top, *bottom])
    return figure


def _panels(scene: _Scene, columns: Sequence[int], models: Sequence[ModelClass]) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with rows of panels, as many in each as asked, all with the same axes, wide enough for all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    whole = int(np.lcm.reduce(columns))
    reach = 1.08 * max(np.abs(model.bounds(scene.points(model))).max() for model in models)
    grid = figure.add_gridspec(len(columns), whole)
    rows: list[list[Axes]] = []
    for r, count in enumerate(columns):
        width = whole // count
        rows.append([figure.add_subplot(grid[r, c * width : (c + 1) * width]) for c in range(count)])
        for axes in rows[-1]:
            axes.set_xlim(*scene.span)
            axes.set_ylim(-reach, reach)
            axes.axhline(0.0, color=_GREY, linewidth=0.5, zorder=0)
            if axes is not rows[-1][0]:
                axes.tick_params(labelleft=False)
            if r + 1 == len(columns):
                axes.set_xlabel("observation (standardised)")  # the longest of which four stand side by side
        rows[-1][0].set_ylabel("action (bounds ±1)")
    return figure, rows


def _broken(model: ModelClass, obs_B1: Float32Array, *values: Float32Array) -> list[Float32Array]:
    """Return observations and values (last dimension B) with a gap between cells, where members may jump."""
    index_B, _ = model.nearest(obs_B1)
    cuts = np.flatnonzero(np.diff(index_B)) + 1
    return [np.insert(value, cuts, np.nan, axis=-1) for value in (obs_B1[:, 0], *values)]


def _draw_memory_part(axes: Axes, scene: _Scene, model: ModelClass) -> None:
    obs_B1 = scene.points(model)
    index_B, weight_B = model.nearest(obs_B1)
    action_B = model.actions_M[index_B]
    x, step, part = _broken(model, obs_B1, action_B, weight_B * action_B)
    axes.plot(x, step, color=ORANGE, linewidth=1.2, linestyle=(0, (3, 1.5)), label="action of the nearest memory")
    axes.plot(x, part, color=VERMILION, linewidth=1.8, label="the same, weighted by exp(−λd)")
    _draw_data(axes, scene, model)


def _draw_network_part(axes: Axes, scene: _Scene, model: ModelClass) -> None:
    obs_B1 = scene.points(model)
    outputs_KB = random_networks(obs_B1, _NETWORKS, scene.seed)
    _draw_region(axes, model, obs_B1, model.network_bounds(obs_B1), model.network_parts(obs_B1, outputs_KB))


def _draw_class(axes: Axes, scene: _Scene, model: ModelClass) -> None:
    obs_B1 = scene.points(model)
    outputs_KB = random_networks(obs_B1, _NETWORKS, scene.seed)
    _draw_region(axes, model, obs_B1, model.bounds(obs_B1), model.members(obs_B1, outputs_KB))
    _draw_data(axes, scene, model)


def _draw_region(
    axes: Axes,
    model: ModelClass,
    obs_B1: Float32Array,
    bounds: tuple[Float32Array, Float32Array],
    values_KB: Float32Array,
) -> None:
    x, low, high, *lines = _broken(model, obs_B1, *bounds, *values_KB)
    region = "permissible region (exact bounds)"
    axes.fill_between(x, low, high, color=SKY, alpha=0.35, linewidth=0, label=region)
    for line in lines:
        axes.plot(x, line, color=BLUE, linewidth=0.8, label=f"{len(lines)} random networks")


def _draw_data(axes: Axes, scene: _Scene, model: ModelClass) -> None:
    axes.plot(scene.obs_N1[:, 0], scene.actions_N, ".", color=_GREY, markersize=3, zorder=3, label="demonstrations")
    look: dict[str, Any] = {"color": VERMILION, "markeredgecolor": "white", "markersize": 5.8, "zorder": 4}
    axes.plot(model.memories_MD[:, 0], model.actions_M, "o", label="memories", **look)


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Put one legend below all panels, each thing in it once."""
    entries = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4, frameon=False)
