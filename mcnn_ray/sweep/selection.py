"""Choosing between settings: rounds of training and evaluation on episodes of their own, and what came of each setting.

Every decision follows from evaluations that are on disk before it is made, and from nothing else: not from which pack
ended first, nor from when a process died. So the same command again decides the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import SimulationError
from mcnn_ray.member import Member
from mcnn_ray.rollout.episode import SELECTION_SEED
from mcnn_ray.sweep.capacity import Capacity, split_by_memory, worthwhile_packs
from mcnn_ray.sweep.cluster import cluster_cpus
from mcnn_ray.sweep.learning_curves import evaluate_on_selection_seeds, read_evaluations
from mcnn_ray.sweep.outlook import look_ahead
from mcnn_ray.sweep.plan import SweepPlan, earlier_start, make_plan
from mcnn_ray.sweep.studies import Studies

__all__ = ["Candidate", "Rounds", "Selection", "criterion", "setting_return"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setting that others were compared with.

    Attributes:
        setting: with the seed 0.
        step: of its last evaluation.
        mean_return: there, over its training seeds, raw units; None where a member of it failed.
        outcome: `chosen`, `stopped` on its way or `not chosen`.
    """

    setting: Member
    step: int
    mean_return: float | None
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a search or halving has come to.

    Attributes:
        candidates: all settings that were compared.
        notes: on how the rows of the table were chosen.
    """

    candidates: list[Candidate]
    notes: list[str]

    def to_csv(self) -> str:
        """Return the candidates as CSV with a header; numbers in full precision."""
        rows = [
            {
                "method": found.setting.method,
                "lambda": found.setting.lambda_,
                "memory_fraction": found.setting.memory_fraction,
                "L": found.setting.L,
                "memories": found.setting.memories,
                "memory_action": found.setting.memory_action,
                "learning_rate": found.setting.learning_rate,
                "beta_schedule": found.setting.beta_schedule,
                "demonstrations": found.setting.demonstrations,
                "step": found.step,
                "selection_return": found.mean_return,
                "outcome": found.outcome,
            }
            for found in self.candidates
        ]
        return str(pd.DataFrame(rows).to_csv(index=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The steps that a choice is made of.

    Attributes:
        config: of the sweep.
        studies: what its members learn from.
        folder: of the sweep, absolute, since workers run in folders of their own.
        codebooks: folder of learned ones.
        capacity: of the cluster.
        train: trains a plan's members to a step, or to their end.
        tell: told of progress.
        say: told in words what comes next.
    """

    config: SweepConfig
    studies: Studies
    folder: Path
    codebooks: Path
    capacity: Capacity
    train: Callable[[SweepPlan, int | None], None]
    tell: Callable[[str, float, float], None]
    say: Callable[[str], None]

    def look_ahead(self, plan: SweepPlan, fresh: list[Member], what: str) -> None:
        """Say what members will take that are compared next.

        Raises:
            ConfigError: the disk has less room.
        """
        part = replace(plan, members={i: member for i, member in plan.members.items() if member in fresh})
        told = look_ahead(part, self.studies, self.config, self.capacity, self.config.curve_episodes)
        self.say(f"{what}: {told}")

    def add(self, members: list[Member], fresh: list[Member]) -> SweepPlan:
        """Have members join the sweep, with their codebooks.

        Args:
            members: all of the sweep, up to now.
            fresh: those of them that are to be trained next.

        Raises:
            ConfigError: not even one of them fits into memory.
        """
        self.studies.learn_codebooks(
            fresh, self.codebooks, lambda name, share: self.tell("memories of the search", share, 1.0)
        )
        return self.plan(members, fresh)

    def plan(self, members: list[Member], fresh: list[Member]) -> SweepPlan:
        """Do the same without the codebooks."""
        capacity = self.capacity
        if self.config.workers == 1:
            at_once = min(capacity.packs_at_once, worthwhile_packs(fresh, self.studies))
            capacity = replace(capacity, packs_at_once=at_once)
        packs = split_by_memory(fresh, self.studies, capacity)
        if self.config.workers > sum(member.trained for member in fresh):
            packs = 1  # whose batches the workers share
        earlier = earlier_start(self.folder, self.studies, self.config.selection_key)
        return make_plan(self.folder, members, self.studies, earlier, packs)

    def returns(self, plan: SweepPlan, policies: Mapping[str, Path], step: int) -> dict[str, float]:
        """Return the members' mean returns on the seeds for choosing; those on disk are not run again.

        Args:
            plan: of the sweep.
            policies: directories by identity; snapshots among them are deleted.
            step: that they have reached.

        Returns:
            By identity, raw units; members that failed have none.

        Raises:
            SimulationError: the environment fails, or every episode of a member is lost.
        """
        wanted = {
            (identity, step): path
            for identity, path in policies.items()
            if _point(plan, identity, step) is None and not plan.failure(identity).is_file()
        }
        done = 0

        def filed(place: tuple[str, int]) -> None:
            nonlocal done
            done += 1
            self.tell("rollouts for choosing, members", done, len(wanted))
            if wanted[place] != plan.policy(place[0]):
                shutil.rmtree(wanted[place])

        if wanted:
            evaluate_on_selection_seeds(
                plan,
                self.studies.task,
                wanted,
                episodes=self.config.curve_episodes,
                actors=cluster_cpus(),
                backbone=self.config.backbone,
                filed=filed,
            )
        found = {identity: _point(plan, identity, step) for identity in policies}
        for identity, value in found.items():
            if value is None and not plan.failure(identity).is_file():
                raise SimulationError(
                    f"every episode of {plan.members[identity].label} for choosing was lost; the log says why"
                )
        return {identity: value for identity, value in found.items() if value is not None}


def _point(plan: SweepPlan, identity: str, step: int) -> float | None:
    points = {point["step"]: point["return"] for point in read_evaluations(plan.evaluations(identity))}
    return points.get(step)


def setting_return(identities: Sequence[str], returns: Mapping[str, float]) -> float | None:
    """Return the mean over a setting's members; None where one has failed, since the rest would not compare."""
    if not all(identity in returns for identity in identities):
        return None
    return sum(returns[identity] for identity in identities) / len(identities)


def criterion(config: SweepConfig) -> str:
    """Say by what settings are compared."""
    return f"mean return on episode seeds {SELECTION_SEED} to {SELECTION_SEED + config.curve_episodes - 1}"
