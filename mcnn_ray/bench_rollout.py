"""Rollouts a second of the pool, against the simulator alone stepped through the same actions on the same cores."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import ray

from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.errors import ConfigError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.rollout.episode import EVALUATION_SEED, LOCKSTEP, Rollout
from mcnn_ray.rollout.pool import RolloutPool
from mcnn_ray.sweep.cluster import cluster_cpus, ray_session
from mcnn_ray.tasks.catalogue import Task, find_task
from mcnn_ray.tasks.environments import environment_id

if TYPE_CHECKING:
    from mcnn_ray.sweep.runner import Watcher

__all__ = ["bench_rollout"]

_ROUNDS = 5  # of pool and simulator in turn
_TRAINED_STEPS = 1000
_LEAST_ROWS = 400  # more than a batch
_ROWS_A_MEMORY = 2  # of the demonstrations that the policies learn from


class _RawActor:
    """Steps the plain environment, without wrappers of ours, through recorded actions."""

    def __init__(self, task: Task) -> None:
        from mcnn_ray.tasks.environments import make_environment

        make_environment(task).close()  # registers the environments
        self._env: Any = gym.make(environment_id(task), disable_env_checker=True, max_episode_steps=task.horizon)

    def replay(self, rollouts: Sequence[Rollout]) -> int:
        """Return the steps taken."""
        for rollout in rollouts:
            self._env.reset(seed=rollout.record.episode_seed)
            for action_A in rollout.actions_TA:
                self._env.step(action_A)
        return sum(rollout.record.length for rollout in rollouts)


_REMOTE_RAW: Any = ray.remote(num_cpus=0)(_RawActor)  # it works while the pool rests, on the same cores


def bench_rollout(
    task_id: str, *, policies: int, episodes: int, memories: int, actors: int, watch: Watcher
) -> dict[str, Any]:
    """Time rollouts of `mcnn+mlp` policies that are trained for it, by seed, on demonstrations recorded for it.

    Args:
        task_id: of the catalogue, with a packaged expert.
        policies: how many.
        episodes: of each.
        memories: of the codebook they share.
        actors: at once, at most one a CPU.
        watch: told of progress.

    Returns:
        `steps_per_s` and `episodes_per_s` of the pool with its actors started, `raw_steps_per_s` of the simulator with
        the same actions, episodes dealt over as many processes; `ratio` of the two. Medians of rounds in turn, with the
        least and largest ratio of a round.

    Raises:
        ConfigError: a number is out of range or the task has no expert.
    """
    for name, value in (("policies", policies), ("episodes", episodes), ("memories", memories), ("actors", actors)):
        if value < 1:
            raise ConfigError(f"--{name} is {value}; it must be at least 1")
    task = find_task(task_id)
    with tempfile.TemporaryDirectory() as folder, ray_session():
        if actors > cluster_cpus():
            raise ConfigError(f"{actors} actors are asked for, but there are {cluster_cpus()} CPUs")
        paths = _train(task, policies, memories, Path(folder), watch)
        seeds = range(EVALUATION_SEED, EVALUATION_SEED + episodes)
        raw = [_REMOTE_RAW.remote(task) for _ in range(actors)]
        with RolloutPool(task, actors=actors) as pool:
            rollouts = pool.evaluate(paths, seeds).rollouts  # starts the actors
            rounds = []
            for done in range(_ROUNDS):
                rounds.append((_seconds(lambda: pool.evaluate(paths, seeds)), _seconds(lambda: _replay(raw, rollouts))))
                watch("rollouts and the simulator alone, rounds", done + 1, _ROUNDS)
        for actor in raw:
            ray.kill(actor)
    steps = sum(rollout.record.length for rollout in rollouts)
    ratios = [alone / ours for ours, alone in rounds]
    seconds = statistics.median(ours for ours, _ in rounds)
    return {
        "task": task.id,
        "policies": policies,
        "episodes": episodes,
        "memories": memories,
        "actors": actors,
        "episodes_in_step": LOCKSTEP,
        "steps": steps,
        "steps_per_s": steps / seconds,
        "raw_steps_per_s": steps / statistics.median(alone for _, alone in rounds),
        "episodes_per_s": len(rollouts) / seconds,
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "rounds": _ROUNDS,
    }


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _replay(raw: Sequence[Any], rollouts: Sequence[Rollout]) -> None:
    ray.get([actor.replay.remote(rollouts[place :: len(raw)]) for place, actor in enumerate(raw)])


def _train(task: Task, policies: int, memories: int, folder: Path, watch: Watcher) -> dict[str, Path]:
    """Record demonstrations, train the policies and write their directories."""
    # Here, as the processes that replay need none of it.
    import torch

    from mcnn_ray.config import SweepConfig
    from mcnn_ray.sweep.studies import make_study
    from mcnn_ray.training.data import make_training_data
    from mcnn_ray.training.pack import Pack

    needed = -(-max(_ROWS_A_MEMORY * memories, _LEAST_ROWS) // (task.horizon or memories))
    demonstrations = collect_episodes(task, needed, progress=lambda done: watch("demonstrations", done, needed))
    config = SweepConfig.parse(
        {
            "task": task.id,
            "method": "mcnn+mlp",
            "memories": "random",
            "memory_fraction": memories / demonstrations.steps,
            "seed": list(range(policies)),
            "lambda": 1.0,
            "steps": _TRAINED_STEPS,
        },
        "flags",
    )
    study, members = make_study(config, task, demonstrations), config.members()
    study.learn_codebooks(members, folder / "cache")
    (key,) = {member.memory_key for member in members if member.memory_key is not None}
    data = make_training_data(study.obs_ND, study.units, {key: study.nearest_memories(key)})
    torch.set_num_threads(1)  # two wait for each other, for long on a busy machine
    pack = Pack(members, data)
    while pack.step < _TRAINED_STEPS:
        pack.train(100)
        watch("training, steps", pack.step, _TRAINED_STEPS)
    paths = {study.identity(member): folder / study.identity(member) for member in members}
    for position, (member, path) in enumerate(zip(members, paths.values(), strict=True)):
        save_policy(study.policy(member, pack.parameters(position)), path)
    return paths
