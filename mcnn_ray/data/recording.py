"""Demonstrations of a packaged expert, recorded into Minari."""

from __future__ import annotations

from collections.abc import Callable

from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.data.minari_store import dataset_exists, write_minari
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["record_expert", "record_unless_there"]


def record_expert(
    task: Task,
    episodes: int,
    target: str,
    progress: Callable[[int], None],
    *,
    expert: str | None = None,
    noise: bool = True,
    seed: int = 0,
    least_return: float | None = None,
    overwrite: bool = False,
) -> None:
    """Record an expert into a Minari dataset, which appears whole or not at all; see `collect_episodes`.

    Args:
        task: whose environment is used.
        episodes: how many.
        target: Minari id to write.
        progress: called with the episodes kept.
        expert: name; None takes the task's own.
        noise: act with the expert's noise.
        seed: of the first episode.
        least_return: episodes of less are left out, and others recorded in their place; None keeps all.
        overwrite: replace what is there.

    Raises:
        McnnError: there is no expert, or the simulator fails.
    """
    recorded = collect_episodes(
        task,
        episodes,
        expert=expert,
        noise=noise,
        seed=seed,
        least_return=least_return,
        progress=progress,
    )
    with_noise = f"{'with' if noise else 'without'} noise"
    description = f"{recorded.source}, {with_noise}, recorded by mcnn-ray; {task.reward} reward"
    write_minari(recorded, target, make_environment(task), description=description, overwrite=overwrite)


def record_unless_there(
    task: Task,
    episodes: int,
    progress: Callable[[str, float, float], None],
    *,
    dataset: str | None = None,
    least_return: float | None = None,
) -> None:
    """Record a task's expert, unless the dataset is there.

    Args:
        task: that has an expert.
        episodes: how many.
        progress: called with what is done, how much of it and of how much.
        dataset: Minari id to write; None takes the last of the task's own, which is nobody's download.
        least_return: as of `record_expert`.

    Raises:
        McnnError: there is no expert, or the simulator fails.
    """
    target = dataset or task.datasets[-1]
    if not dataset_exists(target):
        stage = f"recording {task.id}, episodes"
        record_expert(task, episodes, target, lambda done: progress(stage, done, episodes), least_return=least_return)
