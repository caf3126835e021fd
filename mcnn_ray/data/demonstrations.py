"""Demonstrations in memory: contiguous float32 arrays with real episode boundaries, in raw units."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.errors import ConfigError, DatasetError

__all__ = ["Demonstrations"]

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]

_CHECKED_ROWS = 4096  # at once


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Recorded episodes of a task, checked on construction.

    Attributes:
        observations_ND: (N, D) float32.
        actions_NA: (N, A) float32; row i was taken at observation i.
        rewards_N: (N,) float32, as recorded; zeros where the source has none.
        offsets: (E + 1,) int64; episode e is rows offsets[e] to offsets[e + 1].
        final_observations_ED: (E, D) float32, seen after each episode's last action, or None where not recorded.
        successes_E: (E,) bool, whether each episode did what the task asks, at any step; None where not recorded.
        terminated_E: (E,) bool, whether the environment ended each episode, rather than a limit of steps; None where
            not recorded.
        source: where the data came from, e.g. a Minari id or a file name.
        provenance: further facts of their origin, JSON values only.
        observations_hash: stands for the observations in `sha256` where they were computed, and may be rounded
            otherwise on another machine; None where they were recorded.
    """

    observations_ND: Float32Array
    actions_NA: Float32Array
    rewards_N: Float32Array
    offsets: Int64Array
    source: str
    final_observations_ED: Float32Array | None = None
    successes_E: npt.NDArray[np.bool_] | None = None
    terminated_E: npt.NDArray[np.bool_] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    observations_hash: str | None = None

    def __post_init__(self) -> None:
        steps = len(self.observations_ND)
        if len(self.offsets) < 2 or steps == 0:
            raise DatasetError(
                f"{self.source} is empty: no demonstration step; record or import some (mcnn data --help)"
            )
        for name, array, dims in (
            ("observations", self.observations_ND, 2),
            ("actions", self.actions_NA, 2),
            ("rewards", self.rewards_N, 1),
        ):
            if array.ndim != dims or len(array) != steps:
                raise DatasetError(
                    f"{self.source}: {name} have the shape {array.shape}, expected {steps} rows of {dims} dimension(s)"
                )
            self._check_finite(name, array)
        lengths = np.diff(self.offsets)
        # Offsets that overflowed can have rising differences all the same.
        inside = (self.offsets >= 0).all() and (self.offsets <= steps).all()
        if self.offsets[0] != 0 or self.offsets[-1] != steps or (lengths <= 0).any() or not inside:
            raise DatasetError(
                f"{self.source}: episode lengths {lengths.tolist()[:5]}... do not add up to {steps} steps; "
                "each must be at least 1"
            )

    def _check_finite(self, name: str, array: npt.NDArray[Any]) -> None:
        rows = array.reshape(len(array), -1)
        starts = range(0, len(rows), _CHECKED_ROWS)
        bad = np.concatenate([~np.isfinite(rows[start : start + _CHECKED_ROWS]).all(1) for start in starts])
        if bad.any():
            row = int(bad.argmax())
            episode = int(np.searchsorted(self.offsets, row, side="right") - 1)
            raise DatasetError(
                f"{self.source}: {int(bad.sum())} of {len(array)} steps have NaN or infinite {name}, the first in "
                f"episode {episode} at step {row - int(self.offsets[episode])}; remove those episodes"
            )

    @property
    def steps(self) -> int:
        """Number of steps N."""
        return len(self.observations_ND)

    @property
    def episodes(self) -> int:
        """Number of episodes E."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64Array:
        """(E,) steps of each episode."""
        return np.diff(self.offsets)

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """(E,) sum of each episode's recorded rewards."""
        return np.add.reduceat(self.rewards_N.astype(np.float64), self.offsets[:-1])

    def observations_of(self, episode: int) -> Float32Array:
        """(T, D) observations that an episode acted on."""
        return self.observations_ND[self.offsets[episode] : self.offsets[episode + 1]]

    @cached_property
    def sha256(self) -> str:
        """Hash of what a policy learns from: observations, actions and boundaries."""
        digest = hashlib.sha256()
        arrays: list[npt.NDArray[Any]] = [self.observations_ND, self.actions_NA, self.offsets]
        if self.observations_hash is not None:
            digest.update(self.observations_hash.encode())
            del arrays[0]
        for array in arrays:
            digest.update(str((array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def subset(self, episodes: int, seed: int = 0) -> Demonstrations:
        """Return a random subset of the episodes, in their original order.

        Args:
            episodes: how many, between 1 and all.
            seed: which subset; a smaller subset of the same seed lies inside a larger one.

        Raises:
            ConfigError: there are not as many.
        """
        if not 1 <= episodes <= self.episodes:
            raise ConfigError(
                f"{episodes} demonstrations asked of {self.source}, which has {self.episodes}; "
                f"ask for 1 to {self.episodes}"
            )
        chosen = np.sort(np.random.default_rng(seed).permutation(self.episodes)[:episodes])
        taken = self.take(chosen)
        return replace(taken, provenance={**self.provenance, "subset": {"episodes": episodes, "seed": seed}})

    def take(self, episodes: Int64Array) -> Demonstrations:
        """Return some of the episodes, in the order given, each as often as it is named."""
        rows = np.concatenate([np.arange(self.offsets[e], self.offsets[e + 1]) for e in episodes])
        finals, successes, terminated = self.final_observations_ED, self.successes_E, self.terminated_E
        return replace(
            self,
            observations_ND=self.observations_ND[rows],
            actions_NA=self.actions_NA[rows],
            rewards_N=self.rewards_N[rows],
            offsets=np.concatenate([[0], np.cumsum(self.lengths[episodes])]).astype(np.int64),
            final_observations_ED=None if finals is None else finals[episodes],
            successes_E=None if successes is None else successes[episodes],
            terminated_E=None if terminated is None else terminated[episodes],
        )

    def followed_by(self, other: Demonstrations) -> Demonstrations:
        """Return these episodes and others after them; source and provenance stay. What only one has is left out."""

        def both(name: str) -> Any:
            parts = [getattr(self, name), getattr(other, name)]
            return None if any(part is None for part in parts) else np.concatenate(parts)

        return replace(
            self,
            observations_ND=both("observations_ND"),
            actions_NA=both("actions_NA"),
            rewards_N=both("rewards_N"),
            offsets=np.concatenate([self.offsets, other.offsets[1:] + self.steps]),
            final_observations_ED=both("final_observations_ED"),
            successes_E=both("successes_E"),
            terminated_E=both("terminated_E"),
        )

    def check_actions(self, low_A: npt.NDArray[Any], high_A: npt.NDArray[Any], clip: bool = False) -> Demonstrations:
        """Hold the actions against an action space.

        Args:
            low_A: (A,) lower bounds.
            high_A: (A,) upper bounds.
            clip: clip what lies outside instead of refusing it.

        Returns:
            These demonstrations, with actions clipped where that was asked and needed.

        Raises:
            DatasetError: the number of actions differs, or some lie outside and clip is false.
        """
        if self.actions_NA.shape[1] != len(low_A):
            raise DatasetError(
                f"{self.source} has {self.actions_NA.shape[1]} action numbers, the environment {len(low_A)}; "
                "it was recorded for another task"
            )
        outside_N = ((self.actions_NA < low_A) | (self.actions_NA > high_A)).any(1)
        if not outside_N.any():
            return self
        if not clip:
            raise DatasetError(
                f"{self.source}: {int(outside_N.sum())} of {self.steps} actions lie outside the environment's bounds "
                f"[{low_A.min():g}, {high_A.max():g}] (largest magnitude {np.abs(self.actions_NA).max():.3g}); "
                "if the environment clips them, as Adroit does, pass --clip-actions"
            )
        return replace(
            self,
            actions_NA=np.clip(self.actions_NA, low_A, high_A).astype(np.float32),
            provenance={**self.provenance, "clipped_actions": int(outside_N.sum())},
        )
