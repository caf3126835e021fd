"""A pool of Ray actors that run episodes; what it returns does not depend on how many there are.

A work item is (policy, episode seed). Actors hold an environment and the policies they have met; an actor that dies is
replaced and its item runs again elsewhere. Errors of the environment itself are not tried again: they would repeat.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from mcnn_ray.errors import SimulationError
from mcnn_ray.rollout.episode import EpisodeRecord, run_episode
from mcnn_ray.tasks.catalogue import Task

__all__ = ["evaluate"]

_ATTEMPTS = 3  # of an item whose actor died

logger = logging.getLogger(__name__)

Item = tuple[str, int]  # member identity, episode seed


class _RolloutActor:
    """Runs episodes one at a time in its own environment."""

    def __init__(self, task: Task, policies: Mapping[str, str]) -> None:
        self._task = task
        self._env: Any = None  # made with the first episode: an error in here would look like the actor's death
        self._paths = dict(policies)
        self._loaded: dict[str, Any] = {}

    def run(self, member: str, seed: int) -> EpisodeRecord:
        from mcnn_ray.policies.loading import load_policy
        from mcnn_ray.tasks.environments import make_environment

        if self._env is None:
            self._env = make_environment(self._task)
        if member not in self._loaded:
            self._loaded = {member: load_policy(Path(self._paths[member]))}  # one at a time: items come by member
        return run_episode(self._loaded[member], self._task, self._env, seed, member)


_REMOTE_ACTOR: Any = ray.remote(num_cpus=1, max_restarts=0)(_RolloutActor)


def evaluate(
    task: Task,
    policies: Mapping[str, Path],
    seeds: Sequence[int],
    *,
    actors: int,
    progress: Callable[[int, int], None] | None = None,
    finished: Callable[[str, list[EpisodeRecord]], None] | None = None,
) -> list[EpisodeRecord]:
    """Roll out every policy on every seed.

    Args:
        task: whose environment the actors make.
        policies: member identity to policy directory, on a path that all nodes see.
        seeds: episode seeds; all policies meet the same.
        actors: how many run at once, one CPU each, at least 1. Ray must be running.
        progress: called with (episodes done, episodes in all).
        finished: called with a policy's identity and records, in the order of the seeds, when its last one is in.

    Returns:
        One record per (policy, seed), in the order of the policies and then of the seeds.

    Raises:
        SimulationError: the environment fails in an episode, or actors die again and again at the same one.
    """
    items: deque[Item] = deque((member, seed) for member in policies for seed in seeds)
    total = len(items)
    waiting = {member: set(seeds) for member in policies}
    pool = _Pool(task, {member: str(path.resolve()) for member, path in policies.items()})
    try:
        pool.start(min(actors, total))
        while items or pool.busy:
            pool.submit(items)
            for member, seed in pool.collect(items):
                waiting[member].discard(seed)
                if finished is not None and not waiting[member]:
                    finished(member, [pool.records[member, s] for s in seeds])
            if progress is not None:
                progress(len(pool.records), total)
    finally:
        pool.close()
    return [pool.records[member, seed] for member in policies for seed in seeds]


class _Pool:
    def __init__(self, task: Task, policies: dict[str, str]) -> None:
        self._task, self._policies = task, policies
        self._idle: list[Any] = []
        self._attempts: dict[Item, int] = {}
        self.busy: dict[Any, tuple[Any, Item]] = {}
        self.records: dict[Item, EpisodeRecord] = {}

    def start(self, actors: int) -> None:
        self._idle += [_REMOTE_ACTOR.remote(self._task, self._policies) for _ in range(actors)]

    def submit(self, items: deque[Item]) -> None:
        while items and self._idle:
            actor, item = self._idle.pop(), items.popleft()
            self.busy[actor.run.remote(*item)] = (actor, item)

    def collect(self, items: deque[Item]) -> list[Item]:
        """Wait for an episode and return the items that are done."""
        done = []
        ready, _ = ray.wait(list(self.busy), num_returns=1)
        for reference in ready:
            actor, item = self.busy.pop(reference)
            try:
                self.records[item] = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                self._again(item, items, error)
                self.start(1)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            else:
                self._idle.append(actor)
                done.append(item)
        return done

    def _again(self, item: Item, items: deque[Item], error: Exception) -> None:
        self._attempts[item] = self._attempts.get(item, 0) + 1
        if self._attempts[item] >= _ATTEMPTS:
            raise SimulationError(
                f"{self._task.id}, episode seed {item[1]}: the process died {_ATTEMPTS} times; last: {error}"
            ) from error
        logger.warning("a rollout actor died in episode seed %d; the episode runs again", item[1])
        items.appendleft(item)

    def close(self) -> None:
        for actor in [*self._idle, *(actor for actor, _ in self.busy.values())]:
            ray.kill(actor)
