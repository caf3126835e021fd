"""The work of one gradient step, counted: what bounds its time and a pack's memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

__all__ = ["StepShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """The shape of one member's gradient step.

    Attributes:
        dim: D.
        hidden: widths of the hidden layers.
        actions: A.
        batch_size: B.
    """

    dim: int
    hidden: tuple[int, ...]
    actions: int
    batch_size: int

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Numbers that go into and come out of each layer."""
        return list(itertools.pairwise((self.dim, *self.hidden, self.actions)))

    @property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in self.layers)

    @property
    def flop(self) -> int:
        """Operations of the matrix products: forward, gradients of weights, and of all inputs but the observations."""
        weights = [fan_in * fan_out for fan_in, fan_out in self.layers]
        return 2 * self.batch_size * (3 * sum(weights) - weights[0])

    @property
    def bytes(self) -> int:
        """Bytes that must move if nothing is read or written twice.

        Parameters, gradients and Adam's two moments are read and written once each, so is every layer's output, and
        the batch (observations, actions, memory actions, distances) is read.
        """
        outputs = self.batch_size * (sum(self.hidden) + self.actions)
        return 4 * (8 * self.parameters + 2 * outputs + self.batch_size * (self.dim + 2 * self.actions + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What one member's gradient step takes, whatever its networks are.

    Attributes:
        parameters: numbers that are learned.
        flop: operations of the matrix products, forward and backward.
        kept: numbers that the forward pass keeps for the backward one.
        share: of a step's time on one thread, what large products of as many operations take (docs/methods.md).
        act_flop: operations of the matrix products of one action, where they are not negligible beside the simulator.
        act_share: the same of an action among several at once.
    """

    parameters: int
    flop: int
    kept: int
    share: float
    act_flop: int = 0
    act_share: float = 1.0

    def step_s(self, rate: float) -> float:
        """Return roughly the seconds of a step on one thread, at so many operations of large products a second."""
        return self.flop / (self.share * rate)

    def act_s(self, rate: float) -> float:
        """Return roughly the seconds of an action on one thread, likewise."""
        return self.act_flop / (self.act_share * rate)
