"""Demonstrations of a packaged expert that scripts and reproductions need, recorded unless they are there."""

from __future__ import annotations

from collections.abc import Callable

from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.data.minari_store import dataset_exists, write_minari
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["record_unless_there"]


def record_unless_there(
    task: Task,
    episodes: int,
    progress: Callable[[str, float, float], None],
    *,
    dataset: str | None = None,
    least_return: float | None = None,
) -> None:
    """Record a task's expert into Minari; the dataset appears whole or not at all.

    Args:
        task: that has an expert.
        episodes: how many.
        progress: called with what is done, how much of it and of how much.
        dataset: Minari id to write; None takes the last of the task's own, which is nobody's download.
        least_return: episodes of less are left out, and others recorded in their place; None keeps all.

    Raises:
        McnnError: there is no expert, or the simulator fails.
    """
    target = dataset or task.datasets[-1]
    if dataset_exists(target):
        return
    recorded = collect_episodes(
        task,
        episodes,
        least_return=least_return,
        progress=lambda done: progress(f"recording {task.id}, episodes", done, episodes),
    )
    kept = "" if least_return is None else f", of a return of {least_return:g} or more"
    description = f"{recorded.source}{kept}, recorded by mcnn-ray; {task.reward} reward"
    write_minari(recorded, target, make_environment(task), description=description)
