"""The configuration of a sweep, from a YAML file, flags or Python, checked where it enters."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mcnn_ray.artifacts import content_hash
from mcnn_ray.config_file import first_fault
from mcnn_ray.core.codebook import CODEBOOK_METHODS
from mcnn_ray.errors import ConfigError, did_you_mean
from mcnn_ray.member import Member, make_member
from mcnn_ray.methods import METHODS, PRESETS, default_preset, known_options
from mcnn_ray.search_space import SEARCHED_KEYS, Range, numbers_or_range, values_of
from mcnn_ray.tasks.catalogue import Task, find_task

__all__ = ["SweepConfig"]


def _as_list(value: Any) -> Any:
    if value is None:
        return []
    return value if isinstance(value, (list, tuple)) else [value]


# Keys that change how a sweep runs, what is seen of it on the way and how soon it ends, but not what it compares.
_NOT_RESULTS = ("checkpoint_s", "evaluate_every", "curve_episodes", "workers", "stop_early")
_MOST_MEMBERS = 100_000
RESERVED_NAMES = ("mlflow.db", "artifacts", "cache", "memories", "videos", "encoders", "reproduce")  # of the storage

_OF_METHODS = (
    *("preset", "options", "lambda", "L", "memory_fraction", "memories", "memory_action", "distance", "steps"),
    *("learning_rate", "beta_schedule", "batch_size", "hidden"),
)  # keys that may be other for one method
_SELECTING = ("search", "trials", "trials_at_once", "halving")
FloatsOrRange = Annotated[Annotated[tuple[float, ...], Field(min_length=1)] | Range, BeforeValidator(numbers_or_range)]
Ints = Annotated[tuple[int, ...], BeforeValidator(_as_list), Field(min_length=1)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]
Options = dict[str, Annotated[tuple[float | int | str, ...], BeforeValidator(_as_list), Field(min_length=1)]]


def _holds_tuple(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_holds_tuple, get_args(annotation)))


def _preset_of(task: str) -> str:
    try:
        return default_preset(find_task(task).environment)
    except ConfigError:  # which `find_task` tells when it matters
        return "paper"


class SweepConfig(BaseModel):
    """All members of one study: every combination of the lists, for each method the ones it uses.

    What is left out of `lambda`, `L`, `memory_fraction`, `distance`, `learning_rate`, `beta_schedule`, `batch_size`,
    `hidden` and `options` is as the preset has it for each method.

    `lambda`, `L`, `memory_fraction` and `learning_rate` may also be ranges, from which a search draws.

    Attributes:
        task: catalogue name, or `ENVIRONMENT@DATASET`.
        dataset: Minari id to take instead of the task's own.
        encoder: of images, `random-resnet34`, `random-small`, or the directory of one; None where observations are not
            images.
        demonstrations: how many episodes to learn from, drawn at random with seed 0; empty takes all.
        method: rows of the table.
        preset: values of what is not given, one of `mcnn_ray.methods.PRESETS`; where a method has no such
            preset, it takes the paper's. By default `kitchen` in FrankaKitchen-v1, `driving` in the driving
            environments and `paper` elsewhere.
        options: hyperparameters that only some methods have, each with a list of values; see `mcnn methods`.
        for_method: keys that are other for one method, by its name, e.g. `{bet: {steps: 500, batch_size: 64}}`.
        lambda_: rates at which memories lose weight with distance (key `lambda`).
        L: bounds of the network's part.
        memory_fraction: codebook sizes over dataset size.
        memories: ways of picking memories.
        memory_seed: seed of the codebooks.
        memory_action: what memories return, `expert` or `mean`.
        distance: units of distances in the memories' weight, `euclidean`, `per-dimension` or `median`.
        seed: training seeds.
        steps: gradient steps of each member.
        learning_rate: Adam's.
        beta_schedule: of the activation's slope outside [-1, 1], `paper` or `official-code`.
        batch_size: transitions a step.
        hidden: widths of the hidden layers.
        backbone: dotted name of a torch.nn.Module class to train instead of an MLP.
        episodes: rollouts of each member.
        stop_early: end the rollouts of settings that are separated from the best one.
        clip_actions: clip demonstrated actions to the environment's bounds instead of refusing them.
        constant_columns: refuse, or ignore, observation columns that never change.
        min_episodes: refuse datasets with fewer episodes.
        checkpoint_s: seconds of training that a crash may cost at most, about.
        evaluate_every: training steps between rollouts of the members on their way, about; 0 for none.
        curve_episodes: of each of these, and of each comparison of a search or of halving.
        search: `grid` takes every combination; `optuna` draws settings from ranges and lists and reports each method's
            best one.
        trials: settings that a search tries for each method [default: 32].
        trials_at_once: of them, trained together before the next are drawn [default: 8].
        halving: train all settings of a grid for a part of their steps, go on with the best one of so many, again and
            again, and report the last one of each method.
        workers: of Ray Train; 1 trains the packs as Tune trials.
        name: of the sweep and its folder; by default the task and a hash of the configuration.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    task: str
    dataset: str | None = Field(default=None, min_length=1)
    encoder: str | None = Field(default=None, min_length=1)
    demonstrations: Annotated[tuple[int, ...], BeforeValidator(_as_list)] = ()
    method: Strings = ("mcnn+mlp", "bc", "1nn")
    preset: str = Field(default_factory=lambda given: _preset_of(given.get("task", "")))
    options: Options = {}
    for_method: dict[str, dict[str, Any]] = {}
    lambda_: FloatsOrRange = Field(default=(), alias="lambda")
    L: FloatsOrRange = ()
    memory_fraction: FloatsOrRange = ()
    memories: Strings = ("neural-gas",)
    memory_seed: int = 0
    memory_action: Strings = ("expert",)
    distance: Strings = ()
    seed: Ints = (0,)
    steps: int = 20_000
    learning_rate: FloatsOrRange = ()
    beta_schedule: Strings = ()
    batch_size: int | None = None
    hidden: Ints = ()
    backbone: str | None = None
    episodes: int = Field(default=20, ge=1)
    stop_early: bool = False
    clip_actions: bool = False
    constant_columns: Literal["refuse", "ignore"] = "refuse"
    min_episodes: int = Field(default=2, ge=1)
    checkpoint_s: float = Field(default=20.0, ge=0)
    evaluate_every: int = Field(default=0, ge=0)
    curve_episodes: int = Field(default=10, ge=1)
    search: Literal["grid", "optuna"] = "grid"
    trials: int | None = Field(default=None, ge=1)
    trials_at_once: int | None = Field(default=None, ge=1)
    halving: int | None = Field(default=None, ge=2)
    workers: int = Field(default=1, ge=1)
    name: str | None = None

    @classmethod
    def takes_list(cls, key: str) -> bool:
        """Tell whether several values can be asked for under a key.

        Args:
            key: name of an attribute.
        """
        return _holds_tuple(cls.model_fields[key].annotation)

    @classmethod
    def parse(cls, values: dict[str, Any], source: str) -> SweepConfig:
        """Check a mapping of keys to values.

        Args:
            values: as read from a file or from flags.
            source: named in messages, e.g. the file.

        Raises:
            ConfigError: an unknown key (the nearest is named), a value of the wrong kind or out of range.
        """
        try:
            config = cls(**values)
        except ValidationError as error:
            raise ConfigError(f"{source}: {first_fault(error, cls)}") from error
        for way in config.memories:
            if way not in CODEBOOK_METHODS:
                raise ConfigError(
                    f"{source}: unknown way to pick memories '{way}'; {did_you_mean(way, CODEBOOK_METHODS)}"
                )
        if config.name in RESERVED_NAMES:
            raise ConfigError(f"{source}: the name '{config.name}' is kept for the store itself; choose another")
        if config.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", config.name):
            raise ConfigError(
                f"{source}: name '{config.name}' cannot name a folder; use letters, digits, dots, dashes, underscores"
            )
        config.find_task()
        config._check_methods(source)
        config._check_options(source)
        config._check_size(source)
        config.members()
        if fault := config._selection_fault():
            raise ConfigError(f"{source}: {fault}")
        return config

    def find_task(self) -> Task:
        """Return the task, with the dataset asked for."""
        return find_task(self.task).with_dataset(self.dataset)

    def _of(self, method: str) -> SweepConfig:
        """Return the part of a method that has keys of its own, without the other methods."""
        own = self.for_method.get(method, {})
        given = self.model_dump(by_alias=True, exclude_unset=True, exclude={"for_method"})
        return SweepConfig(**{**given, **own, "method": (method,)})

    def _check_methods(self, source: str) -> None:
        for method in (*self.method, *self.for_method):
            if method not in METHODS:
                raise ConfigError(f"{source}: unknown method '{method}'; {did_you_mean(method, METHODS)}")
        for method, own in self.for_method.items():
            for key in own:
                if key not in _OF_METHODS:
                    raise ConfigError(f"{source}: for_method {method}: key '{key}'; {did_you_mean(key, _OF_METHODS)}")
            if "steps" in own and self.selects:
                raise ConfigError(f"{source}: for_method {method}: a search or halving compares all at the same steps")
            try:
                self._of(method)
            except ValidationError as error:
                raise ConfigError(f"{source}: for_method {method}: {first_fault(error, SweepConfig)}") from error

    def _check_options(self, source: str) -> None:
        if self.preset not in PRESETS:
            raise ConfigError(f"{source}: unknown preset '{self.preset}'; {did_you_mean(self.preset, PRESETS)}")
        known = known_options()
        for name in self.options:
            if name not in known:
                raise ConfigError(f"{source}: unknown option '{name}'; {did_you_mean(name, list(known))}")
            if not set(known[name]) & set(self.method):
                raise ConfigError(
                    f"{source}: option {name} belongs to {', '.join(known[name])}, but the methods are "
                    f"{', '.join(self.method)}"
                )

    def _lists(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each key that is combined with the others; None stands for the preset's."""
        lists: dict[str, tuple[Any, ...]] = {"demonstrations": self.demonstrations or (None,)}
        lists["learning_rate"] = values_of(self.learning_rate)
        lists["beta_schedule"] = self.beta_schedule
        lists["method"] = self.method
        lists |= self.options
        lists["memories"], lists["memory_action"] = self.memories, self.memory_action
        lists["distance"] = self.distance
        lists["memory_fraction"] = values_of(self.memory_fraction)
        lists["L"], lists["lambda_"] = values_of(self.L), values_of(self.lambda_)
        lists["seed"] = self.seed
        return {key: values or (None,) for key, values in lists.items()}

    def _check_size(self, source: str) -> None:
        if (size := math.prod(map(len, self._lists().values()))) > _MOST_MEMBERS:
            raise ConfigError(
                f"{source}: the lists combine to {size:,} members; a sweep takes at most {_MOST_MEMBERS:,}, make "
                "several of it"
            )

    def members(self) -> list[Member]:
        """Return every distinct member, in the order of methods and then of the lists; the ends stand for a range.

        Raises:
            ConfigError: a value cannot be used.
        """
        if self.for_method:
            members = [member for method in dict.fromkeys(self.method) for member in self._of(method).members()]
            return list(dict.fromkeys(members))
        lists, members = self._lists(), []
        for values in itertools.product(*lists.values()):
            given = dict(zip(lists, values, strict=True))
            options = {name: given.pop(name) for name in self.options if name in METHODS[given["method"]].options}
            members.append(
                make_member(
                    **{key: value for key, value in given.items() if key not in self.options},
                    preset=self.preset,
                    options=options,
                    steps=self.steps,
                    memory_seed=self.memory_seed,
                    batch_size=self.batch_size,
                    hidden=self.hidden or None,
                    backbone=self.backbone,
                )
            )
        return list(dict.fromkeys(members))

    def contests(self) -> list[SweepConfig]:
        """Return the parts of the sweep whose settings a search or halving compares: a method on the same data each."""
        parts = itertools.product(dict.fromkeys(self.method), dict.fromkeys(self.demonstrations or (None,)))
        return [
            self.model_copy(update={"method": (method,), "demonstrations": () if count is None else (count,)})
            for method, count in parts
        ]

    def searched(self) -> dict[str, tuple[Any, ...] | Range]:
        """Return the ranges and the lists of several values that the first method uses, by attribute or option."""
        method = METHODS[self.method[0]]
        uses = {*method.uses, *method.options, *self.members()[0].parameters()}
        found = {key: getattr(self, key) for key in SEARCHED_KEYS} | self.options
        return {
            key: value
            for key, value in found.items()
            if key in uses and (isinstance(value, Range) or len(set(value)) > 1)
        }

    def with_values(self, values: Mapping[str, Any]) -> SweepConfig:
        """Return this configuration with one value for each of some attributes or options."""
        options = self.options | {key: (value,) for key, value in values.items() if key in self.options}
        fields = {key: (value,) for key, value in values.items() if key not in self.options}
        return self.model_copy(update={**fields, "options": options})

    def _selection_fault(self) -> str | None:
        """Return what is wrong with the keys of searches and halving, or None."""
        ranges = [key for key in SEARCHED_KEYS if isinstance(getattr(self, key), Range)]
        searched = any(contest.searched() for contest in self.contests())
        if self.search == "grid":
            if ranges:
                key = ranges[0].rstrip("_")
                return f"{key} is a range, from which only a search draws; add search: optuna, or list values"
            for key in ("trials", "trials_at_once"):
                if getattr(self, key) is not None:
                    return f"{key} is {getattr(self, key)}, but a grid has no trials; add search: optuna"
        elif self.halving is not None:
            return "search and halving are two ways to choose; give one of them"
        elif not searched:
            return (
                f"search is {self.search}, but {', '.join(self.method)} with these values leaves nothing to search; "
                "give a range of what a method uses, e.g. lambda: {low: 0.01, high: 100, log: true}"
            )
        if self.halving is not None and not searched:
            return f"halving is {self.halving}, but no method has several settings; list values, e.g. of lambda"
        return None

    @property
    def selects(self) -> bool:
        """Whether only the best settings are reported, chosen on episodes of their own."""
        return self.search != "grid" or self.halving is not None

    @property
    def selection_key(self) -> str | None:
        """What a choice between settings depends on, as a hash; None where nothing is chosen."""
        if not self.selects:
            return None
        free = {*_NOT_RESULTS, "name", "episodes", "trials"} - {"curve_episodes"}
        return content_hash(self.model_dump(mode="json", exclude=free))[:12]

    @property
    def sweep_name(self) -> str:
        """The given name, or one made of the task and a hash of what is asked for."""
        if self.name is not None:
            return self.name
        free = set(_NOT_RESULTS) - {"curve_episodes"} if self.selects else {*_NOT_RESULTS, *_SELECTING}
        digest = content_hash(self.model_dump(mode="json", exclude=free))[:8]
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', self.task)}-{digest}"
