"""One member: a method with its hyperparameters and a seed, as trained once."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from mcnn_ray.artifacts import content_hash
from mcnn_ray.core.blend import BETA_SCHEDULES
from mcnn_ray.errors import ConfigError, did_you_mean
from mcnn_ray.methods import CODEBOOK_FIELDS, METHODS, PRESETS, preset_names

__all__ = [
    "DISTANCES",
    "IDENTITY",
    "MEMORY_ACTIONS",
    "CodebookKey",
    "DataKey",
    "Member",
    "MemoryKey",
    "make_member",
    "settings_of",
]

Key = TypeVar("Key", bound=Hashable)  # of a member: its identity, or its place

_FORMAT = 2  # raised whenever the same member on the same data trains to another policy
_LARGEST = 1e30  # of lambda and L: squares and products with distances stay far from overflow in float32
_SEVERAL = 3  # options that a label has one word for, where a preset has them
IDENTITY = re.compile("[0-9a-f]{12}")  # of members and packs; their folders are named after it
MEMORY_ACTIONS = ("expert", "mean")
DISTANCES = ("euclidean", "per-dimension", "median")

CodebookKey = tuple[str, float, int]  # way of picking, fraction, seed
MemoryKey = tuple[str, float, int, str, str]  # the same, the kind of action and the scale of distances
DataKey = tuple[int | None, int, CodebookKey | None]  # demonstrations; how often memories are seen, and which these are


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One (method, hyperparameters, seed).

    What a method does not use is None (or 0), so that equal trainings have equal members.

    Attributes:
        method: one of `METHODS`.
        seed: of initialisation and batches; 0 for methods without chance.
        steps: gradient steps; 0 for methods that are not trained.
        lambda_: rate at which memories lose weight with distance, at least 0, per standardised unit.
        L: bound of the network's part in units of the action bounds, above 0.
        memory_fraction: memories over demonstration steps, in (0, 1].
        memories: how memories are picked, one of `mcnn_ray.core.codebook.CODEBOOK_METHODS`.
        memory_seed: seed of the codebook; members that agree on these three share it.
        memory_action: what a memory returns: the `expert`'s action there (the paper), or the `mean` action of all
            demonstrations nearest to it, which evens out a noisy expert.
        distance: unit of distances in the memories' weight, one of `DISTANCES`: standardised (the paper), divided by
            the square root of the number of observation numbers, or by the median distance of the demonstrations to
            their nearest memory, so that one lambda means the same on every task.
        learning_rate: Adam's, above 0.
        batch_size: transitions a step, at least 1.
        hidden: widths of the hidden layers; empty with a backbone of one's own.
        backbone: dotted name of a torch.nn.Module class to train instead of an MLP.
        beta_schedule: of the activation's slope outside [-1, 1], one of `mcnn_ray.core.blend.BETA_SCHEDULES`.
        demonstrations: how many episodes it learns from; None is all of the task's.
        options: hyperparameters of its method's own, by name, sorted; see `mcnn_ray.methods`.
    """

    method: str
    seed: int = 0
    steps: int = 0
    lambda_: float | None = None
    L: float | None = None
    memory_fraction: float | None = None
    memories: str | None = None
    memory_seed: int | None = None
    memory_action: str | None = None
    distance: str | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    hidden: tuple[int, ...] = ()
    backbone: str | None = None
    beta_schedule: str | None = None
    demonstrations: int | None = None
    options: tuple[tuple[str, float | int | str], ...] = ()

    @property
    def trained(self) -> bool:
        """Whether the method has a network to train."""
        return self.family != ""

    @property
    def family(self) -> str:
        """How it is trained; see `mcnn_ray.methods.Method`."""
        return METHODS[self.method].family

    def option(self, name: str) -> Any:
        """Return the value of one of its method's options.

        Raises:
            KeyError: the method has no such option.
        """
        return dict(self.options)[name]

    @property
    def codebook_key(self) -> CodebookKey | None:
        """(way of picking, fraction, seed) of its codebook, or None when it uses none."""
        if self.memories is None or self.memory_fraction is None or self.memory_seed is None:
            return None
        return (self.memories, self.memory_fraction, self.memory_seed)

    @property
    def memory_key(self) -> MemoryKey | None:
        """The codebook's key and the memories' kind of action, or None when it uses none."""
        if self.codebook_key is None or self.memory_action is None:
            return None
        return (*self.codebook_key, self.memory_action, self.distance or "euclidean")

    @property
    def data_key(self) -> DataKey:
        """What its batches are drawn from: how many demonstrations, and how often which memories are seen."""
        times = int(dict(self.options).get("oversampling", 1))
        return (self.demonstrations, times, self.codebook_key if times > 1 else None)

    @property
    def memory_label(self) -> str:
        """Memory fraction in percent, and whatever of memories and L is not the paper's; empty without memories."""
        if self.memory_fraction is None:
            return ""
        parts = [f"{100 * self.memory_fraction:g}%"]
        parts += [self.memories] if self.memories not in (None, "neural-gas") else []
        parts += ["mean action"] if self.memory_action == "mean" else []
        parts += [f"L={self.L:g}"] if self.L not in (None, 1.0) else []
        parts += [f"{self.distance} distances"] if self.distance is not None else []
        return " ".join(parts)

    @property
    def method_label(self) -> str:
        """The method, and whatever of its training is not the paper's, or that of a preset that says most of it."""
        parts = [self.method]
        parts += [self.backbone] if self.backbone is not None else []
        preset = _preset_of(self)
        parts += [preset] if preset != "paper" else []
        known = METHODS[self.method].preset(preset)
        parts += [f"{name}={_short(value)}" for name, value in _other_options(self, preset)]
        parts += [f"lr={self.learning_rate:g}"] if self.learning_rate != known.get("learning_rate") else []
        parts += [f"beta={self.beta_schedule}"] if self.beta_schedule not in (None, "paper") else []
        parts += [f"demonstrations={self.demonstrations}"] if self.demonstrations is not None else []
        return " ".join(parts)

    @property
    def shape(self) -> tuple[object, ...]:
        """What members of one pack agree on."""
        return (self.family, self.hidden, self.backbone, self.batch_size, self.steps)

    @property
    def setting_label(self) -> str:
        """The label without the seed: what one row of a results table is called."""
        return self.label.rsplit(" ", 1)[0]

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `mcnn+mlp lambda=1 memories=10% seed=0`."""
        parts = [self.method_label]
        parts += [f"lambda={self.lambda_:g}"] if self.lambda_ is not None else []
        parts += [f"memories={self.memory_label}"] if self.memory_fraction is not None else []
        return " ".join([*parts, f"seed={self.seed}"])

    def parameters(self) -> dict[str, Any]:
        """Return the fields and options as JSON values, without those that the method does not use."""
        fields = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value is not None and value != () and key != "options"
        }
        return fields | dict(self.options)

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Member:
        """Build a member from what `parameters` gave.

        Raises:
            TypeError: a key or the method is unknown, or the method is missing.
        """
        known = METHODS.get(str(parameters.get("method")))
        if known is None:
            raise TypeError(f"unknown method {parameters.get('method')!r}; known: {', '.join(METHODS)}")
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters.items()}
        options = tuple(sorted((key, values.pop(key)) for key in known.options.keys() & values.keys()))
        return cls(**values, options=options)

    def identity(self, task_id: str, dataset_sha256: str) -> str:
        """Return 12 hex digits that name this training: equal members on equal data have the same."""
        return content_hash(
            {"format": _FORMAT, "member": self.parameters(), "task": task_id, "dataset": dataset_sha256}
        )[:12]


def make_member(
    *,
    method: str,
    steps: int,
    preset: str = "paper",
    demonstrations: int | None = None,
    options: Mapping[str, object] | None = None,
    **values: object,
) -> Member:
    """Return a member, checked, with what its method does not use left out.

    Args:
        method: one of `mcnn_ray.methods.METHODS`.
        steps: gradient steps.
        preset: gives what is not given here; the paper's values (appendix, "Detailed Experimental Setup") by default.
        demonstrations: how many episodes it learns from; None is all of the task's.
        options: hyperparameters of methods' own; those of other methods are left out.
        values: other fields of `Member`; None stands for the preset's.

    Raises:
        ConfigError: a value cannot be used.
        TypeError: there is no such field.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown method '{method}'; {did_you_mean(method, METHODS)}")
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset '{preset}'; {did_you_mean(preset, PRESETS)}")
    if unknown := values.keys() - Member.__dataclass_fields__.keys():
        raise TypeError(f"members have no {', '.join(sorted(unknown))}")
    known = METHODS[method]
    given = {"seed": 0, "steps": steps, **values, **(options or {})}
    merged = known.preset(preset) | {key: value for key, value in given.items() if value is not None}
    own = {name: option.read(name, merged.get(name, option.default)) for name, option in known.options.items()}
    known.check(own)
    uses = known.uses
    if own.get("oversampling", 1) != 1:
        uses = (*uses, *CODEBOOK_FIELDS)
    if "backbone" in uses and merged.get("backbone") is not None:
        uses = tuple(key for key in uses if key != "hidden")
    fields: dict[str, Any] = {key: _checked(key, merged[key]) for key in uses if key in merged}
    if fields.get("distance") == "euclidean":
        del fields["distance"]  # the paper's, and that of members from before there were others
    return Member(method=method, demonstrations=demonstrations, options=tuple(sorted(own.items())), **fields)


