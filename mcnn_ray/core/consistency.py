"""The checks behind a certificate: a policy's actions held against its memories, over given states.

Of a policy only its actions are used: nearest memories, distances and weights (in float64) are found anew from states,
memories, lambda and L.

Action-bound units: 1 is half an action's range. Excesses, widths and their bounds are in them.
Shapes: B, N states, M memories, T tied memories, D observation numbers, A action numbers, K functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.certificate import StatesChecked, width_bound
from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.normalise import ActionScale

__all__ = ["MemoryFunction", "check_states", "inexact_memories", "most_isolated_distance"]

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

_CHUNK = 4096  # states checked at once
_TIE = 1e-12  # relative; of memories so nearly equally far, the order of float64 sums decides which is the nearest
# Rounding allowed to an action w m + (1 - w) n, n = L sigma(f), as a multiple of |m| + L + 2 |middle of the bounds|:
# 16 unit roundoffs of float32. With t = lambda d: lambda, d and their product are off by 4 units relative to t, and
# t exp(-t) <= 1/e, so w is off by 1.5; float32 exp (numpy: 2.52 ulp) adds 5; both times |m - n| <= |m| + L. Products
# and sum of the blend, and n in raw units (L, half range and middle are rounded too), are at most 9 more.
_ROUNDING = 16 * 2.0**-24


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFunction:
    """A policy as the paper sees it: a function of standardised observations, and the memories it keeps to.

    Attributes:
        act: (B, D) float32 standardised observations to (B, A) float32 actions, in raw units: there the stored action
            must come back bit for bit, which a conversion could hide.
        memories_MD: (M, D) float32, standardised, M >= 1.
        actions_MA: (M, A) float32, the stored actions, raw units.
        action_scale: between raw and action-bound units.
        lambda_: rate at which a memory's weight falls with distance, at least 0.
        L: bound of the network's part, above 0, action-bound units.
    """

    act: Callable[[Float32Array], Float32Array]
    memories_MD: Float32Array
    actions_MA: Float32Array
    action_scale: ActionScale
    lambda_: float
    L: float

    def units(self, raw_BA: Float32Array) -> Float64Array:
        """Return (B, A) raw actions in action-bound units, in float64 so that this adds no rounding of its own."""
        middle_A, half_A = self._middle_and_half()
        units_BA: Float64Array = (raw_BA.astype(np.float64) - middle_A) / half_A
        return units_BA

    def excess(self, units_BA: Float64Array, distance_B: Float32Array, index_B: Int64Array) -> tuple[Float64Array, ...]:
        """Return (B, A) `|a - w m| - L (1 - w)` for memories at a distance, and (B, A) what rounding may add to it."""
        weight_B1 = np.exp(-self.lambda_ * distance_B.astype(np.float64))[:, None]
        memory_BA = self.units(self.actions_MA[index_B])
        middle_A, half_A = self._middle_and_half()
        rounding_BA = _ROUNDING * (np.abs(memory_BA) + self.L + 2.0 * np.abs(middle_A / half_A))
        return np.abs(units_BA - weight_B1 * memory_BA) - self.L * (1.0 - weight_B1), rounding_BA

    def _middle_and_half(self) -> tuple[Float64Array, Float64Array]:
        low_A, high_A = self.action_scale.low_A.astype(np.float64), self.action_scale.high_A.astype(np.float64)
        return (high_A + low_A) / 2.0, (high_A - low_A) / 2.0


def most_isolated_distance(obs_ND: Float32Array, memories_MD: Float32Array) -> float:
    """Return `max over states of min over memories of d`, the paper's d^I over (N, D) standardised states, N >= 1."""
    return float(_nearest(obs_ND, memories_MD)[1].max())


def inexact_memories(function: MemoryFunction) -> tuple[int, int]:
    """Count the memories at which the stored action does not come back.

    Returns:
        Memories whose returned action differs in any bit from the stored one, but for a zero's sign (`1 * -0.0 + 0 * f`
        is 0.0, and the same number); memories at the place of an earlier one, which are left out of the first count
        because the nearest memory there, ties to the lowest index, is the earlier one.
    """
    nearest_M, _ = _nearest(function.memories_MD, function.memories_MD)
    first_M = nearest_M == np.arange(len(nearest_M))
    # Equal float32 numbers have equal bits, zeros apart; NaN equals nothing, so it counts.
    differs_M = (function.act(function.memories_MD) != function.actions_MA).any(1)
    return int((differs_M & first_M).sum()), int((~first_M).sum())


