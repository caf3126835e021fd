"""Policies that act by searching for the action of least energy (`ibc`).

Florence et al. 2021, "Implicit Behavioral Cloning". Energies are of actions in units of a box: [-1, 1] spans what was
demonstrated and a little more, see `mcnn_ray.training.ibc`.

Shapes: B observations, S sampled actions, D observation numbers, A action numbers, H outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.methods import METHODS
from mcnn_ray.options import read_options
from mcnn_ray.policies.base import Float32Array, Policy, episode_generator
from mcnn_ray.policies.mlp import Layers, layer_arrays, mlp_layers

__all__ = ["ImplicitPolicy", "energies"]

_SEARCH = ("inference_samples", "inference_iterations", "noise", "noise_shrink")
_ROWS = 256  # actions at once: their layers' outputs stay in the cache, and memory does not grow with S


def energies(layers: Sequence[tuple[Any, Any]], obs_BD: Any, actions_BSA: Any, relu: Callable[[Any], Any]) -> Any:
    """Return (B, S) energies; of numpy's arrays or torch's tensors, so that training and policy have one definition.

    Rectified layers; from the second on, two at a time have what goes into them added to what comes out of them, where
    the widths agree (He et al. 2016, "Identity Mappings in Deep Residual Networks").

    Args:
        layers: weight (in, out) and bias (out,) of each, the first of D + A numbers, the last to 1.
        obs_BD: (B, D), standardised; or (D,).
        actions_BSA: (B, S, A), in units of the box; or (S, A).
        relu: rectifies an array, into another one.
    """
    weight, bias = layers[0]
    dim = obs_BD.shape[-1]
    x = actions_BSA @ weight[dim:] + (obs_BD @ weight[:dim] + bias)[..., None, :]
    entered = x
    for place, (weight, bias) in enumerate(layers[1:-1], 1):
        x = relu(x) @ weight + bias
        if place % 2 == 0:
            if x.shape == entered.shape:
                x = x + entered
            entered = x
    weight, bias = layers[-1]
    return (relu(x) @ weight + bias)[..., 0]


class ImplicitPolicy(Policy):
    """Searches without derivatives (appendix B.1, algorithm 1): sample, resample by energy, shake ever less, repeat.

    Computed by numpy, one observation after the other, since 256 sampled actions fill a core: there torch is no faster.
    An episode's samples follow from its seed, and its actions do not depend on who is in step with it.

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        layers: of the energy, see `energies`.
        box: between [-1, 1] and the actions that are searched, in units of the action bounds.
        search: `inference_samples`, `inference_iterations`, `noise` and `noise_shrink`, options of `ibc`.
    """

    kind = "implicit"

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        layers: Layers,
        box: ActionScale,
        search: dict[str, Any],
    ) -> None:
        super().__init__(card, standardiser, action_scale)
        self.layers, self.box, self.search = layers, box, search

    def start(self, seeds: Sequence[int]) -> list[Any] | None:
        """Return a generator of random numbers for each episode."""
        return [episode_generator(seed) for seed in seeds]

    def _actions(self, obs_BD: Float32Array, state: list[Any] | None) -> Float32Array:
        best_BA = np.stack([self.least(obs_D, rng) for obs_D, rng in zip(obs_BD, state or [], strict=True)])
        return self.action_scale.to_raw(self.box.to_raw(best_BA))

    def least(self, obs_D: Float32Array, rng: np.random.Generator) -> Float32Array:
        """Return the (A,) action of the least energy found, in units of the box, for one standardised observation."""
        noise = np.float32(self.search["noise"])
        samples_SA = rng.random((self.search["inference_samples"], self.action_dim), dtype=np.float32) * 2 - 1
        energy_S = self._energies(obs_D, samples_SA)
        for _ in range(self.search["inference_iterations"] - 1):
            samples_SA = samples_SA[_resample(energy_S, rng)]
            samples_SA += noise * rng.standard_normal(samples_SA.shape, dtype=np.float32)
            np.clip(samples_SA, -1, 1, out=samples_SA)
            energy_S = self._energies(obs_D, samples_SA)
            noise *= np.float32(self.search["noise_shrink"])
        best_A: Float32Array = samples_SA[energy_S.argmin()]
        return best_A

    def _energies(self, obs_D: Float32Array, samples_SA: Float32Array) -> Float32Array:
        starts = range(0, len(samples_SA), _ROWS)
        return np.concatenate(
            [energies(self.layers, obs_D, samples_SA[start : start + _ROWS], _rectified) for start in starts]
        )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the layers and the box by name."""
        return {"box_low": self.box.low_A, "box_high": self.box.high_A, **layer_arrays(self.layers)}

    def settings(self) -> dict[str, Any]:
        """Return how actions are searched."""
        return dict(self.search)

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> ImplicitPolicy:
        """Build the policy from its arrays and settings, of which more may be given.

        Raises:
            ValueError: a setting is out of the bounds of its option.
        """
        search = read_options(METHODS["ibc"].options, _SEARCH, settings)
        layers = mlp_layers(arrays, sum(name.startswith("layers.") for name in arrays) // 2)
        box = ActionScale(low_A=arrays["box_low"], high_A=arrays["box_high"])
        return cls(card, standardiser, action_scale, layers, box, search)


def _rectified(x: Float32Array) -> Float32Array:
    return np.maximum(x, 0.0)


def _resample(energy_S: Float32Array, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw as many places as there are, with replacement, each with the probability softmax(-energy)."""
    sums_S = np.cumsum(np.exp(energy_S.min() - energy_S, dtype=np.float64))
    drawn_S = rng.random(len(sums_S)) * sums_S[-1]
    last = len(sums_S) - 1  # which a product that rounds up would leave behind
    places_S: npt.NDArray[np.int64] = np.minimum(np.searchsorted(sums_S, drawn_S, side="right"), last)
    return places_S
