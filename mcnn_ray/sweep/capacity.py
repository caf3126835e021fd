"""What the cluster has room for: how many packs at once, how many members a pack, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil
import torch

from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member
from mcnn_ray.policies.backbone import backbone_size
from mcnn_ray.sweep.cluster import cluster_cpus, cluster_gpus
from mcnn_ray.sweep.studies import Studies
from mcnn_ray.training.learners import LEARNERS
from mcnn_ray.training.networks import row_length
from mcnn_ray.training.pack import CHUNK_STEPS
from mcnn_ray.training.step_shape import StepCost, StepShape

__all__ = [
    "Capacity",
    "measure_capacity",
    "pack_bytes",
    "split_by_memory",
    "step_cost",
    "training_s",
    "worthwhile_packs",
]

_SHARE = 0.8  # of the free memory that packs may take
_NUMBER = 4  # bytes
_USUAL_RATE = 5e10  # operations a second of one CPU
_WORTH_S = 10.0  # of training, about what a process takes to start
_MLP_SHARE = 0.79  # see StepCost.share
_STATES = 4  # numbers kept for each parameter: itself, its gradient and Adam's two moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a sweep may use.

    Attributes:
        packs_at_once: that train at the same time, one GPU or CPU each.
        snapshot_actors: CPUs that roll out members while others train; 0 where none are evaluated on the way.
        free_bytes: of memory for each pack: of the GPU where the driver sees one, else of this machine.
    """

    packs_at_once: int
    snapshot_actors: int
    free_bytes: int


def measure_capacity(config: SweepConfig) -> Capacity:
    """Look at the cluster that has been joined.

    Raises:
        ConfigError: more workers are asked for than it has GPUs or, without any, CPUs.
    """
    cpus, gpus = cluster_cpus(), cluster_gpus()
    devices, kind = (gpus, "GPUs") if gpus else (cpus, "CPUs")
    if config.workers > devices:
        raise ConfigError(
            f"{config.workers} workers are asked for, but there are {devices} {kind}; use at most {devices}"
        )
    batch_size = min((member.batch_size or config.workers for member in config.members()), default=config.workers)
    if config.workers > batch_size:
        raise ConfigError(f"{config.workers} workers cannot share batches of {batch_size}")
    actors = max(1, cpus // 2) if config.evaluate_every else 0
    packs = config.workers if config.workers > 1 else max(1, devices if gpus else devices - actors)
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available // packs
    return Capacity(packs_at_once=packs, snapshot_actors=actors, free_bytes=int(_SHARE * free))


def pack_bytes(members: Sequence[Member], studies: Studies) -> tuple[int, int]:
    """Count the memory of a pack.

    Args:
        members: of one shape.
        studies: what they learn from.

    Returns:
        Bytes of the tables that all members share; bytes of each member beside it.
    """
    dim, actions = studies.widths
    rows = {member.data_key: studies.of(member).rows(member) for member in members}
    memories = {(member.data_key, member.memory_key) for member in members if member.memory_key is not None}
    tables = sum(rows.values()) * (dim + actions) + sum(rows[part] for part, _ in memories) * (actions + 1)
    gathered = CHUNK_STEPS * (members[0].batch_size or 0) * (row_length(dim) + 3 * actions + 1)
    cost = step_cost(members[0], studies.widths)
    return _NUMBER * tables, _NUMBER * (_STATES * cost.parameters + gathered + cost.kept)


def step_cost(member: Member, widths: tuple[int, int]) -> StepCost:
    """Return what a trained member's gradient step takes.

    Args:
        member: of a method that is trained.
        widths: how many numbers an observation has, and an action.
    """
    dim, actions = widths
    batch = member.batch_size or 0
    if member.family in LEARNERS:
        return LEARNERS[member.family].cost(member, dim, actions)
    if member.backbone is not None:
        parameters, given = backbone_size(member.backbone, dim, actions)
        return StepCost(parameters=parameters, flop=6 * batch * parameters, kept=2 * batch * given, share=_MLP_SHARE)
    shape = StepShape(dim=dim, hidden=member.hidden, actions=actions, batch_size=batch)
    return StepCost(
        parameters=shape.parameters,
        flop=shape.flop,
        kept=2 * shape.batch_size * (sum(shape.hidden) + actions),
        share=_MLP_SHARE,
    )


def worthwhile_packs(members: Sequence[Member], studies: Studies) -> int:
    """Return over how many processes it pays to spread training; each takes seconds to start."""
    return max(1, math.ceil(training_s(members, studies.widths, _USUAL_RATE) / _WORTH_S))


def training_s(members: Iterable[Member], widths: tuple[int, int], rate: float) -> float:
    """Return roughly the seconds that all gradient steps take on one thread.

    Args:
        members: those that are not trained take none.
        widths: as for `step_cost`.
        rate: operations a second of large products on one thread.
    """
    groups = _by_shape(members)
    return sum(len(group) * group[0].steps * step_cost(group[0], widths).step_s(rate) for group in groups)


def split_by_memory(members: Sequence[Member], studies: Studies, capacity: Capacity) -> int:
    """Return into how many packs the members of each shape have to go, so that none runs out of memory.

    Raises:
        ConfigError: not even one member fits.
    """
    packs = capacity.packs_at_once
    for group in _by_shape(members):
        shared, each = pack_bytes(group, studies)
        fit = (capacity.free_bytes - shared) // each
        if fit < 1:
            raise ConfigError(
                f"{group[0].label} does not fit into memory: its tables take {shared / 2**30:.1f} GiB and it takes "
                f"{each / 2**30:.2f} GiB, of {capacity.free_bytes / 2**30:.1f} GiB for each of "
                f"{capacity.packs_at_once} packs at once; use fewer demonstrations or a smaller network"
            )
        packs = max(packs, math.ceil(len(group) / fit))
    return packs


def _by_shape(members: Iterable[Member]) -> list[list[Member]]:
    """Return those that are trained, in groups of one shape, whose steps all take the same."""
    shapes: dict[tuple[object, ...], list[Member]] = {}
    for member in members:
        if member.trained:
            shapes.setdefault(member.shape, []).append(member)
    return list(shapes.values())