_NUMBERS: dict[str, tuple[float, float, str]] = {
    "steps": (1, math.inf, "at least 1"),
    "batch_size": (1, math.inf, "at least 1"),
    "learning_rate": (math.nextafter(0.0, 1.0), _LARGEST, "a finite number above 0"),
    "seed": (0, 2**63 - 1, "at least 0 and below 2**63"),
    "memory_seed": (0, 2**63 - 1, "at least 0 and below 2**63"),
    "lambda_": (0.0, _LARGEST, "a finite number of at least 0"),
    "L": (math.nextafter(0.0, 1.0), _LARGEST, "a finite number above 0"),
    "memory_fraction": (math.nextafter(0.0, 1.0), 1.0, "above 0 and at most 1, e.g. 0.1"),
}
_WORDS: dict[str, tuple[str, Sequence[str]]] = {
    "memory_action": ("memory action", MEMORY_ACTIONS),
    "beta_schedule": ("beta schedule", BETA_SCHEDULES),
    "distance": ("distance", DISTANCES),
}


def _checked(key: str, value: Any) -> Any:
    if key in _NUMBERS:
        least, most, expected = _NUMBERS[key]
        _require(least <= value <= most, key.rstrip("_"), value, expected)
    elif key in _WORDS:
        what, words = _WORDS[key]
        if value not in words:
            raise ConfigError(f"unknown {what} '{value}'; {did_you_mean(str(value), words)}")
    elif key == "hidden":
        value = tuple(value)
        _require(len(value) >= 1 and min(value) >= 1, key, list(value), "one or more widths of at least 1")
    return value


def _other_options(member: Member, preset: str) -> list[tuple[str, float | int | str]]:
    """Return the options that are other than a preset has them."""
    method = METHODS[member.method]
    values = method.preset(preset)
    return [(name, value) for name, value in member.options if value != values.get(name, method.options[name].default)]


def _preset_of(member: Member) -> str:
    """Return the preset that says most of a member's options, and at least several of them; else the paper's."""
    others = {preset: len(_other_options(member, preset)) for preset in preset_names(member.method)}
    nearest = min(others, key=lambda preset: others[preset])
    return nearest if others[nearest] + _SEVERAL <= others["paper"] else "paper"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(members: Mapping[Key, Member]) -> dict[Member, list[Key]]:
    """Return the identities of members by setting, with the seed 0: those of one differ in the seed alone."""
    settings: dict[Member, list[Key]] = {}
    for identity, member in members.items():
        settings.setdefault(replace(member, seed=0), []).append(identity)
    return settings


def _require(holds: bool, key: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value}; it must be {expected}")
