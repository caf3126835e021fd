"""A policy that is watched: it says when it is farther from what it knows than demonstrations it never saw were.

The threshold is split-conformal (Vovk et al. 2005; per step conformal risk control, Angelopoulos et al. 2022): of
further episodes that are exchangeable with the held-out demonstrations, at most a share alpha raises a flag.

Shapes: B observations, D observation numbers, N demonstration steps, T steps of an episode, E episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.policies.base import Float32Array, Policy
from mcnn_ray.policies.search import PolicySearch

__all__ = ["Monitor", "Per", "Reading", "conformal_threshold", "fewest_episodes"]

Per = Literal["episode", "step"]

_ROUNDING = 1e-9  # of shares that are added up


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How far observations are from what the policy knows.

    Attributes:
        distance_B: (B,) float32, to the nearest memory, standardised units.
        outside_B: (B,) bool, the flag: whether that is more than the threshold.
    """

    distance_B: Float32Array
    outside_B: npt.NDArray[np.bool_]


class Monitor:
    """Wraps a policy: `act` also tells whether each observation is within the calibrated range.

    It keeps nothing between calls, so it serves any number of episodes at once. An episode is flagged from the first
    step whose reading is outside.

    Args:
        policy: acts; its actions are left as they are.
        threshold: largest distance that is no reason for a flag, standardised units, at least 0.
        reference_ND: (N, D) raw observations that distances are taken to, e.g. the demonstrations learned from; None
            takes the policy's memories.

    Raises:
        ConfigError: the policy has no memories and there is no reference, or the threshold is negative or NaN.
    """

    def __init__(self, policy: Policy, threshold: float, reference_ND: npt.NDArray[Any] | None = None) -> None:
        if not threshold >= 0:
            raise ConfigError(f"a monitor's threshold of {threshold} is no distance; calibrate one, or give 0 or more")
        if reference_ND is None and policy.explain(np.zeros((1, policy.observation_dim), np.float32)) is None:
            raise ConfigError(
                f"a policy of kind '{policy.kind}' without memories has nothing to measure distances to; give the "
                "observations that it learned from as reference"
            )
        self.policy = policy
        self.threshold = threshold
        self._search = None if reference_ND is None else PolicySearch(policy.standardiser(reference_ND))

    @classmethod
    def calibrate(
        cls,
        policy: Policy,
        held_out: Demonstrations,
        *,
        alpha: float = 0.1,
        per: Per = "episode",
        reference_ND: npt.NDArray[Any] | None = None,
    ) -> Monitor:
        """Choose the threshold from demonstrations that the policy did not learn from.

        Args:
            policy: to be watched.
            held_out: episodes of the kind that shall raise no flag; images as the policy's encoder gives them.
            alpha: false-alarm rate, in (0, 1): of episodes per episode, of an episode's steps per step.
            per: `episode` bounds the share of episodes with a flag at any step; `step` the mean share of flagged steps.
            reference_ND: as of the class.

        Raises:
            ConfigError: there are too few episodes for alpha, or as of the class.
            DatasetError: the demonstrations have other observations than the policy.
        """
        monitor = cls(policy, math.inf, reference_ND)
        distances = [monitor.distances(held_out.observations_of(e)) for e in range(held_out.episodes)]
        monitor.threshold = conformal_threshold(distances, alpha, per)
        return monitor

    def start(self, seeds: Sequence[int]) -> list[Any] | None:
        """Return the state of episodes that are about to begin, as the policy does."""
        return self.policy.start(seeds)

    def act(
        self, observations_BD: npt.NDArray[Any], state: list[Any] | None = None
    ) -> tuple[Float32Array, list[Any] | None, Reading]:
        """Choose actions as the policy does, and tell how far the observations are from what it knows.

        Args:
            observations_BD: (B, D) raw observations, as `Policy.encode` gives them.
            state: as of `Policy.act`.

        Returns:
            The policy's (B, A) actions and state, and the reading.
        """
        actions_BA, state = self.policy.act(observations_BD, state)
        return actions_BA, state, self.read(observations_BD)

    def read(self, observations_BD: npt.NDArray[Any]) -> Reading:
        """Tell how far (B, D) raw observations are from what the policy knows, without acting."""
        distance_B = self.distances(observations_BD)
        return Reading(distance_B=distance_B, outside_B=distance_B > self.threshold)

    def first_flag(self, observations_TD: npt.NDArray[Any]) -> int | None:
        """Return the first step of an episode that is outside; None where none is."""
        outside_T = self.read(observations_TD).outside_B
        return int(outside_T.argmax()) if outside_T.any() else None

    def distances(self, observations_BD: npt.NDArray[Any]) -> Float32Array:
        """Return (B,) distances of raw observations to the nearest memory, standardised units.

        Raises:
            DatasetError: they are not (B, D) of the policy's D.
        """
        if observations_BD.ndim != 2 or observations_BD.shape[1] != self.policy.observation_dim:
            raise DatasetError(
                f"the monitored policy takes {self.policy.observation_dim} observation numbers, got an array of shape "
                f"{observations_BD.shape}; calibrate and use it on the policy's own task"
            )
        if self._search is not None:
            return self._search(self.policy.standardiser(observations_BD))[1]
        told = self.policy.explain(observations_BD)
        assert told is not None  # looked at on construction
        return told.distance_B


def fewest_episodes(alpha: float) -> int:
    """Return how many held-out demonstrations a false-alarm rate takes: 1 / alpha - 1.

    Raises:
        ConfigError: alpha is outside (0, 1).
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha is {alpha:g}; a false-alarm rate lies between 0 and 1, e.g. 0.1")
    return math.ceil(1.0 / alpha - 1.0 - _ROUNDING)


def conformal_threshold(distances_ET: Sequence[npt.NDArray[Any]], alpha: float, per: Per = "episode") -> float:
    """Return the smallest distance of the episodes that leaves, with one episode more, a share alpha above it.

    Of n episodes and a further one, all exchangeable, each is equally likely to be the further one. So where the loss
    of an episode (1 where any step is above the threshold; per step the share of steps above it) sums to at most
    alpha (n + 1) - 1 over the n, its expectation for the further one is at most alpha. Per episode that is the
    ceil((n + 1) (1 - alpha))-th smallest of the episodes' largest distances.

    Args:
        distances_ET: of each held-out episode, (T,) of its steps, at least one.
        alpha: in (0, 1).
        per: which loss.

    Raises:
        ConfigError: alpha is outside (0, 1), or there are fewer than 1 / alpha - 1 episodes.
    """
    needed = fewest_episodes(alpha)
    if len(distances_ET) < needed:
        raise ConfigError(
            f"{len(distances_ET)} held-out demonstrations are too few for a false-alarm rate of {alpha:g}: at least "
            f"1 / alpha - 1, {needed}, are needed"
        )
    allowed = alpha * (len(distances_ET) + 1) - 1.0
    parts = [np.asarray(d_T, dtype=np.float64) for d_T in distances_ET]
    if per == "episode":
        parts = [d_T.max(keepdims=True) for d_T in parts]
    values_K = np.concatenate(parts)
    shares_K = np.concatenate([np.full(len(d_T), 1.0 / len(d_T)) for d_T in parts])
    order_K = np.argsort(-values_K, kind="stable")
    above_K = np.cumsum(shares_K[order_K]) - shares_K[order_K]
    return float(values_K[order_K[above_K <= allowed + _ROUNDING][-1]])
