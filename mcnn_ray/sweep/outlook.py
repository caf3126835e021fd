"""What a sweep will take, told and checked before it starts: members, packs, memory, disk and, roughly, time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from mcnn_ray.config import SweepConfig
from mcnn_ray.encoders.encoder import Encoder
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member
from mcnn_ray.rollout.episode import FAULTS, LOCKSTEP
from mcnn_ray.sweep.capacity import Capacity, pack_bytes, step_cost, training_s
from mcnn_ray.sweep.cluster import cluster_cpus, cluster_gpus
from mcnn_ray.sweep.plan import PlannedPack, SweepPlan
from mcnn_ray.sweep.studies import Studies
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.training.learners import LEARNERS

__all__ = ["Outlook", "duration", "look_ahead", "product_rate", "step_seconds"]

_TIMED_S = 0.05
_WIDTH = 256  # of the paper's layers
_STATES = 3  # numbers a checkpoint holds for each parameter: itself and Adam's two moments
_CHECKPOINTS = 3  # the newest, one before, and one being written
_NUMBER = 4  # bytes
_UNKNOWN_HORIZON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is still to be done of a sweep.

    Attributes:
        members: in all.
        packs: sizes of those to be trained.
        at_once: packs that train at the same time.
        device: `GPU` or `CPU`, one for each pack.
        memory_bytes: of the packs that train at the same time, at most.
        disk_bytes: that checkpoints, policies and episodes will take, about.
        episodes: to be rolled out.
        training_s: rough seconds of training; None where it cannot be told beforehand.
        rollout_s: rough seconds of rollouts; None likewise.
    """

    members: int
    packs: tuple[int, ...]
    at_once: int
    device: str
    memory_bytes: int
    disk_bytes: int
    episodes: int
    training_s: float | None
    rollout_s: float | None

    def __str__(self) -> str:
        """Return it in one line."""
        parts = [f"{self.members} member{'s' * (self.members > 1)}"]
        if self.packs:
            parts.append(
                f"{sum(self.packs)} to train in {len(self.packs)} pack{'s' * (len(self.packs) > 1)}, "
                f"{min(self.at_once, len(self.packs))} at once on a {self.device} each ({_size(self.memory_bytes)} of "
                f"memory{_about(self.training_s)})"
            )
        if self.episodes:
            parts.append(f"{self.episodes:,} episodes to roll out{_about(self.rollout_s)}")
        return f"plan: {'; '.join(parts)}; about {_size(self.disk_bytes)} of disk"


def look_ahead(
    plan: SweepPlan, studies: Studies, config: SweepConfig, capacity: Capacity, episodes: int | None = None
) -> Outlook:
    """Work out what is still to be done.

    Args:
        plan: of the sweep.
        studies: what it learns from.
        config: of the sweep.
        capacity: of the cluster.
        episodes: of each member; None takes those to report on.

    Raises:
        ConfigError: the disk has less room than the sweep will take.
    """
    packs = plan.open_packs()
    silent = [identity for identity in plan.members if not plan.episodes(identity).is_file()]
    env = make_environment(studies.task)
    horizon = studies.task.horizon or (env.spec.max_episode_steps if env.spec else None) or _UNKNOWN_HORIZON
    episodes = config.episodes if episodes is None else episodes
    steps = len(silent) * episodes * horizon
    step_s = step_seconds(env) if steps else None
    rate = product_rate()
    acting_s = episodes * horizon * _acting_s([plan.members[identity] for identity in silent], studies, rate)
    acting_s += steps * _seeing_s(studies.encoder) if steps and studies.encoder is not None else 0.0
    outlook = Outlook(
        members=len(plan.members),
        packs=tuple(len(pack.members) for pack in packs),
        at_once=capacity.packs_at_once,
        device="GPU" if cluster_gpus() else "CPU",
        memory_bytes=_memory(packs, studies, capacity),
        disk_bytes=_disk(packs, studies) + _NUMBER * steps * int(np.prod(env.action_space.shape or (1,))),
        episodes=len(silent) * episodes,
        training_s=None if cluster_gpus() or config.backbone else _training_s(packs, studies, capacity, rate),
        rollout_s=None if step_s is None else (steps * step_s + acting_s) / cluster_cpus(),
    )
    env.close()
    _check_disk(plan.folder, outlook.disk_bytes)
    return outlook


