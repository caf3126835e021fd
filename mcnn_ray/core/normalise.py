"""Scaling of observations and actions, part of every policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["ActionScale", "Standardiser"]

Float32Array = npt.NDArray[np.float32]

_STD_OFFSET = 1e-3  # as in the authors' code: keeps nearly constant columns from exploding


@dataclass(frozen=True, slots=True, kw_only=True)
class Standardiser:
    """Maps raw observations to the space in which distances are measured: `(x - mean) / (std + 1e-3)`.

    Attributes:
        mean_D: (D,) float32, raw units.
        scale_D: (D,) float32, raw units; infinite for columns that are to be ignored, which so become 0.
    """

    mean_D: Float32Array
    scale_D: Float32Array

    @classmethod
    def fit(cls, obs_ND: Float32Array) -> Standardiser:
        """Take mean and standard deviation from demonstrations; constant columns are to be ignored.

        A column without variation says nothing about which memory is near, while a later departure of 0.1 from it
        would count as 100 standard deviations.

        Args:
            obs_ND: (N, D) float32, raw units.
        """
        mean_D = obs_ND.mean(0, dtype=np.float64)
        scale_D = obs_ND.std(0, dtype=np.float64) + _STD_OFFSET
        scale_D[obs_ND.max(0) == obs_ND.min(0)] = np.inf
        return cls(mean_D=mean_D.astype(np.float32), scale_D=scale_D.astype(np.float32))

    def __call__(self, obs_BD: npt.NDArray[np.floating]) -> Float32Array:
        """Standardise (B, D) raw observations; float32 in every operation, so equal input gives equal bits."""
        # A division, as a product with the reciprocal would round differently.
        return (np.asarray(obs_BD, dtype=np.float32) - self.mean_D) / self.scale_D


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionScale:
    """Maps actions between the environment's bounds and [-1, 1].

    Attributes:
        low_A: (A,) float32, lower bounds, raw units.
        high_A: (A,) float32, upper bounds, raw units.
    """

    low_A: Float32Array
    high_A: Float32Array
    # Kept, since a policy asks for them at every step.
    _middle_A: Float32Array = field(init=False, repr=False, compare=False)
    _half_A: Float32Array = field(init=False, repr=False, compare=False)
    _identity: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_middle_A", (self.high_A + self.low_A) * np.float32(0.5))
        object.__setattr__(self, "_half_A", (self.high_A - self.low_A) * np.float32(0.5))
        object.__setattr__(self, "_identity", bool((self.low_A == -1.0).all() and (self.high_A == 1.0).all()))

    def to_unit(self, actions_BA: Float32Array) -> Float32Array:
        """Map (B, A) raw actions to [-1, 1]; the identity, to the last bit, where the bounds are -1 and 1."""
        units_BA: Float32Array = (actions_BA - self._middle_A) / self._half_A
        return units_BA

    def to_raw(self, units_BA: Float32Array) -> Float32Array:
        """Map (B, A) actions of [-1, 1] to raw units; those same numbers where the bounds are -1 and 1."""
        if self._identity:
            return units_BA
        return units_BA * self._half_A + self._middle_A
