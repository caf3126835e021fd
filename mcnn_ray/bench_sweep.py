"""What a sweep costs beside its training and its simulator: seconds a trial of Ray Tune, seconds an episode."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from mcnn_ray.config import SweepConfig
from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.errors import ConfigError
from mcnn_ray.rollout.episode import EVALUATION_SEED
from mcnn_ray.rollout.pool import RolloutPool
from mcnn_ray.sweep.cluster import cluster_cpus, ray_session
from mcnn_ray.sweep.plan import SweepPlan, earlier_start, make_plan
from mcnn_ray.sweep.progress import PackProgress
from mcnn_ray.sweep.studies import Studies, make_study
from mcnn_ray.sweep.training import train_plan
from mcnn_ray.tasks.catalogue import find_task

__all__ = ["bench_sweep"]

_DEMONSTRATIONS = 2  # episodes, the least that are accepted
_WARM_UP = 2  # trials and episodes before those that are timed: the first start processes


class Watch(Protocol):
    """Sees how far it is."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Take a stage's name, what is done of it and what there is in all."""


def bench_sweep(task_id: str, *, trials: int, seed: int, watch: Watch) -> dict[str, Any]:
    """Time trials that train one member for one step, then an episode of each one's policy.

    Args:
        task_id: of the catalogue, with a packaged expert.
        trials: of one pack with one member each.
        seed: of the first member and of the demonstrations.
        watch: told of progress.

    Returns:
        `seconds_per_trial` and `seconds_per_episode` of the whole cluster, that is wall time over their number; with
        `cpus`, how many ran at once at most, and `start_seconds`, that the first trials took.

    Raises:
        ConfigError: fewer than one trial is asked for, or the task has no expert.
    """
    if trials < 1:
        raise ConfigError(f"--trials is {trials}; it must be at least 1")
    task = find_task(task_id)
    demonstrations = collect_episodes(task, _DEMONSTRATIONS, seed=seed)
    config = SweepConfig.parse(
        {
            "task": task.id,
            "method": "bc",
            "seed": list(range(seed, seed + _WARM_UP + trials)),
            "steps": 1,
            "hidden": [16],
            "batch_size": 32,
        },
        "flags",
    )
    study = make_study(config, task, demonstrations)
    studies = Studies(task=task, demonstrations=demonstrations, parts={None: study})
    members = config.members()
    with tempfile.TemporaryDirectory() as folder, ray_session():
        place = Path(folder).resolve()
        first = make_plan(
            place / "first", members[:_WARM_UP], studies, earlier_start(place / "first", studies), _WARM_UP
        )
        timed = make_plan(place / "timed", members[_WARM_UP:], studies, earlier_start(place / "timed", studies), trials)
        start_s = _train(first, studies, watch)
        trained_s = _train(timed, studies, watch)
        with RolloutPool(task, actors=cluster_cpus()) as pool:
            seeds = [EVALUATION_SEED]
            pool.evaluate({identity: first.policy(identity) for identity in first.members}, seeds)
            started = time.perf_counter()
            pool.evaluate(
                {identity: timed.policy(identity) for identity in timed.members},
                seeds,
                progress=lambda done, total: watch("episodes", done, total),
            )
            rolled_out_s = time.perf_counter() - started
        return {
            "task": task.id,
            "trials": trials,
            "cpus": cluster_cpus(),
            "start_seconds": start_s,
            "seconds_per_trial": trained_s / trials,
            "seconds_per_episode": rolled_out_s / trials,
        }


def _train(plan: SweepPlan, studies: Studies, watch: Watch) -> float:
    """Return the seconds that it took."""
    packs = plan.open_packs()
    started = time.perf_counter()
    train_plan(
        plan,
        packs,
        studies,
        checkpoint_s=60.0,
        at_once=cluster_cpus(),
        progress=PackProgress(packs, lambda done, total: watch("trials", done, total)),
    )
    return time.perf_counter() - started
