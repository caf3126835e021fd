"""The catalogue of tasks under the paper's names, and tasks of a user's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mcnn_ray.errors import ArtifactError, ConfigError, did_you_mean

__all__ = ["ADROIT_NAMES", "CATALOGUE", "KITCHEN_OBJECTS", "Task", "cloned_variant", "find_recorded_task", "find_task"]

ADROIT_NAMES = ("pen", "hammer", "door", "relocate")
ADROIT_VARIANTS = ("human", "expert", "cloned")

# Returns of a random policy and of the expert: D4RL, d4rl/infos.py (REF_MIN_SCORE, REF_MAX_SCORE).
_D4RL_REFERENCES = {
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "door": (-56.512833, 2880.5693087298737),
    "relocate": (-6.425911, 4233.877797728884),
}

KITCHEN_OBJECTS = (
    "bottom burner",
    "hinge cabinet",
    "kettle",
    "light switch",
    "microwave",
    "slide cabinet",
    "top burner",
)
# What D4RL asks for in each variant: D4RL, d4rl/kitchen/kitchen_envs.py (TASK_ELEMENTS).
_D4RL_KITCHEN_OBJECTS = {
    "complete": ("kettle", "light switch", "microwave", "slide cabinet"),
    "partial": ("kettle", "light switch", "microwave", "slide cabinet"),
    "mixed": ("bottom burner", "kettle", "light switch", "microwave"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is imitated.

    Attributes:
        id: catalogue name, or `ENVIRONMENT@DATASET` for a user's own.
        environment: Gymnasium id, with `module:` in front where a module registers it; for Adroit the family name
            without version, since the newest installed version is taken.
        datasets: Minari ids that hold its demonstrations, the preferred first.
        horizon: steps after which an episode is cut; None leaves the environment's own limit.
        reference_min: return that scores 0, or None where no published reference fits.
        reference_max: return that scores 100, or None.
        reward: `d4rl-adroit` when the reward is to be D4RL's, `environment` otherwise.
        expert: name of the packaged expert, or None.
        observation_key: the part of a Dict observation that policies see; None gives them all of it.
        subtasks: what a FrankaKitchen environment asks for; empty leaves the environment's own.
        server: `carla` when the environment is a `DrivingEnv`, which has a server to itself: one episode at a time.
        images: whether observations are images, which policies see through an encoder.
        control: `joint-targets` when actions are the joint positions to reach, which `KitchenJointTargets` takes.
    """

    id: str
    environment: str
    datasets: tuple[str, ...]
    horizon: int | None = None
    reference_min: float | None = None
    reference_max: float | None = None
    reward: Literal["d4rl-adroit", "environment"] = "environment"
    expert: str | None = None
    observation_key: str | None = None
    subtasks: tuple[str, ...] = ()
    server: Literal["carla"] | None = None
    control: Literal["environment", "joint-targets"] = "environment"
    images: bool = False

    def normalised_score(self, episode_return: float) -> float | None:
        """Return `100 (return - min) / (max - min)` with D4RL's references, or None where there are none."""
        if self.reference_min is None or self.reference_max is None:
            return None
        return 100.0 * (episode_return - self.reference_min) / (self.reference_max - self.reference_min)

    def with_dataset(self, dataset: str | None) -> Task:
        """Return the task with its demonstrations taken from another Minari dataset; None changes nothing."""
        return self if dataset is None else replace(self, datasets=(dataset,))


def _adroit_task(name: str, variant: str) -> Task:
    reference_min, reference_max = _D4RL_REFERENCES[name]
    return Task(
        id=f"{name}-{variant}-v1",
        environment=f"AdroitHand{name.capitalize()}",
        # What is recorded or imported here has an id that does not pretend to be D4RL's.
        datasets=(f"D4RL/{name}/{variant}-v2", f"mcnn/{name}/{variant}-v0"),
        horizon=100 if name == "pen" else 200,
        reference_min=reference_min,
        reference_max=reference_max,
        reward="d4rl-adroit",
        expert=name if variant == "expert" else None,
    )


