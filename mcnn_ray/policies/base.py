"""The contract of a policy, and its directory.

Shapes: B observations, D observation numbers, A action numbers, M memories.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mcnn_ray.artifacts import write_directory, write_json
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import DatasetError

if TYPE_CHECKING:
    from mcnn_ray.encoders.encoder import Encoder

__all__ = ["FORMAT", "Explanation", "Policy", "draw", "episode_generator", "save_policy"]

FORMAT = 1  # of policy directories
_DRAWS = 0xAC7

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Which memories drove a batch of actions.

    Attributes:
        row_B: (B,) int64, row of the demonstrations that the memory is.
        distance_B: (B,) float32, to that memory, standardised units.
        weight_B: (B,) float32, the memory's share of the action, in [0, 1].
    """

    row_B: npt.NDArray[np.int64]
    distance_B: Float32Array
    weight_B: Float32Array


class Policy(ABC):
    """A policy acts on raw observations, or on what its encoder makes of them, and gives raw actions.

    Attributes:
        kind: name of the family in `policy.json`.
        card: where the policy comes from (task, dataset, member, versions): JSON values.
        standardiser: of observations.
        action_scale: between raw actions and [-1, 1].
        encoder: of the images that the environment gives, or None: set by whoever builds the policy.
    """

    kind: ClassVar[str]
    encoder: Encoder | None = None

    def __init__(self, card: dict[str, Any], standardiser: Standardiser, action_scale: ActionScale) -> None:
        self.card = card
        self.standardiser = standardiser
        self.action_scale = action_scale

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between our own processes as arrays and settings alone, and build searches anew at the other end."""
        parts = (self.card, self.standardiser, self.action_scale, self.arrays(), self.settings())
        return (type(self).from_parts, parts, {} if self.encoder is None else {"encoder": self.encoder})

    @property
    def observation_dim(self) -> int:
        """Number D of observation numbers that `act` takes."""
        return len(self.standardiser.mean_D)

    @property
    def action_dim(self) -> int:
        """Number A of action numbers."""
        return len(self.action_scale.low_A)

    def start(self, seeds: Sequence[int]) -> list[Any] | None:
        """Return the state of episodes that are about to begin.

        Args:
            seeds: (B,) of the episodes: whatever a policy draws at random in one follows from its seed.

        Returns:
            One entry an episode, for `act`; None for policies that remember and draw nothing.
        """
        return None

    def encode(self, observations_BX: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what `act` and `explain` take: raw observations as they are, (B, D), or embeddings of (B, X) images.

        Raises:
            DatasetError: the policy has an encoder, and these are no images that it takes.
        """
        return observations_BX if self.encoder is None else self.encoder(observations_BX)

    def act(
        self, observations_BD: npt.NDArray[Any], state: list[Any] | None = None
    ) -> tuple[Float32Array, list[Any] | None]:
        """Choose actions.

        Args:
            observations_BD: (B, D) raw observations, as `encode` gives them.
            state: what the policy remembers of each of the B episodes (past observations, say, or actions it has
                planned), from `start` or the last step; None starts them with the seeds 0 to B - 1.

        Returns:
            (B, A) float32 raw actions; the state to pass at the next step, a list of B or None.

        Raises:
            DatasetError: the observations have another width than the policy's.
        """
        if observations_BD.ndim != 2 or observations_BD.shape[1] != self.observation_dim:
            raise DatasetError(
                f"the policy of {self.card.get('task')} takes {self.observation_dim} observation numbers, "
                f"got an array of shape {observations_BD.shape}; evaluate it on its own task"
            )
        if state is None:
            state = self.start(range(len(observations_BD)))
        return self._actions(self.standardiser(observations_BD), state), state

    def to(self, device: str) -> None:
        """Compute on a device of torch's from now on, e.g. `cuda`; what computes with numpy stays where it is."""
        if self.encoder is not None:
            self.encoder.to(device)

    @abstractmethod
    def _actions(self, obs_BD: Float32Array, state: list[Any] | None) -> Float32Array:
        """Return (B, A) raw actions for (B, D) standardised observations, and bring what is remembered up to date."""

    def explain(self, observations_BD: npt.NDArray[Any]) -> Explanation | None:
        """Tell which memory each action draws on, for (B, D) raw observations; None for policies without memories."""
        return None

    @abstractmethod
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that `policy.safetensors` holds, beside those of the scales."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the family's settings for `policy.json`: JSON values."""

    @classmethod
    @abstractmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> Policy:
        """Build the policy from what `arrays` and `settings` gave."""


def episode_generator(seed: int) -> np.random.Generator:
    """Return the generator of what a policy draws in an episode.

    Not that of the bare seed, from which the environment draws its start: the two would go together.
    """
    return np.random.default_rng((_DRAWS, seed))


def draw(logits_BC: Float32Array, generators: Sequence[np.random.Generator]) -> npt.NDArray[np.int64]:
    """Return (B,) places of (B, C) logits, each by the inverse of its cumulative distribution at one uniform number."""
    weight_BC = np.exp(logits_BC.astype(np.float64) - logits_BC.max(1, keepdims=True))
    cumulative_BC = weight_BC.cumsum(1)
    uniform_B1 = np.array([[generator.random()] for generator in generators])
    drawn_B: npt.NDArray[np.int64] = (cumulative_BC[:, :-1] <= uniform_B1 * cumulative_BC[:, -1:]).sum(1)
    return drawn_B


def save_policy(policy: Policy, directory: Path) -> None:
    """Write a policy directory whole or not at all: `policy.json`, `policy.safetensors` and their manifest.

    One with an encoder also gets `encoder.safetensors`, so that it can be used without anything else.
    """
    with write_directory(directory) as target:
        write_json(
            target / "policy.json",
            {
                "format": FORMAT,
                "kind": policy.kind,
                "card": policy.card,
                "settings": policy.settings(),
                **({} if policy.encoder is None else {"encoder": policy.encoder.description()}),
            },
        )
        if policy.encoder is not None:
            policy.encoder.write_weights(target)
        arrays = {
            "observation_mean": policy.standardiser.mean_D,
            "observation_scale": policy.standardiser.scale_D,
            "action_low": policy.action_scale.low_A,
            "action_high": policy.action_scale.high_A,
            **policy.arrays(),
        }
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, target / "policy.safetensors")
