"""The guarantee of memory-consistent policies: what was found on the functions that act, and the bounds it is held to.

Paper: definition "Most Isolated State", lemma "Width of Function Class", theorem on the sub-optimality gap, and their
proofs in the appendix. `mcnn_ray.core.consistency` finds what is said here.

The paper takes the most isolated state over the whole state space. Its distance over a finite set is a lower bound of
that, so what is said here is said of the states checked.

Action-bound units: 1 is half an action's range. Excesses, widths and their bounds are in them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["GAP_ASSUMPTIONS", "Certificate", "Isolation", "StatesChecked", "sub_optimality_bound", "width_bound"]

GAP_ASSUMPTIONS = (
    "discrete actions: a policy gives a probability for each of |A| actions, and each is one output of the class",
    "realizability: the expert is in the function class, with this codebook, lambda and L",
    "bounded total variation risk: at most |A| L (1 - exp(-lambda d)) on average over the states that the expert "
    "visits; by the width lemma so if none is farther from a memory than d, which is measured over those at hand",
    "rewards in [0, 1] at each of H steps: unwritten in the paper, but the lemma it cites (risk epsilon gives a gap of "
    "at most min(H, H^2 epsilon)) and the cap H need it",
)
_CONTINUOUS = (
    "actions are continuous: |A| counts the actions of a finite set and would be infinite (it is not how many numbers "
    "an action has), and deterministic policies that differ have total variation 1; the paper takes it as intuition"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesChecked:
    """What was found over one set of states.

    Attributes:
        name: of the set.
        states: how many were checked.
        drawn_from: how many the set has; more than `states` where these are a sample, spread evenly.
        most_isolated_distance: the largest distance of one of them to its nearest memory, standardised units.
        cone_excess: the largest `|a(x) - w a_memory| - L (1 - w)`, `w = exp(-lambda d)`: below 0 inside the cones.
        cone_tolerance: the largest rounding allowed to it.
        cone_violation: the largest excess over what rounding explains; 0 when there is none.
        not_finite: states with a NaN or infinite action; the numbers on actions leave them out.
        width: the largest difference between the functions in any action number, or None for a single function.
        width_bound: `2 L (1 - exp(-lambda d))` with d the most isolated distance.
        width_violation: how far the width is above its bound and the rounding of both; 0 when it is not.
    """

    name: str
    states: int
    drawn_from: int
    most_isolated_distance: float
    cone_excess: float
    cone_tolerance: float
    cone_violation: float
    not_finite: int
    width: float | None
    width_bound: float
    width_violation: float

    @property
    def holds(self) -> bool:
        """Every action finite and in the cones, and the width within its bound."""
        return self.not_finite == 0 and self.cone_violation == 0 and self.width_violation == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """How far the states of a set lie from the memories, where only that is known of them: actions were not checked.

    Attributes:
        name: of the set.
        episodes: that it was seen in.
        states: how many, all of the set.
        most_isolated_distance: the largest distance of a state to its nearest memory, standardised units.
    """

    name: str
    episodes: int
    states: int
    most_isolated_distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The guarantee of one function, or of several that share memories, lambda and L.

    Attributes:
        functions: how many.
        memories: M.
        repeated_memories: those at the place of an earlier one, which cannot be returned and do not count below.
        lambda_: rate at which a memory's weight falls with distance.
        L: bound of the network's part, action-bound units.
        inexact_memories: memories at which a function does not return the stored action, summed over the functions.
        checked: what was found, per set of states.
        isolation: how far further sets lie from the memories.
        expert_distance: of the most isolated state that the expert visited, standardised units; None without such.
        horizon: H, steps of an episode; None where unknown.
        discrete_actions: |A|, how many actions there are; None for continuous actions.
        notes: what could not be checked, in words.
    """

    functions: int
    memories: int
    repeated_memories: int
    lambda_: float
    L: float
    inexact_memories: int
    checked: tuple[StatesChecked, ...]
    isolation: tuple[Isolation, ...] = ()
    expert_distance: float | None = None
    horizon: int | None = None
    discrete_actions: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Exact at all memories; over all states, finite, in the cones, and the measured width within its bound."""
        return self.inexact_memories == 0 and all(found.holds for found in self.checked)

    @property
    def gap_bound(self) -> float | None:
        """The theorem's bound under `GAP_ASSUMPTIONS`, in summed reward; None where `gap_unknown` says why not."""
        if self.discrete_actions is None or self.horizon is None or self.expert_distance is None:
            return None
        return sub_optimality_bound(self.lambda_, self.L, self.expert_distance, self.horizon, self.discrete_actions)

    @property
    def gap_unknown(self) -> str:
        """Why the theorem gives no bound; empty when it does."""
        if self.discrete_actions is None:
            return _CONTINUOUS
        facts = {"the task's horizon": self.horizon, "any state that the expert visited": self.expert_distance}
        return " and ".join(f"{name} is unknown" for name, value in facts.items() if value is None)

    @property
    def covers(self) -> dict[str, list[str]]:
        """The sets of states over which each part of the guarantee was checked, or measured."""
        sets = [found.name for found in self.checked]
        return {
            "stored_action": ["memories"],
            "cones": sets,
            "width": [found.name for found in self.checked if found.width is not None],
            "most_isolated_distance": [*sets, *(found.name for found in self.isolation)],
        }

    def isolation_bound(self, found: Isolation) -> float:
        """Return the lemma's bound of the width over a set whose states were not checked, action-bound units."""
        return width_bound(self.lambda_, self.L, found.most_isolated_distance)

    def to_json(self) -> dict[str, Any]:
        """Return fields and properties as JSON values; every number is finite."""
        values = asdict(self)
        values["lambda"] = values.pop("lambda_")
        values["isolation"] = [
            {**asdict(found), "width_bound": self.isolation_bound(found)} for found in self.isolation
        ]
        derived = {"gap_bound": self.gap_bound, "gap_unknown": self.gap_unknown, "gap_assumptions": GAP_ASSUMPTIONS}
        return {"holds": self.holds, "covers": self.covers, **values, **derived}


def width_bound(lambda_: float, L: float, distance: float) -> float:
    """Return `2 L (1 - exp(-lambda d))`, action-bound units: the lemma's, d the most isolated state's distance."""
    return 2.0 * L * -math.expm1(-lambda_ * distance)


def sub_optimality_bound(lambda_: float, L: float, distance: float, horizon: int, discrete_actions: int) -> float:
    """Return the theorem's `min(H, H^2 |A| L (1 - exp(-lambda d)))`, in summed reward, under `GAP_ASSUMPTIONS`.

    d is that of the most isolated of the expert's states, since the proof's expectation is over these alone; H the
    horizon in steps; |A| the number of actions.
    """
    risk = discrete_actions * width_bound(lambda_, L, distance) / 2.0  # total variation of the policy from the expert
    return min(float(horizon), horizon**2 * risk)