def _memory(packs: Sequence[PlannedPack], studies: Studies, capacity: Capacity) -> int:
    sizes = [pack_bytes(list(pack.members.values()), studies) for pack in packs]
    needed = sorted(shared + each * len(pack.members) for pack, (shared, each) in zip(packs, sizes, strict=True))
    return sum(needed[-capacity.packs_at_once :])


def _disk(packs: Sequence[PlannedPack], studies: Studies) -> int:
    numbers = 0.0
    for member in (member for pack in packs for member in pack.members.values()):
        memories = (member.memory_fraction or 0.0) * len(studies.of(member).obs_ND)
        numbers += step_cost(member, studies.widths).parameters * (1 + _STATES * _CHECKPOINTS)
        numbers += memories * sum(studies.widths)
        if studies.encoder is not None:  # in MLflow; the folders of a sweep share one file
            numbers += sum(array.size for array in studies.encoder.weights.values())
    return int(_NUMBER * numbers)


def _training_s(packs: Sequence[PlannedPack], studies: Studies, capacity: Capacity, rate: float) -> float:
    members = [member for pack in packs for member in pack.members.values()]
    if not members:
        return 0.0
    return training_s(members, studies.widths, rate) / min(capacity.packs_at_once, len(packs))


def _acting_s(members: Sequence[Member], studies: Studies, rate: float) -> float:
    """Return the seconds of one action of each, as far as its network is what takes the time."""
    return sum(step_cost(member, studies.widths).act_s(rate) for member in members if member.family in LEARNERS)


def _seeing_s(encoder: Encoder) -> float:
    """Return the seconds that an encoder takes for an image on one thread, of as many as it sees at once."""
    images_BX, threads = np.zeros((LOCKSTEP, encoder.inputs), np.float32), torch.get_num_threads()
    torch.set_num_threads(1)
    encoder(images_BX)
    started = time.perf_counter()
    encoder(images_BX)
    torch.set_num_threads(threads)
    return (time.perf_counter() - started) / LOCKSTEP


def product_rate() -> float:
    """Return the operations a second of a matrix product on one thread."""
    square, threads, products = torch.ones(_WIDTH, _WIDTH), torch.get_num_threads(), 0
    torch.set_num_threads(1)
    square @ square  # the first product of a process loads its library, which can take longer than all the others
    started = time.perf_counter()
    while time.perf_counter() - started < _TIMED_S:
        square @ square
        products += 1
    torch.set_num_threads(threads)
    return products * 2 * _WIDTH**3 / (time.perf_counter() - started)


def step_seconds(env: gym.Env[Any, Any]) -> float | None:
    """Return the seconds of a step with actions at random, which the simulator finds easier than a policy's.

    None where the environment fails: rolling out tells that with its place.
    """
    env.action_space.seed(0)
    try:
        env.reset(seed=0)
        started, steps = time.perf_counter(), 0
        while time.perf_counter() - started < _TIMED_S:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            steps += 1
            if terminated or truncated:
                env.reset(seed=0)
    except FAULTS:
        return None
    return (time.perf_counter() - started) / steps


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            f"{folder} has {_size(free)} of disk left, and the sweep will take about {_size(needed)}; make room, or "
            "choose another --storage"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{max(1, round(count / 2**20))} MiB"


def _about(seconds: float | None) -> str:
    return "" if seconds is None else f", about {duration(seconds)}"


def duration(seconds: float) -> str:
    """Return a time in words, rounded."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
