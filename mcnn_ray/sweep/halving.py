"""Successive halving: all settings train for a part of their steps, the best go on, until one of each method is left.

With the factor 3, of 9 settings all train for a ninth of the steps, 3 for a third and 1 for all of them. The packs stop
together, so that a setting is compared with all others, whatever their packs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member, settings_of
from mcnn_ray.sweep.plan import SweepPlan
from mcnn_ray.sweep.selection import Candidate, Rounds, Selection, criterion, setting_return
from mcnn_ray.training.run import curve_interval

__all__ = ["halve", "rung_steps"]


def rung_steps(config: SweepConfig) -> list[int]:
    """Return the steps at which settings are compared, ascending; empty without halving.

    Each is a part of the next, down to a point of the learning curve.

    Raises:
        ConfigError: the first would come before the first point.
    """
    if config.halving is None:
        return []
    most = max((len(settings_of(dict(enumerate(contest.members())))) for contest in config.contests()), default=1)
    count, interval = _rungs(most, config.halving), curve_interval(config.steps)
    steps = [config.steps // config.halving**left // interval * interval for left in range(count, 0, -1)]
    if not steps[0]:
        first = config.steps // config.halving**count
        raise ConfigError(
            f"halving {most} settings by {config.halving} takes {count} comparisons, the first after {first} of "
            f"{config.steps} steps, but members stop after {interval} at the earliest; give more steps, fewer settings "
            "or a larger factor"
        )
    return steps


def _rungs(settings: int, factor: int) -> int:
    """Return how many comparisons leave one of so many settings."""
    count = 0
    while settings > 1:
        settings, count = max(1, settings // factor), count + 1
    return count


def halve(plan: SweepPlan, config: SweepConfig, rounds: Rounds) -> tuple[SweepPlan, Selection]:
    """Train and compare the settings up to the last comparison.

    Settings of one method on the same demonstrations compete; a method with fewer of them joins in later. A setting of
    which a member failed comes last.

    Returns:
        The plan, in which whoever was stopped is not reported; what came of each setting.
    """
    contests = [_Contest(contest, plan) for contest in config.contests()]
    steps = rung_steps(config)
    for place, step in enumerate(steps):
        rounds.train(plan, step)
        live = [i for i, member in plan.members.items() if member.trained and i not in plan.unreported]
        returns = rounds.returns(plan, {identity: plan.snapshot(identity, step) for identity in live}, step)
        stopped: dict[str, str] = {}
        for contest in contests:
            if contest.rungs >= len(steps) - place:
                stopped |= contest.compare(step, returns)
        failed = {identity for identity in stopped if identity not in returns}
        stopped = {identity: reason for identity, reason in stopped.items() if identity not in failed}
        plan = replace(plan, unreported=plan.unreported | stopped)
    candidates = [candidate for contest in contests for candidate in contest.candidates()]
    return plan, Selection(candidates=candidates, notes=[note for contest in contests for note in contest.notes()])


class _Contest:
    """Settings of one method, of which some are stopped at each comparison."""

    def __init__(self, config: SweepConfig, plan: SweepPlan) -> None:
        own = set(config.members())
        self._config = config
        self._identities = settings_of({i: member for i, member in plan.members.items() if member in own})
        self._going: list[tuple[Member, float | None]] = [(setting, None) for setting in self._identities]
        self._stopped: list[Candidate] = []
        self._step = 0
        self.rungs = _rungs(len(self._going), config.halving or 2)

    def compare(self, step: int, returns: dict[str, float]) -> dict[str, str]:
        """Stop all but the best; return the identities of their members and why."""
        found = [(setting, setting_return(self._identities[setting], returns)) for setting, _ in self._going]
        ranked = sorted(found, key=lambda pair: float("-inf") if pair[1] is None else pair[1], reverse=True)
        stay = max(1, len(ranked) // (self._config.halving or 2))
        self._step, self._going = step, ranked[:stay]
        stopped = [Candidate(setting=s, step=step, mean_return=mean, outcome="stopped") for s, mean in ranked[stay:]]
        self._stopped = [*stopped, *self._stopped]
        reasons: dict[str, str] = {}
        for place, (setting, _) in enumerate(ranked[stay:], stay + 1):
            reasons |= dict.fromkeys(
                self._identities[setting],
                f"stopped after {step} of {self._config.steps} steps: place {place} of {len(ranked)} by "
                f"{criterion(self._config)}, of which the best {stay} went on",
            )
        return reasons

    def candidates(self) -> list[Candidate]:
        """Return all settings, the best first, if there was anything to compare."""
        if not self.rungs:
            return []
        chosen = [Candidate(setting=s, step=self._step, mean_return=mean, outcome="chosen") for s, mean in self._going]
        return [*chosen, *self._stopped]

    def notes(self) -> Sequence[str]:
        """Say how its row was chosen."""
        if not self.rungs:
            return []
        counts = Counter(candidate.step for candidate in self._stopped)
        stops = ", ".join(f"{counts[step]} stopped after {step:,}" for step in sorted(counts))
        return [
            f"{self._going[0][0].method_label}: the last of {len(self._identities)} settings ({stops} of "
            f"{self._config.steps:,} steps) by {criterion(self._config)}"
        ]
