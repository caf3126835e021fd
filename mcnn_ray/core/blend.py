"""The paper's model class (Definition 4.2) and its activation (Algorithm 2), for numpy arrays and torch tensors alike.

Only operators and `clip` are used, so one definition serves training (torch) and single-step inference (numpy).
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["BETA_SCHEDULES", "beta_at", "blend", "sigma_beta", "sigma_beta_slope"]

Array = TypeVar("Array", bound=Any)  # numpy.ndarray or torch.Tensor


BETA_SCHEDULES = ("paper", "official-code")


def beta_at(step: int, schedule: str = "paper") -> float:
    """Return the slope of the activation outside [-1, 1] at a training step; inference uses 0.

    Args:
        step: the step about to be taken, counted from 1 as in the paper.
        schedule: one of `BETA_SCHEDULES`.

    Returns:
        `paper`: `max(0, 1 - floor(step / 100))` (Algorithm 2, line 3), 1 for the first 99 steps, then 0.
        `official-code`: ten stairs of ten steps from 0.99 down, then 0 (`mem_td3bc.py` of the authors' repository).
    """
    if schedule == "official-code":
        return max(0.0, 0.99 * (1.0 - (step - 1) // 10 / 10))
    return float(max(0, 1 - step // 100))


def sigma_beta(x: Array, beta: float) -> Array:
    """Return the tanh-like activation of Algorithm 2, line 3.

    The paper's `2 [LeakyReLU_beta((x+1)/2) - (1-beta) ReLU((x-1)/2)] - 1` equals x inside [-1, 1] and continues with
    slope beta outside; this form has the same values with fewer operations.

    Args:
        x: network outputs, any shape.
        beta: slope outside [-1, 1], in [0, 1].

    Returns:
        Same shape; within [-1, 1] when beta is 0.
    """
    clipped = x.clip(-1.0, 1.0)
    return clipped if beta == 0 else clipped + beta * (x - clipped)  # type: ignore[no-any-return]


def sigma_beta_slope(x: Array, beta: float) -> Array:
    """Return the derivative of `sigma_beta`: 1 where |x| <= 1, beta outside; same shape as x, as floats."""
    inside = (abs(x) <= 1.0) * 1.0
    return inside if beta == 0 else inside + beta * (1.0 - inside)  # type: ignore[no-any-return]


def blend(weight: Array, memory_action: Array, network_part: Array, L: float | Array) -> Array:
    """Return `w a_memory + L (1 - w) sigma(f(x))` with `w = exp(-lambda d)` (equation 1).

    At a memory w is exactly 1, so the result is the memory's action to the last bit.

    Args:
        weight: memory weight w in [0, 1], broadcastable against the actions, e.g. (B, 1).
        memory_action: (B, A) action of the nearest memory.
        network_part: (B, A) output of the activation, in [-1, 1].
        L: bound of the network's part, above 0; a number, or an array that broadcasts.

    Returns:
        (B, A) actions.
    """
    return weight * memory_action + (L * (1.0 - weight)) * network_part  # type: ignore[no-any-return]
