"""A pool of Ray actors that run episodes; what it returns does not depend on how many there are, nor on who dies.

A work item is a policy with a few episode seeds, whose episodes run in step. The place of each is fixed by the seeds'
order alone, so an episode gives the same bits wherever, however often and in whose company it runs. An actor that dies
or takes too long, or whose simulator's server fails, is replaced and its item runs again; when nothing else is left,
idle actors run the slowest items a second time.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from mcnn_ray.errors import ConfigError, ServerError, ServerStartError, SimulationError
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.rollout.actor import Item, start_actor
from mcnn_ray.rollout.episode import LOCKSTEP, Rollout
from mcnn_ray.rollout.outcome import EpisodeError, Evaluation, Lost
from mcnn_ray.tasks.catalogue import Task

__all__ = ["RolloutPool", "evaluate"]

_ATTEMPTS = 3  # of an item whose actor died or was too slow
_SERVER_ATTEMPTS = 6  # where the blame is mostly a server's
_STARTS = 6  # of actors in a row that die before they are up
_DEADLINE_S = 600.0  # of one episode
_SLOW = 2.0  # times the median of its kind an item has taken before it runs a second time
_POLL_S = 1.0

logger = logging.getLogger(__name__)


def evaluate(
    task: Task,
    policies: Mapping[str, Path],
    seeds: Sequence[int],
    *,
    actors: int,
    gpus: int = 0,
    backbone: str | None = None,
    deadline_s: float = _DEADLINE_S,
    progress: Callable[[int, int], None] | None = None,
    finished: Callable[[str, list[Rollout]], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Evaluation:
    """Roll out every policy on every seed, with actors that are started for it; see `RolloutPool`."""
    with RolloutPool(task, actors=actors, gpus=gpus, backbone=backbone, deadline_s=deadline_s) as pool:
        return pool.evaluate(policies, seeds, progress=progress, finished=finished, cancelled=cancelled)


@dataclass(slots=True)
class _Running:
    actor: Any
    item: Item | None  # None while the actor starts
    since: float = field(default_factory=time.monotonic)


class RolloutPool:
    """Actors that are kept between evaluations. Ray must be running.

    Args:
        task: whose environment the actors make.
        actors: how many run at once, at least 1, with one CPU each and, where the task needs servers, one of the
            cluster's `carla`, which may be fewer; they are started when there is work for them.
        gpus: that the actors share, for policies whose networks gain by it; results then have the GPU's rounding.
        backbone: dotted name of the class of a user's own that policies may import; see `load_policy`.
        deadline_s: seconds for an episode; whoever takes longer is ended and the episode runs again.

    Raises:
        ConfigError: the cluster has no servers, and the task needs one.
    """

    def __init__(
        self, task: Task, *, actors: int, gpus: int = 0, backbone: str | None = None, deadline_s: float = _DEADLINE_S
    ) -> None:
        actors = actors if task.server is None else min(actors, _count_servers(task))
        self._task, self._actors, self._backbone, self._deadline_s = task, actors, backbone, deadline_s
        self._gpu_share = min(1.0, math.floor(gpus / actors * 1e4) / 1e4)  # Ray counts ten thousandths
        self._idle: list[Any] = []
        self._busy: dict[Any, _Running] = {}
        self._taken: list[float] = []  # seconds an episode took, of items that ended
        self._clear({})

    def _clear(self, policies: Mapping[str, Path]) -> None:
        self._paths = policies
        self._references: dict[str, Any] = {}  # to policies in Ray's object store, while they are needed
        self._waiting: deque[Item] = deque()
        self._open: list[Item] = []
        self._attempts: dict[Item | None, int] = {}
        self._rollouts: dict[tuple[str, int], Rollout] = {}
        self._lost: list[Lost] = []
        self._fault: SimulationError | None = None
        self._without_server = 0  # failures to get one, since an item last ended

    def __enter__(self) -> RolloutPool:
        return self

    def __exit__(self, *ignored: object) -> None:
        for actor in [*self._idle, *(running.actor for running in self._busy.values())]:
            ray.kill(actor)
        self._idle, self._busy = [], {}

    def evaluate(
        self,
        policies: Mapping[str, Path],
        seeds: Sequence[int],
        *,
        progress: Callable[[int, int], None] | None = None,
        finished: Callable[[str, list[Rollout]], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Evaluation:
        """Roll out every policy on every seed.

        Args:
            policies: member identity to policy directory; this process reads them, the actors need not see them.
            seeds: episode seeds; all policies meet the same.
            progress: called with (episodes done, episodes in all).
            finished: called with a policy's identity and rollouts, in the order of the seeds, when its last one is in.
            cancelled: asked about once a second; once it says yes, what has not ended is left.

        Raises:
            EpisodeError: the environment fails in an episode; all others have run, and are kept.
            SimulationError: actors, or servers for them, cannot be started, or the simulators differ.
            ArtifactError: a policy directory is damaged.
        """
        self._clear(policies)
        together = LOCKSTEP if self._task.server is None else 1
        blocks = [tuple(seeds[start : start + together]) for start in range(0, len(seeds), together)]
        items = [Item(member, block) for member in policies for block in blocks]
        missing = {member: len(seeds) for member in policies}
        for ended in self._run(items, cancelled or (lambda: False)):
            if progress is not None:
                progress(len(self._rollouts) + len(self._lost), len(policies) * len(seeds))
            missing[ended.member] -= len(ended.seeds)
            if not missing[ended.member] and finished is not None:
                finished(ended.member, self._found(ended.member, seeds))
        rollouts = [rollout for member in policies for rollout in self._found(member, seeds)]
        evaluation = Evaluation(rollouts=rollouts, lost=self._lost)
        if self._fault is not None:
            raise EpisodeError(str(self._fault), evaluation) from self._fault
        return evaluation

    def _found(self, member: str, seeds: Sequence[int]) -> list[Rollout]:
        return [self._rollouts[member, seed] for seed in seeds if (member, seed) in self._rollouts]

    def _run(self, items: Sequence[Item], cancelled: Callable[[], bool]) -> Iterator[Item]:
        """Run items and yield each as it ends; one that is given up ends too."""
        self._waiting, self._open = deque(items), list(items)
        for _ in range(min(self._actors, len(items)) - len(self._idle) - len(self._busy)):
            self._start()
        while self._open and not cancelled():
            self._submit()
            ready, _ = ray.wait(list(self._busy), num_returns=1, timeout=_POLL_S)
            ended = [item for reference in ready for item in self._collect(reference)]
            for item in [*ended, *self._end_late()]:
                self._open.remove(item)
                if all(other.member != item.member for other in self._open):
                    self._references.pop(item.member, None)
                yield item

    def _start(self) -> None:
        actor = start_actor(self._task, self._gpu_share)
        self._busy[actor.ready.remote()] = _Running(actor, None)

    def _submit(self) -> None:
        while self._idle and (item := self._next()) is not None:
            if item.member not in self._references:
                self._references[item.member] = ray.put(load_policy(self._paths[item.member], self._backbone))
            actor = self._idle.pop()
            self._busy[actor.run.remote(item, [self._references[item.member]])] = _Running(actor, item)

    def _next(self) -> Item | None:
        """Return the next item; when none is left, one that runs for long and only once."""
        if self._waiting:
            return self._waiting.popleft()
        if not self._taken:
            return None
        copies = [running.item for running in self._busy.values()]
        slow = _SLOW * statistics.median(self._taken)
        late = [
            running
            for running in self._busy.values()
            if running.item is not None
            and copies.count(running.item) == 1
            and time.monotonic() - running.since > slow * len(running.item.seeds)
        ]
        return min(late, key=lambda running: running.since).item if late else None

    def _collect(self, reference: Any) -> list[Item]:
        """Take what a process has done; return the item that ended with it."""
        running = self._busy.pop(reference)
        item = running.item
        try:
            rollouts = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            self._start()
            return self._again(item, f"the process died: {' '.join(str(error).split())[:200]}")
        except ray.exceptions.RayTaskError as error:
            return self._fail(error, running)
        self._idle.append(running.actor)
        self._attempts.pop(None, None)
        self._without_server = 0 if item is not None else self._without_server
        if item is None or item not in self._open:
            return []
        self._taken.append((time.monotonic() - running.since) / len(item.seeds))
        self._rollouts |= {(item.member, rollout.record.episode_seed): rollout for rollout in rollouts}
        self._check_simulators(rollouts)
        return [item]

    def _check_simulators(self, rollouts: Sequence[Rollout]) -> None:
        first = next(iter(self._rollouts.values())).record.simulator
        for other in {rollout.record.simulator for rollout in rollouts} - {first}:
            raise SimulationError(
                f"{self._task.id} ran in '{first}' and in '{other}', whose returns must not be mixed; set up all "
                "nodes of the cluster alike"
            )

    def _fail(self, error: ray.exceptions.RayTaskError, running: _Running) -> list[Item]:
        """Keep a fault of the environment for the end, and return the item that ended with it; raise any other."""
        item = running.item
        if isinstance(error.cause, ServerError):
            return self._replace(running, error.cause)
        if not isinstance(error.cause, SimulationError):
            raise error.cause if isinstance(error.cause, Exception) else error from None
        self._idle.append(running.actor)
        if item is None or item not in self._open:
            return []
        if len(item.seeds) > 1:
            self._split(item)
            return []
        self._fault = self._fault or error.cause
        return [item]

    def _replace(self, running: _Running, error: ServerError) -> list[Item]:
        """End a process whose server failed, as it may hold what was true once; return the item that is given up."""
        ray.kill(running.actor)
        self._start()
        item = running.item
        if not isinstance(error, ServerStartError) or item is None:
            return self._again(item, str(error))
        self._without_server += 1
        if self._without_server > self._actors:
            raise SimulationError(f"{self._task.id}: no server could be had; {error}") from error
        logger.warning("no server for episode seeds %s; %s", item.seeds, error)
        if item in self._open and not self._runs(item):
            self._waiting.appendleft(item)
        return []

    def _split(self, item: Item) -> None:
        """Have each episode of an item run alone: one of them may be at fault."""
        singles = [Item(item.member, (seed,), place) for place, seed in enumerate(item.seeds, item.first_place)]
        self._waiting.extendleft(singles)
        self._open += singles[1:]
        self._open[self._open.index(item)] = singles[0]

    def _end_late(self) -> list[Item]:
        """End whoever is past the deadline; return the items that are given up."""
        given_up = []
        for reference, running in list(self._busy.items()):
            item = running.item
            limit = self._deadline_s * (len(item.seeds) if item is not None else 1)
            if item is not None and time.monotonic() - running.since > limit:
                del self._busy[reference]
                ray.kill(running.actor)
                self._start()
                given_up += self._again(item, f"it took longer than {limit:g} s")
        return given_up

    def _again(self, item: Item | None, reason: str) -> list[Item]:
        """Have an item run again, or give it up; return it then."""
        if item is not None and (item not in self._open or self._runs(item)):
            return []
        attempts = _ATTEMPTS if self._task.server is None else _SERVER_ATTEMPTS
        self._attempts[item] = self._attempts.get(item, 0) + 1
        if item is None:
            if self._attempts[item] >= _STARTS:
                raise SimulationError(f"{self._task.id}: no rollout process could be started; {reason}")
        elif self._attempts[item] < attempts:
            logger.warning("episode seeds %s run again; %s", item.seeds, reason)
            self._waiting.appendleft(item)
        elif len(item.seeds) > 1:
            self._split(item)
        else:
            lost = Lost(member=item.member, episode_seed=item.seeds[0], reason=f"{attempts} times {reason}")
            logger.warning("episode seed %d of %s is lost and not scored; %s", *item.seeds, item.member, lost.reason)
            self._lost.append(lost)
            return [item]
        return []

    def _runs(self, item: Item) -> bool:
        return any(running.item == item for running in self._busy.values())


def _count_servers(task: Task) -> int:
    servers = int(ray.cluster_resources().get(str(task.server), 0))
    if not servers:
        raise ConfigError(
            f"{task.id} needs the resource '{task.server}', which no node of the Ray cluster offers; start nodes with "
            f"ray start --resources='{{\"{task.server}\": N}}' for N servers at once, or unset RAY_ADDRESS"
        )
    return servers
