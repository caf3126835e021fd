"""The demonstrations of a reproduction: found here, recorded from a packaged expert, cloned, or said to be missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minari.storage import get_dataset_path

from mcnn_ray.artifacts import read_json
from mcnn_ray.carla.plan import SERVERS_VARIABLE, find_plan
from mcnn_ray.config import SweepConfig
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import dataset_exists, write_minari
from mcnn_ray.data.recording import record_unless_there
from mcnn_ray.errors import ArtifactError, DatasetError
from mcnn_ray.reproduction.budgets import Budget
from mcnn_ray.sweep.cloning import clone_demonstrations
from mcnn_ray.tasks.catalogue import CATALOGUE, Task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["PAPER_ENCODER", "Missing", "Source", "find_source", "make_source"]

PAPER_ENCODER = Path("runs/encoders/cilrs")  # of camera images, in the driving tasks

Progress = Callable[[str, float, float], None]

_LEAST_OBJECTS = 4  # that each of the script's demonstrations does, in Kitchen
# What else than Minari's download gets them, by task.
_COMMANDS = {
    "kitchen-relay-v0": "mcnn data import kitchen_demos_multitask.zip mcnn/kitchen/relay-v0 --task kitchen-relay-v0 "
    "--clip-actions",
    "carla-lane-v0": "mcnn data import carla_lane_follow_flat-v0.hdf5 mcnn/driving/lane-v0 --task carla-lane-v0",
    "carla-town-v0": "mcnn data import carla_town_subsamp_flat-v0.hdf5 mcnn/driving/town-v0 --task carla-town-v0",
}
_REASONS = {
    "kitchen-relay-v0": "the human demonstrations of Relay Policy Learning are not here",
    "carla-lane-v0": "no driving demonstrations are here: D4RL's, or some recorded by mcnn data collect",
    "carla-town-v0": "no driving demonstrations are here: D4RL's, or some recorded by mcnn data collect",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A dataset that a task's sweeps learn from.

    Attributes:
        dataset: its Minari id.
        episodes: that it has, or will have once it is made.
        take: how many of them are learned from; None for all.
        made_by: `recording` or `cloning` where it is still to be made, else empty.
        origin: task whose demonstrations are cloned.
    """

    dataset: str
    episodes: int
    take: int | None = None
    made_by: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why a row cannot be had here.

    Attributes:
        reason: what is missing.
        command: what gets it.
    """

    reason: str
    command: str


def find_source(task: Task, budget: Budget) -> Source | Missing:
    """Find what a task's sweeps learn from, without making it.

    Datasets under the catalogue's ids come first: D4RL's, imported ones, those recorded by hand. Of an expert's
    episodes the budget's number is taken; where none has as many, they are recorded. Cloned ones are made of the human
    ones, as D4RL's are.
    """
    most = _wanted(task, budget)
    here = any(map(dataset_exists, task.datasets))
    if task.server is not None and here and (lacking := _lacking_simulator()) is not None:
        return lacking
    for dataset in task.datasets:
        if dataset_exists(dataset) and (have := _episodes(dataset)) >= (most or 1):
            take = _taken(task, budget)
            return Source(dataset=dataset, episodes=have, take=take if take is not None and take < have else None)
    if task.expert is not None and most is not None:
        return _own(task, f"-{most}", most, _taken(task, budget), "recording")
    human = CATALOGUE.get(task.id.replace("-cloned-", "-human-"))
    if human is not None and human.id != task.id and isinstance(shown := find_source(human, budget), Source):
        return _own(task, f"-{budget.name}", 2 * shown.episodes, None, "cloning", human.id)
    first = task.datasets[0]
    reason = _REASONS.get(task.id, f"{first} is not here")
    if "-cloned-" in task.id:
        reason += ", nor are the human demonstrations that cloned ones can be made of"
    return Missing(reason=reason, command=_COMMANDS.get(task.id, f"minari download {first}"))


def make_source(task: Task, source: Source, budget: Budget, progress: Progress) -> None:
    """Record or clone a dataset that is not here yet; it appears whole or not at all.

    Raises:
        McnnError: the simulator fails, or demonstrations cannot be cloned.
    """
    if not source.made_by or dataset_exists(source.dataset):
        return
    if source.made_by == "recording":
        least = _LEAST_OBJECTS if task.id == "kitchen-scripted-v0" else None
        record_unless_there(task, source.episodes, progress, dataset=source.dataset, least_return=least)
        return
    cloned = _clone(source, budget, progress)
    description = f"{cloned.source}, for mcnn reproduce --budget {budget.name}; {task.reward} reward"
    write_minari(cloned, source.dataset, make_environment(task), description=description)


def _lacking_simulator() -> Missing | None:
    """Return what driving lacks beside demonstrations, if anything: the paper's numbers are CARLA's."""
    if find_plan("", "").kind == "lite":
        return Missing(
            reason="no CARLA is named, and the lite server's returns (sweeps/carla_lane.py) are no CARLA's",
            command=f"export {SERVERS_VARIABLE}=127.0.0.1:2000, or what else docs/carla_servers.md lists",
        )
    if not PAPER_ENCODER.is_dir():
        return Missing(
            reason=f"the paper's encoder of images is not in {PAPER_ENCODER}",
            command=f"mcnn encoder import 660000.pth {PAPER_ENCODER}",
        )
    return None


def _clone(source: Source, budget: Budget, progress: Progress) -> Demonstrations:
    human = find_source(CATALOGUE[source.origin], budget)
    if isinstance(human, Missing):
        raise DatasetError(f"{human.reason}; get them with: {human.command}")
    values = {**budget.keys, "task": source.origin, "dataset": human.dataset, "method": "bc", "steps": budget.steps}
    values |= {"clip_actions": True, "constant_columns": "ignore"}
    return clone_demonstrations(SweepConfig.parse(values, "reproduce"), None, progress)


def _own(task: Task, suffix: str, episodes: int, take: int | None, made_by: str, origin: str = "") -> Source:
    """Return the dataset that a reproduction makes of its own, beside what a user keeps under the catalogue's ids."""
    name, _, version = task.datasets[-1].rpartition("-")
    dataset = f"{name}{suffix}-{version}"
    here = dataset_exists(dataset)
    take = take if take is not None and take < episodes else None
    return Source(
        dataset=dataset, episodes=episodes, take=take, made_by="" if here else made_by, origin="" if here else origin
    )


def _wanted(task: Task, budget: Budget) -> int | None:
    """Return how many episodes of an expert there must be; None where those that there are must do."""
    if task.id == "kitchen-scripted-v0":
        return budget.kitchen_demonstrations
    return max(budget.demonstrations, *budget.counts) if task.id.endswith("-expert-v1") else None


def _taken(task: Task, budget: Budget) -> int | None:
    if task.id == "kitchen-scripted-v0":
        return budget.kitchen_demonstrations
    return budget.demonstrations if task.id.endswith("-expert-v1") else None


def _episodes(dataset: str) -> int:
    """Return how many episodes a dataset says it has; 0 where it does not say, and reading it will tell why."""
    try:
        return int(read_json(get_dataset_path(dataset) / "data" / "metadata.json").get("total_episodes", 0))
    except (ArtifactError, TypeError, ValueError):
        return 0