def _kitchen_task(name: str, *datasets: str, **others: Any) -> Task:
    return Task(
        id=f"kitchen-{name}",
        environment="FrankaKitchen-v1",
        datasets=datasets,
        horizon=280,
        observation_key="observation",
        **{"subtasks": KITCHEN_OBJECTS, **others},
    )


# Returns of a random policy and of the expert or the data: D4RL, d4rl/carla/__init__.py.
_D4RL_DRIVING = {
    "lane": (250, -0.8503839912088142, 1023.5784385429523),
    "town": (1000, -114.81579500772153, 2440.1772022247314),
}


def _driving_task(name: str, strict: bool) -> Task:
    horizon, reference_min, reference_max = _D4RL_DRIVING[name]
    return Task(
        id=f"carla-{name}-{'strict-' if strict else ''}v0",
        environment=f"Driving{name.capitalize()}{'Strict' if strict else ''}-v0",
        datasets=(f"mcnn/driving/{name}-{'strict-' if strict else ''}v0",),
        horizon=horizon,
        reference_min=reference_min,
        reference_max=reference_max,
        expert="driving",
        server="carla",
        images=True,
    )


_TASKS = (
    *(_adroit_task(name, variant) for name in ADROIT_NAMES for variant in ADROIT_VARIANTS),
    *(
        _kitchen_task(f"{name}-v2", f"D4RL/kitchen/{name}-v2", f"mcnn/kitchen/{name}-v0", subtasks=objects)
        for name, objects in _D4RL_KITCHEN_OBJECTS.items()
    ),
    _kitchen_task("relay-v0", "mcnn/kitchen/relay-v0", control="joint-targets"),
    _kitchen_task("scripted-v0", "mcnn/kitchen/scripted-v0", expert="kitchen"),
    *(_driving_task(name, strict) for strict in (False, True) for name in _D4RL_DRIVING),
)
CATALOGUE: dict[str, Task] = {task.id: task for task in _TASKS}


def cloned_variant(task: Task) -> Task | None:
    """Return the task whose demonstrations are cloned from a task's, or None where the catalogue has none."""
    family, _, rest = task.id.partition("-")
    return CATALOGUE.get(f"{family}-cloned-v1") if rest in ("human-v1", "expert-v1") else None


def find_task(name: str) -> Task:
    """Return a task by its catalogue name, or a user's own from `ENVIRONMENT@DATASET`.

    Args:
        name: e.g. `door-human-v1`, or `Pendulum-v1@me/pendulum/expert-v0`.

    Raises:
        ConfigError: no such task; the message names the nearest.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    environment, at, dataset = name.partition("@")
    if at and environment and dataset:
        return Task(id=name, environment=environment, datasets=(dataset,))
    raise ConfigError(
        f"unknown task '{name}': {did_you_mean(name, CATALOGUE)} "
        "For a task of your own write ENVIRONMENT@DATASET (a Gymnasium id and a Minari id)."
    )


def find_recorded_task(name: object, trusted_module: str | None, where: Path) -> Task:
    """Return a task that a file names, without letting the file choose which module is imported.

    Args:
        name: of the task, as the file has it.
        trusted_module: the one that the task's environment may be imported from, or None.
        where: the file or directory, for messages.

    Raises:
        ConfigError: no such task.
        ArtifactError: it is no name, or its environment is of a module that is not trusted.
    """
    if not isinstance(name, str):
        raise ArtifactError(f"{where} does not name its task; make it again")
    task = find_task(name)
    module, colon, _ = task.environment.partition(":")
    if colon and module != trusted_module:
        raise ArtifactError(
            f"{where} is of the environment {task.environment}, imported from {module}; pass --trust-module {module} "
            "if you trust that module"
        )
    return task
