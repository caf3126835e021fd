"""Rolling out the members of a sweep: episodes on disk are kept, and settled settings may end early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ArtifactError, SimulationError
from mcnn_ray.member import Member, settings_of
from mcnn_ray.report.results import Row, summarise
from mcnn_ray.rollout.episode import EVALUATION_SEED, LOCKSTEP, EpisodeRecord, Rollout
from mcnn_ray.rollout.outcome import Lost
from mcnn_ray.rollout.pool import RolloutPool
from mcnn_ray.rollout.records import read_records, read_rollouts, write_rollouts
from mcnn_ray.sweep.cluster import cluster_cpus, cluster_gpus
from mcnn_ray.sweep.plan import SweepPlan
from mcnn_ray.sweep.stopping import looks, settled
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import simulator_versions

__all__ = ["MemberRollouts", "roll_out_members"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRollouts:
    """Episodes of a sweep's members.

    Attributes:
        records: identity to its episodes, by rising seed, without those lost.
        run: identity to the number of its episodes, with those lost.
        stopped: identities with fewer episodes than asked for, since their setting was settled.
    """

    records: dict[str, list[EpisodeRecord]]
    run: dict[str, int]
    stopped: set[str]


def roll_out_members(
    plan: SweepPlan,
    identities: Iterable[str],
    task: Task,
    config: SweepConfig,
    tell: Callable[[str, float, float], None],
    say: Callable[[str], None],
) -> MemberRollouts:
    """Roll out the members on the reporting seeds; each one's episodes are written as they end.

    What is on disk is not run again. Which settings stop early follows from the records alone, so the same command
    again stops the same ones, and without `stop_early` it runs what they lack.

    Args:
        plan: of the sweep.
        identities: of the members, all trained.
        task: to roll out in.
        config: says how many episodes, and whether settings may stop early.
        tell: told of progress.
        say: told of the best setting so far, of those whose members all have episodes.

    Raises:
        SimulationError: the environment fails, or every episode of a member is lost.
    """
    members = list(identities)
    going = settings_of({identity: plan.members[identity] for identity in members})
    stops = looks(config.episodes) if config.stop_early else []
    comparisons = len(stops) * (len(going) - 1)
    stopped: set[str] = set()
    gpus = cluster_gpus() if config.backbone or config.encoder else 0
    with RolloutPool(task, actors=cluster_cpus(), gpus=gpus, backbone=config.backbone) as pool:
        leader = _Leader(going, plan, config.episodes, say)
        episodes = _Episodes(plan, members, config.episodes, pool, tell, leader)
        for stop in stops:
            episodes.run([i for group in going.values() for i in group], stop)
            returns = {setting: episodes.mean_returns(group, stop) for setting, group in going.items()}
            for setting in settled(returns, comparisons):
                stopped.update(going.pop(setting))
        episodes.run([i for group in going.values() for i in group], config.episodes)
    return MemberRollouts(
        records=episodes.records,
        run=episodes.reached,
        stopped={i for i in stopped if episodes.reached[i] < config.episodes},
    )


class _Leader:
    """Says which setting is the best so far, whenever that changes."""

    def __init__(
        self, settings: Mapping[Member, list[str]], plan: SweepPlan, episodes: int, say: Callable[[str], None]
    ) -> None:
        self._groups = list(settings.values())
        self._plan, self._episodes, self._say = plan, episodes, say
        self._rows: dict[Member, Row] = {}
        self._best: Member | None = None

    def look(self, identity: str, records: Mapping[str, Sequence[EpisodeRecord]]) -> None:
        """Take the episodes that there are, of which the last to join are a member's."""
        first = not self._rows
        for group in self._groups:
            # What was on disk is taken once, the rest as it comes: a row takes milliseconds, and sweeps have hundreds.
            if (first or identity in group) and all(records[i] for i in group):
                self._take(group, records)
        if not self._rows:
            return
        best = max(self._rows.values(), key=lambda row: row.episode_return.mean)
        if best.member != self._best:
            self._best = best.member
            digits = 0 if abs(best.episode_return.mean) >= 100 else 2
            told = f"return {best.episode_return.text(digits)}"
            shown = told if best.score is None else f"score {best.score.text(1)}"
            self._say(
                f"best so far: {best.member.setting_label}, {shown}, n {best.episode_return.n} "
                f"({len(self._rows)} of {len(self._groups)} settings rolled out)"
            )

    def _take(self, group: list[str], records: Mapping[str, Sequence[EpisodeRecord]]) -> None:
        members = {identity: self._plan.members[identity] for identity in group}
        (row,) = summarise(members, records, dict.fromkeys(group, self._episodes))
        self._rows[row.member] = row


