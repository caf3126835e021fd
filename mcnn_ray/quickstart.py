"""`mcnn quickstart`: the whole path on a small real task, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcnn_ray.cli_sweep import check_filed, print_result
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.data.minari_store import dataset_exists, read_minari, write_minari
from mcnn_ray.sweep.runner import run_sweep
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment, simulator_versions
from mcnn_ray.terminal import StageProgress, output_console

__all__ = ["SWEEP", "record_demonstrations", "run_quickstart"]

_TASK = "door-expert-v1"
_DATASET = "mcnn/door/quickstart-v0"
_EPISODES = 10
# Nothing here is chosen by its result: decades of lambda, and the ends of the paper's range of memory fractions.
SWEEP: dict[str, Any] = {
    "name": "quickstart",
    "task": _TASK,
    "dataset": _DATASET,
    "method": ["mcnn+mlp", "bc", "1nn"],
    "lambda": [0.01, 0.1, 1.0, 10.0],
    "memory_fraction": [0.025, 0.1],
    "seed": [0, 1],
    "steps": 3000,
    "episodes": 20,
}


def run_quickstart(storage: Path) -> None:
    """Record demonstrations, sweep, and show the comparison.

    Args:
        storage: folder for results; a second start continues or shows what is there.

    Raises:
        McnnError: what a user can mend.
    """
    with StageProgress() as progress:
        record_demonstrations(progress)
        result = run_sweep(SweepConfig.parse(SWEEP, "quickstart"), storage, progress, progress.say)
    print_result(result)
    for line in (
        f"figure:  {result.figure}",
        f"table:   {result.folder / 'results.csv'}",
        f"open the UI:  mcnn ui --storage {storage}   and follow the address beside {_TASK}",
    ):
        output_console.print(line, highlight=False, soft_wrap=True)
    check_filed(result)


def record_demonstrations(progress: StageProgress) -> None:
    """Record the demonstrations unless they are there from an earlier start with the same simulator."""
    if dataset_exists(_DATASET):
        found = read_minari(_DATASET).provenance
        if found.get("versions") == simulator_versions() and found.get("episodes") == _EPISODES:
            return
    task = find_task(_TASK)
    recorded = collect_episodes(task, _EPISODES, progress=lambda done: progress("recording, episodes", done, _EPISODES))
    recorded.provenance["episodes"] = _EPISODES
    env = make_environment(task)
    write_minari(recorded, _DATASET, env, description="packaged door expert, for mcnn quickstart", overwrite=True)
