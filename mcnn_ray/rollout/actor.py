"""The processes of a rollout pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from mcnn_ray.policies.base import Policy
from mcnn_ray.rollout.episode import Rollout, run_episodes
from mcnn_ray.tasks.catalogue import Task

__all__ = ["Item", "start_actor"]


@dataclass(frozen=True, slots=True)
class Item:
    """A policy with a few episodes to run in step.

    Attributes:
        member: identity of the policy.
        seeds: of the episodes.
        first_place: of the first among those in step.
    """

    member: str
    seeds: tuple[int, ...]
    first_place: int = 0


class _RolloutActor:
    """Runs items in its own environments, which are made with the first: an error in here would look like death."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._envs: list[Any] = []
        self._policies: dict[Any, Policy] = {}  # by reference

    def ready(self) -> None:
        """Return when the process is up."""

    def run(self, item: Item, policy: list[Any]) -> list[Rollout]:
        from mcnn_ray.tasks.environments import make_environment

        while len(self._envs) < len(item.seeds):
            self._envs.append(make_environment(self._task))
        (reference,) = policy  # in a list, or Ray would build the policy anew for every item
        if reference not in self._policies:
            self._policies = {reference: ray.get(reference)}  # one at a time: items come by policy
            if ray.get_gpu_ids():
                self._policies[reference].to("cuda")
        return run_episodes(
            self._policies[reference], self._task, self._envs, item.seeds, item.member, item.first_place
        )


_REMOTE_ACTOR: Any = ray.remote(num_cpus=1, max_restarts=0)(_RolloutActor)


def start_actor(task: Task, gpu_share: float) -> Any:
    """Start a process for items of a task, with a CPU and, where the task needs one, a server; return its handle."""
    resources = {} if task.server is None else {task.server: 1}
    return _REMOTE_ACTOR.options(num_gpus=gpu_share, resources=resources).remote(task)
