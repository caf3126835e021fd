"""What lies on disk of a reproduction, and the best of its settings, chosen on episode seeds of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcnn_ray.artifacts import read_json, write_json
from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ArtifactError
from mcnn_ray.member import Member, settings_of
from mcnn_ray.rollout.episode import EpisodeRecord
from mcnn_ray.rollout.records import read_records
from mcnn_ray.sweep.cluster import cluster_cpus
from mcnn_ray.sweep.learning_curves import evaluate_on_selection_seeds, read_evaluations
from mcnn_ray.sweep.plan import SweepPlan
from mcnn_ray.sweep.runner import SweepResult
from mcnn_ray.sweep.selection import setting_return
from mcnn_ray.tasks.catalogue import Task

__all__ = ["FinishedSweep", "evaluate_for_choice", "read_finished", "write_finished"]

_RECORD = "reproduced.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSweep:
    """Members of a sweep that have their episodes, or that have failed.

    Attributes:
        folder: of the sweep.
        members: identity to member, of those that have episodes.
        failed: member to why it has none.
        episodes: of each member.
        facts: `dataset`, `demonstrations`, `steps` learned from, and `run_id` in MLflow.
    """

    folder: Path
    members: dict[str, Member]
    failed: dict[Member, str]
    episodes: int
    facts: dict[str, Any]

    def lacks(self, config: SweepConfig) -> bool:
        """Tell whether a sweep wants members or episodes that are not here."""
        return self.episodes < config.episodes or bool(self.lacking(config))

    def lacking(self, config: SweepConfig) -> list[Member]:
        """Return the members that a sweep wants and that are not here."""
        known = {*self.members.values(), *self.failed}
        return [member for member in config.members() if member not in known]

    def records(self, identity: str) -> list[EpisodeRecord]:
        """Return a member's episodes.

        Raises:
            ArtifactError: they are missing or damaged.
        """
        return read_records(self._plan.episodes(identity))

    def evaluations(self, identity: str) -> list[dict[str, Any]]:
        """Return a member's evaluations on the seeds for choosing, by rising step."""
        return read_evaluations(self._plan.evaluations(identity))

    @property
    def _plan(self) -> SweepPlan:
        return SweepPlan(id="", folder=self.folder.resolve(), members=self.members, packs=[])

    def best(self, candidates: Mapping[str, Member]) -> tuple[Member, list[str], int] | None:
        """Return the best setting of some members by their mean return on the seeds for choosing.

        Args:
            candidates: of one method, by identity.

        Returns:
            The setting, its members' identities and how many settings there are; None before all are evaluated.
        """
        returns: dict[str, float] = {}
        for identity, member in candidates.items():
            point = [point for point in self.evaluations(identity) if point["step"] == member.steps]
            if point:
                returns[identity] = float(point[-1]["return"])
        broken = {replace(member, seed=0) for member in self.failed}  # of which the other seeds would not compare
        settings = {setting: own for setting, own in settings_of(candidates).items() if setting not in broken}
        means = {setting: setting_return(own, returns) for setting, own in settings.items()}
        known = {setting: mean for setting, mean in means.items() if mean is not None}
        if len(known) < len(settings) or not known:
            return None
        chosen = max(known, key=lambda setting: known[setting])
        return chosen, settings[chosen], len(settings)


def read_finished(folder: Path) -> FinishedSweep:
    """Return what an earlier start has finished of a sweep; nothing where it has not been started."""
    try:
        record = read_json(folder / _RECORD)
        return FinishedSweep(
            folder=folder,
            members={identity: Member.from_parameters(own) for identity, own in record["members"].items()},
            failed={Member.from_parameters(own["parameters"]): own["reason"] for own in record["failed"]},
            episodes=int(record["episodes"]),
            facts=dict(record["facts"]),
        )
    except (ArtifactError, KeyError, TypeError, ValueError, AttributeError):
        return FinishedSweep(folder=folder, members={}, failed={}, episodes=0, facts={})


def write_finished(result: SweepResult, config: SweepConfig) -> None:
    """Note which members a sweep has finished, beside those of earlier starts with as many episodes."""
    earlier = read_finished(result.folder)
    if earlier.episodes != config.episodes:
        earlier = FinishedSweep(folder=result.folder, members={}, failed={}, episodes=0, facts={})
    members, failed = dict(earlier.members), dict(earlier.failed)
    for member in config.members():
        identity = result.studies.of(member).identity(member)
        reason = result.folder / "members" / identity / "failure.json"
        if reason.is_file():
            failed[member] = str(read_json(reason)["reason"])
        else:
            members[identity] = member
    data = result.studies.demonstrations
    write_json(
        result.folder / _RECORD,
        {
            "members": {identity: member.parameters() for identity, member in members.items()},
            "failed": [{"parameters": member.parameters(), "reason": reason} for member, reason in failed.items()],
            "episodes": config.episodes,
            "facts": {
                "dataset": data.source,
                "demonstrations": data.episodes,
                "steps": data.steps,
                "run_id": result.run_id,
            },
        },
    )


def evaluate_for_choice(
    finished: FinishedSweep,
    task: Task,
    identities: Iterable[str],
    episodes: int,
    progress: Callable[[str, float, float], None],
) -> None:
    """Roll members out on the seeds for choosing, those that have not been; Ray must be running."""
    plan, done = finished._plan, 0
    wanted = {
        (identity, member.steps): plan.policy(identity)
        for identity in identities
        if (member := finished.members[identity]).steps not in {p["step"] for p in finished.evaluations(identity)}
    }

    def filed(place: tuple[str, int]) -> None:
        nonlocal done
        done += 1
        progress("rollouts for choosing, members", done, len(wanted))

    if wanted:
        evaluate_on_selection_seeds(
            plan, task, wanted, episodes=episodes, actors=cluster_cpus(), backbone=None, filed=filed
        )
