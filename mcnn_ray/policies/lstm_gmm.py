"""LSTMs with a mixture of Gaussians (`lstm-gmm`): BC-RNN with a GMM head.

Mandlekar et al. 2021, "What Matters in Learning from Offline Human Demonstrations for Robot Manipulation"; activations
and the little noise in acting are those of ARISE-Initiative/robomimic, models/policy_nets.py (`RNNGMMActorNetwork`).

Shapes: B observations, T steps of a window, D observation numbers, A action numbers, M modes, H hidden units, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.methods import METHODS
from mcnn_ray.options import read_options
from mcnn_ray.policies.base import Float32Array, Policy, draw, episode_generator
from mcnn_ray.policies.parameters import load_parameters, named_arrays, named_parameters

__all__ = ["LstmGmmNetwork", "LstmGmmPolicy"]

_SHAPE = ("window", "hidden_units", "layers", "modes")
_ACTING_STD = 1e-4  # in place of the learned one

State = tuple[torch.Tensor, torch.Tensor]


class LstmGmmNetwork(torch.nn.Module):
    """A mixture of Gaussians over the action at every step of a window of observations.

    Args:
        observation_dim: D.
        action_dim: A.
        shape: `hidden_units` H, `layers` L and `modes` M; for training also `least_std`, added to standard deviations.
    """

    def __init__(self, observation_dim: int, action_dim: int, shape: Mapping[str, Any]) -> None:
        super().__init__()
        units, self.modes, self.action_dim = int(shape["hidden_units"]), int(shape["modes"]), action_dim
        self.least_std = float(shape.get("least_std", 0.0))
        self.lstm = torch.nn.LSTM(observation_dim, units, int(shape["layers"]), batch_first=True)
        self.head = torch.nn.Linear(units, self.modes * (1 + 2 * action_dim))

    def forward(
        self, obs_BTD: torch.Tensor, state: State | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]:
        """Return the mixtures in units of the action bounds, of standardised observations.

        Args:
            obs_BTD: (B, T, D).
            state: (L, B, H) each, as returned for the steps before; None begins.

        Returns:
            (B, T, M) logits; (B, T, M, A) means in [-1, 1]; (B, T, M, A) standard deviations; the state after them.
        """
        hidden_BTH, after = self.lstm(obs_BTD, state)
        output = self.head(hidden_BTH)
        means, stds = output[..., self.modes :].unflatten(-1, (2, self.modes, self.action_dim)).unbind(-3)
        return output[..., : self.modes], means.tanh(), torch.nn.functional.softplus(stds) + self.least_std, after

    def log_likelihood(self, obs_BTD: torch.Tensor, actions_BTA: torch.Tensor) -> torch.Tensor:
        """Return the (B, T) log density of actions, in units of the action bounds, at the steps of windows."""
        logits_BTM, means_BTMA, stds_BTMA, _ = self(obs_BTD)
        # Unchecked: a network that is no longer finite has a loss that says so, which takes its member out.
        mixture = MixtureSameFamily(
            Categorical(logits=logits_BTM, validate_args=False),
            Independent(Normal(means_BTMA, stds_BTMA, validate_args=False), 1, validate_args=False),
            validate_args=False,
        )
        return mixture.log_prob(actions_BTA)  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Episode:
    """What is remembered of an episode: the network's state, how many steps it is old, and where the draws stand."""

    state_2LH: Float32Array
    generator: np.random.Generator
    steps: int = 0


class LstmGmmPolicy(Policy):
    """Draws a mode of the mixture and its mean with little noise; every `window` steps it forgets what it saw.

    So the network acts for no more steps in a row than it was trained on; as in robomimic, algo/bc.py (`BC_RNN`).

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        shape: of the network, see `LstmGmmNetwork`, and `window`.
        parameters: of the network, by name.

    Raises:
        ValueError: a number of the shape is out of the bounds of its option, or the parameters are not of that shape.
    """

    kind = "lstm-gmm"

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        shape: Mapping[str, Any],
        parameters: Mapping[str, npt.NDArray[np.float32]],
    ) -> None:
        super().__init__(card, standardiser, action_scale)
        self._shape = read_options(METHODS[self.kind].options, _SHAPE, shape)
        with torch.device("meta"):  # no memory is taken for what a file merely says of its size
            self._network = LstmGmmNetwork(self.observation_dim, self.action_dim, self._shape)
        load_parameters(self._network, parameters)
        self._device = "cpu"

    def start(self, seeds: Sequence[int]) -> list[Any]:
        """Return what is remembered of episodes that are about to begin: nothing, and a generator each."""
        shape = (2, self._shape["layers"], self._shape["hidden_units"])
        return [_Episode(np.zeros(shape, dtype=np.float32), episode_generator(seed)) for seed in seeds]

    def _actions(self, obs_BD: Float32Array, state: list[Any] | None) -> Float32Array:
        episodes: list[_Episode] = self.start(range(len(obs_BD))) if state is None else state
        logits_BM, means_BMA = self._next(obs_BD, episodes)
        chosen_BA = means_BMA[np.arange(len(obs_BD)), draw(logits_BM, [episode.generator for episode in episodes])]
        noise_BA = [episode.generator.standard_normal(self.action_dim, dtype=np.float32) for episode in episodes]
        return self.action_scale.to_raw(chosen_BA + np.float32(_ACTING_STD) * np.stack(noise_BA))

    def _next(self, obs_BD: Float32Array, episodes: list[_Episode]) -> tuple[Float32Array, Float32Array]:
        """Take a step in each episode; return (B, M) logits and (B, M, A) means."""
        for episode in episodes:
            if episode.steps % self._shape["window"] == 0:
                episode.state_2LH = np.zeros_like(episode.state_2LH)
            episode.steps += 1
        state_2LBH = torch.from_numpy(np.stack([episode.state_2LH for episode in episodes], 2)).to(self._device)
        with torch.inference_mode():
            obs_B1D = torch.from_numpy(obs_BD).to(self._device)[:, None]
            logits_B1M, means_B1MA, _, after = self._network(obs_B1D, (state_2LBH[0], state_2LBH[1]))
            after_2LBH = torch.stack(after).cpu().numpy()
        for place, episode in enumerate(episodes):
            episode.state_2LH = after_2LBH[:, :, place]
        return logits_B1M[:, 0].cpu().numpy(), means_B1MA[:, 0].cpu().numpy()

    def to(self, device: str) -> None:
        """Compute the network on a device of torch's from now on; modes and noise are drawn on the CPU."""
        super().to(device)
        self._device = device
        self._network.to(device)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the network's parameters by name."""
        return named_arrays(self._network.state_dict().items())

    def settings(self) -> dict[str, Any]:
        """Return the network's shape and the window."""
        return dict(self._shape)

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> LstmGmmPolicy:
        """Build the policy from its arrays and settings."""
        return cls(card, standardiser, action_scale, settings, named_parameters(arrays))
