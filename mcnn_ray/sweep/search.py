"""Searches: Optuna draws settings, a batch at a time; a batch trains together, is evaluated, and its returns are told.

Draws depend on the sampler's seed and the returns told so far alone. A continued search therefore draws the same
settings again, and what is on disk of them is not run again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcnn_ray.config import SweepConfig
from mcnn_ray.member import Member, settings_of
from mcnn_ray.search_space import Range
from mcnn_ray.sweep.plan import SweepPlan
from mcnn_ray.sweep.selection import Candidate, Rounds, Selection, criterion, setting_return

if TYPE_CHECKING:
    from optuna import Study, Trial

__all__ = ["fixed_members", "search"]

_TRIALS = 32
_TRIALS_AT_ONCE = 8


def fixed_members(config: SweepConfig) -> list[Member]:
    """Return the members of methods that have nothing to search; they are rows of their own."""
    return [member for contest in config.contests() if not contest.searched() for member in contest.members()]


def search(plan: SweepPlan, config: SweepConfig, rounds: Rounds) -> tuple[SweepPlan, Selection]:
    """Draw, train and compare settings, for each method on the same demonstrations by a study of its own.

    Args:
        plan: of the members that are not searched.
        config: of the sweep.
        rounds: to train and evaluate with.

    Returns:
        The plan with all members, of which the best setting of each study is reported, by its mean return on the seeds
        for choosing; what came of each setting.
    """
    contests = [_Contest(contest) for contest in config.contests() if contest.searched()]
    fixed, drawn = list(plan.members.values()), list[Member]()
    trials, at_once = config.trials or _TRIALS, config.trials_at_once or _TRIALS_AT_ONCE
    for start in range(0, trials, at_once):
        stop = min(start + at_once, trials)
        fresh = [member for contest in contests for member in contest.ask(stop - start)]
        drawn += fresh
        plan = rounds.add(list(dict.fromkeys([*drawn, *fixed])), list(dict.fromkeys([*fresh, *fixed])))
        rounds.look_ahead(plan, fresh, f"settings {start + 1} to {stop} of {trials} of each method")
        rounds.train(plan, None)
        searched = [i for i, member in plan.members.items() if member not in fixed]
        returns = rounds.returns(plan, {i: plan.policy(i) for i in searched}, config.steps)
        for contest in contests:
            contest.tell(plan, returns)
        rounds.tell("search, settings of each method", stop, trials)
    unreported: dict[str, str] = {}
    for contest in contests:
        unreported |= contest.not_chosen()
    plan = replace(plan, unreported={i: why for i, why in unreported.items() if not plan.failure(i).is_file()})
    rows = [member for identity, member in plan.members.items() if identity not in plan.unreported]
    rounds.studies.learn_codebooks(rows, rounds.codebooks)  # their certificates need them
    candidates = [candidate for contest in contests for candidate in contest.candidates()]
    return plan, Selection(candidates=candidates, notes=[contest.note() for contest in contests])


class _Contest:
    """An Optuna study of one method's settings."""

    def __init__(self, config: SweepConfig) -> None:
        self._config = config
        self._space = config.searched()
        self._study = _study()
        self._asked: list[tuple[Trial, list[Member]]] = []  # not told yet
        self._identities: dict[Member, list[str]] = {}
        self._means: dict[Member, float | None] = {}

    def ask(self, count: int) -> list[Member]:
        """Draw settings; return their members."""
        distributions = {key: _distribution(values) for key, values in self._space.items()}
        for _ in range(count):
            trial = self._study.ask(distributions)
            self._asked.append((trial, self._drawn(trial.params).members()))
        return [member for _, members in self._asked for member in members]

    def _drawn(self, values: Mapping[str, Any]) -> SweepConfig:
        chosen = {
            key: space.rounded(values[key]) if isinstance(space, Range) else values[key]
            for key, space in self._space.items()
        }
        return self._config.with_values(chosen)

    def tell(self, plan: SweepPlan, returns: Mapping[str, float]) -> None:
        """Take the returns of the settings drawn, in their order."""
        from optuna.trial import TrialState

        identities = {member: identity for identity, member in plan.members.items()}
        for trial, members in self._asked:
            ((setting, own),) = settings_of({identities[member]: member for member in members}).items()
            mean = setting_return(own, returns)
            self._identities[setting], self._means[setting] = own, mean
            if mean is None:  # counts as worse than all that have a return
                self._study.tell(trial, state=TrialState.PRUNED)
            else:
                self._study.tell(trial, mean)
        self._asked = []

    def _ranked(self) -> list[Member]:
        def key(setting: Member) -> float:
            mean = self._means[setting]
            return math.inf if mean is None else -mean

        return sorted(self._means, key=key)  # of equal ones the first drawn is first

    def not_chosen(self) -> dict[str, str]:
        """Return the identities of all members but the best setting's, and why."""
        ranked = self._ranked()
        return {
            identity: f"not chosen: place {place} of {len(ranked)} by {criterion(self._config)}"
            for place, setting in enumerate(ranked[1:], 2)
            for identity in self._identities[setting]
        }

    def candidates(self) -> list[Candidate]:
        """Return all settings, the best first."""
        return [
            Candidate(
                setting=setting,
                step=self._config.steps,
                mean_return=self._means[setting],
                outcome="not chosen" if place else "chosen",
            )
            for place, setting in enumerate(self._ranked())
        ]

    def note(self) -> str:
        """Say how its row was chosen."""
        member = self._config.members()[0]
        part = "" if member.demonstrations is None else f" demonstrations={member.demonstrations}"
        return (
            f"{member.method}{part}: the best of {len(self._means)} settings that Optuna drew, by "
            f"{criterion(self._config)}"
        )


def _study() -> Study:
    """Return a study whose draws depend on what it is told alone."""
    import optuna  # takes half a second, for searches only

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # A liar counts settings that are being trained as poor, so that a batch spreads out.
    sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _distribution(values: tuple[Any, ...] | Range) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(values, Range):
        return FloatDistribution(values.low, values.high, log=values.log)
    return CategoricalDistribution(list(dict.fromkeys(values)))