class _Episodes:
    """The members' episodes, on disk and here.

    Attributes:
        records: by identity.
        reached: how many of the asked episodes a member has run; those lost count.
    """

    def __init__(
        self,
        plan: SweepPlan,
        identities: Sequence[str],
        count: int,
        pool: RolloutPool,
        tell: Callable[[str, float, float], None],
        leader: _Leader,
    ) -> None:
        self._plan, self._pool, self._tell, self._leader = plan, pool, tell, leader
        self._seeds = range(EVALUATION_SEED, EVALUATION_SEED + count)
        self.records = {identity: _usable_records(plan.episodes(identity), self._seeds) for identity in identities}
        self.reached = {identity: len(found) for identity, found in self.records.items()}
        self._ended = 0

    def run(self, identities: Sequence[str], stop: int) -> None:
        """Bring members to so many episodes."""
        for start in sorted({self.reached[identity] for identity in identities if self.reached[identity] < stop}):
            group = [identity for identity in identities if self.reached[identity] == start]
            ended, left = self._ended, sum(len(self._seeds) - self.reached[identity] for identity in identities)

            def progress(done: int, total: int, ended: int = ended, left: int = left) -> None:
                self._tell("rollouts, episodes", ended + done, ended + left)

            evaluation = self._pool.evaluate(
                {identity: self._plan.policy(identity) for identity in group},
                self._seeds[start:stop],
                progress=progress,
                finished=self._keep,
            )
            self._ended += len(group) * (stop - start)
            self.reached |= dict.fromkeys(group, stop)
            self._check(group, evaluation.lost)

    def mean_returns(self, identities: Sequence[str], stop: int) -> dict[int, float]:
        """Return a setting's mean return over its members by episode seed, for the first starts that all have met."""
        found = [
            {record.episode_seed: record.episode_return for record in self.records[identity]} for identity in identities
        ]
        return {
            seed: sum(returns[seed] for returns in found) / len(found)
            for seed in self._seeds[:stop]
            if all(seed in returns for returns in found)
        }

    def _keep(self, identity: str, rollouts: list[Rollout]) -> None:
        path = self._plan.episodes(identity)
        earlier = read_rollouts(path)[: len(self.records[identity])] if self.records[identity] else []
        write_rollouts(path, [*earlier, *rollouts])
        self.records[identity] = [*self.records[identity], *(rollout.record for rollout in rollouts)]
        self._leader.look(identity, self.records)

    def _check(self, identities: Sequence[str], lost: Sequence[Lost]) -> None:
        for identity in identities:
            if not self.records[identity]:
                raise SimulationError(
                    f"every episode of {self._plan.members[identity].label} was lost: {lost[0].reason}"
                )


def _usable_records(path: Path, seeds: Sequence[int]) -> list[EpisodeRecord]:
    """Return the records of the first seeds that would come out the same again; none when there are none.

    Those are all of them, or whole blocks of episodes in step: in another place an episode would have other bits.
    """
    try:
        found = read_records(path)
    except ArtifactError:
        return []  # none yet, or of another version
    if any(record.versions != simulator_versions() for record in found):
        return []
    count = 0
    while count < min(len(found), len(seeds)) and found[count].episode_seed == seeds[count]:
        count += 1
    if not count == len(found) == len(seeds):
        count -= count % LOCKSTEP
    return found[:count]