def check_states(
    functions: Sequence[MemoryFunction], name: str, obs_ND: Float32Array, drawn_from: int | None = None
) -> StatesChecked:
    """Measure isolation, cone bound and width over a set of states.

    Args:
        functions: one or more that share memories, stored actions, scale, lambda and L.
        name: of the set.
        obs_ND: (N, D) float32, standardised, N >= 1.
        drawn_from: states in the set, where these are a sample of it; None where these are all.
    """
    chunks = [_check_chunk(functions, obs_ND[i : i + _CHUNK]) for i in range(0, len(obs_ND), _CHUNK)]
    farthest, excess, tolerance, violation, width = map(float, np.max([chunk[0] for chunk in chunks], axis=0))
    bound = width_bound(functions[0].lambda_, functions[0].L, farthest)
    several = len(functions) > 1
    return StatesChecked(
        name=name,
        states=len(obs_ND),
        drawn_from=len(obs_ND) if drawn_from is None else drawn_from,
        most_isolated_distance=farthest,
        cone_excess=excess if math.isfinite(excess) else 0.0,
        cone_tolerance=tolerance,
        cone_violation=violation,
        not_finite=sum(chunk[1] for chunk in chunks),
        width=width if several else None,
        width_bound=bound,
        # Each of the two actions may be off by its rounding.
        width_violation=max(0.0, width - bound - 2.0 * tolerance) if several else 0.0,
    )


def _nearest(obs_BD: Float32Array, memories_MD: Float32Array) -> tuple[Int64Array, Float32Array]:
    index_B, distance_B = nearest_memory(torch.from_numpy(obs_BD), torch.from_numpy(memories_MD))
    return index_B.numpy(), distance_B.numpy()


def _check_chunk(functions: Sequence[MemoryFunction], obs_BD: Float32Array) -> tuple[tuple[float, ...], int]:
    """Return the chunk's largest (distance, excess, rounding, violation, width); its states without finite actions."""
    index_B, distance_B = _nearest(obs_BD, functions[0].memories_MD)
    actions_KBA = np.stack([functions[0].units(function.act(obs_BD)) for function in functions])
    finite_B = np.isfinite(actions_KBA).all((0, 2))
    farthest, bad = float(distance_B.max()), int((~finite_B).sum())
    if bad == len(obs_BD):
        return (farthest, -math.inf, 0.0, 0.0, 0.0), bad
    actions_KBA, obs_BD = actions_KBA[:, finite_B], obs_BD[finite_B]
    index_B, distance_B = index_B[finite_B], distance_B[finite_B]
    excess, violation = -math.inf, 0.0
    for actions_BA in actions_KBA:
        excess_BA, rounding_BA = functions[0].excess(actions_BA, distance_B, index_B)
        beyond_B = (excess_BA - rounding_BA).max(1)
        # From the worst down: a state as far from several memories may keep to any of them, so it is held against all,
        # until no later one can be worse than what remains.
        for row in np.argsort(-beyond_B):
            if beyond_B[row] <= violation:
                break
            excess_BA[row], beyond = _excess_of_ties(functions[0], obs_BD[row], actions_BA[row], distance_B[row])
            violation = max(violation, beyond)
        excess = max(excess, float(excess_BA.max()))
    return (farthest, excess, float(rounding_BA.max()), violation, float(np.ptp(actions_KBA, axis=0).max())), bad


def _excess_of_ties(
    function: MemoryFunction, obs_D: Float32Array, action_A: Float64Array, distance: np.float32
) -> tuple[float, float]:
    """Return excess, and excess beyond rounding, of one state against that of its nearest memories which fits best."""
    distance_M = np.linalg.norm(function.memories_MD - obs_D.astype(np.float64), axis=1)
    tied_T = np.flatnonzero(distance_M <= distance_M.min() * (1.0 + _TIE))
    excess_TA, rounding_TA = function.excess(action_A, np.full(len(tied_T), distance), tied_T)
    beyond_T = (excess_TA - rounding_TA).max(1)
    best = int(beyond_T.argmin())
    return float(excess_TA[best].max()), float(beyond_T[best])
