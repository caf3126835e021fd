"""One member: a method with its hyperparameters and a seed, as trained once."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from mcnn_ray.artifacts import content_hash
from mcnn_ray.core.blend import BETA_SCHEDULES
from mcnn_ray.errors import ConfigError, did_you_mean

__all__ = ["IDENTITY", "MEMORY_ACTIONS", "METHODS", "CodebookKey", "Member", "MemoryKey", "make_member", "settings_of"]

Key = TypeVar("Key", bound=Hashable)  # of a member: its identity, or its place

_FORMAT = 2  # raised whenever the same member on the same data trains to another policy
_LEARNING_RATE = 3e-4  # the paper's
_LARGEST = 1e30  # of lambda and L: squares and products with distances stay far from overflow in float32
IDENTITY = re.compile("[0-9a-f]{12}")  # of members and packs; their folders are named after it
MEMORY_ACTIONS = ("expert", "mean")
METHODS = ("bc", "mcnn+mlp", "1nn")
_WITH_MEMORIES = ("mcnn+mlp",)
_TRAINED = ("bc", "mcnn+mlp")

CodebookKey = tuple[str, float, int]  # way of picking, fraction, seed
MemoryKey = tuple[str, float, int, str]  # the same and the kind of action


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
        learning_rate: Adam's, above 0.
        batch_size: transitions a step, at least 1.
        hidden: widths of the hidden layers; empty with a backbone of one's own.
        backbone: dotted name of a torch.nn.Module class to train instead of an MLP.
        beta_schedule: of the activation's slope outside [-1, 1], one of `mcnn_ray.core.blend.BETA_SCHEDULES`.
        demonstrations: how many episodes it learns from; None is all of the task's.
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
    learning_rate: float | None = None
    batch_size: int | None = None
    hidden: tuple[int, ...] = ()
    backbone: str | None = None
    beta_schedule: str | None = None
    demonstrations: int | None = None

    @property
    def trained(self) -> bool:
        """Whether the method has a network to train."""
        return self.method in _TRAINED

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
        return (*self.codebook_key, self.memory_action)

    @property
    def memory_label(self) -> str:
        """Memory fraction in percent, and whatever of memories and L is not the paper's; empty without memories."""
        if self.memory_fraction is None:
            return ""
        parts = [f"{100 * self.memory_fraction:g}%"]
        parts += [self.memories] if self.memories not in (None, "neural-gas") else []
        parts += ["mean action"] if self.memory_action == "mean" else []
        parts += [f"L={self.L:g}"] if self.L not in (None, 1.0) else []
        return " ".join(parts)

    @property
    def method_label(self) -> str:
        """The method, and whatever of its training is not the paper's."""
        parts = [self.method]
        parts += [self.backbone] if self.backbone is not None else []
        parts += [f"lr={self.learning_rate:g}"] if self.learning_rate not in (None, _LEARNING_RATE) else []
        parts += [f"beta={self.beta_schedule}"] if self.beta_schedule not in (None, "paper") else []
        parts += [f"demonstrations={self.demonstrations}"] if self.demonstrations is not None else []
        return " ".join(parts)

    @property
    def shape(self) -> tuple[object, ...]:
        """What members of one pack agree on."""
        return (self.hidden, self.backbone, self.batch_size, self.steps)

    @property
    def setting_label(self) -> str:
        """The label without the seed: what one row of a results table is called."""
        return self.label.rsplit(" ", 1)[0]

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `mcnn+mlp lambda=1 memories=10% seed=0`."""
        parts = [self.method_label]
        if self.lambda_ is not None and self.memory_fraction is not None:
            parts += [f"lambda={self.lambda_:g}", f"memories={self.memory_label}"]
        return " ".join([*parts, f"seed={self.seed}"])

    def parameters(self) -> dict[str, Any]:
        """Return the fields as JSON values, without those that the method does not use."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value is not None and value != ()
        }

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Member:
        """Build a member from what `parameters` gave.

        Raises:
            TypeError: a key is unknown or the method is missing.
        """
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters.items()}
        return cls(**values)

    def identity(self, task_id: str, dataset_sha256: str) -> str:
        """Return 12 hex digits that name this training: equal members on equal data have the same."""
        return content_hash(
            {"format": _FORMAT, "member": self.parameters(), "task": task_id, "dataset": dataset_sha256}
        )[:12]


def make_member(
    *,
    method: str,
    seed: int = 0,
    steps: int,
    lambda_: float = 0.1,
    L: float = 1.0,
    memory_fraction: float = 0.1,
    memories: str = "neural-gas",
    memory_seed: int = 0,
    memory_action: str = "expert",
    learning_rate: float = _LEARNING_RATE,
    batch_size: int = 256,
    hidden: tuple[int, ...] = (256, 256),
    backbone: str | None = None,
    beta_schedule: str = "paper",
    demonstrations: int | None = None,
) -> Member:
    """Return a member, checked, with what its method does not use left out.

    The defaults are the paper's (appendix, "Detailed Experimental Setup").

    Raises:
        ConfigError: a value cannot be used.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown method '{method}'; {did_you_mean(method, METHODS)}")
    if method not in _TRAINED:
        return Member(method=method, demonstrations=demonstrations)
    _require(steps >= 1, "steps", steps, "at least 1")
    _require(batch_size >= 1, "batch_size", batch_size, "at least 1")
    _require(
        math.isfinite(learning_rate) and learning_rate > 0, "learning_rate", learning_rate, "a finite number above 0"
    )
    hidden = hidden if backbone is None else ()
    _require(
        backbone is not None or (len(hidden) >= 1 and min(hidden) >= 1),
        "hidden",
        list(hidden),
        "one or more widths of at least 1",
    )
    _require(0 <= seed < 2**63, "seed", seed, "at least 0 and below 2**63")
    trained: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "steps": steps,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "hidden": hidden,
        "backbone": backbone,
        "demonstrations": demonstrations,
    }
    if method not in _WITH_MEMORIES:
        return Member(**trained)
    _require(0 <= lambda_ <= _LARGEST, "lambda", lambda_, "a finite number of at least 0")
    _require(0 < L <= _LARGEST, "L", L, "a finite number above 0")
    _require(0 < memory_fraction <= 1, "memory_fraction", memory_fraction, "above 0 and at most 1, e.g. 0.1")
    if memory_action not in MEMORY_ACTIONS:
        raise ConfigError(f"unknown memory action '{memory_action}'; {did_you_mean(memory_action, MEMORY_ACTIONS)}")
    if beta_schedule not in BETA_SCHEDULES:
        raise ConfigError(f"unknown beta schedule '{beta_schedule}'; {did_you_mean(beta_schedule, BETA_SCHEDULES)}")
    _require(0 <= memory_seed < 2**63, "memory_seed", memory_seed, "at least 0 and below 2**63")
    return Member(
        **trained,
        lambda_=lambda_,
        L=L,
        memory_fraction=memory_fraction,
        memories=memories,
        memory_seed=memory_seed,
        memory_action=memory_action,
        beta_schedule=beta_schedule,
    )


def settings_of(members: Mapping[Key, Member]) -> dict[Member, list[Key]]:
    """Return the identities of members by setting, with the seed 0: those of one differ in the seed alone."""
    settings: dict[Member, list[Key]] = {}
    for identity, member in members.items():
        settings.setdefault(replace(member, seed=0), []).append(identity)
    return settings


def _require(holds: bool, key: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{key} is {value}; it must be {expected}")
