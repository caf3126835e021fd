"""What members learn from, on one device, and one worker's part of it.

Shapes: N transitions, D observation numbers, A action numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.errors import ConfigError
from mcnn_ray.member import DataKey, Member, MemoryKey

__all__ = ["NearestMemories", "Shard", "TrainingData", "check_rows", "make_training_data", "parts_of"]


@dataclass(kw_only=True)
class TrainingData:
    """What members learn from, on one device.

    Attributes:
        obs_ND: (N, D) float32, standardised.
        actions_NA: (N, A) float32, in [-1, 1].
        memory_actions: per kind of memories, (N, A) float32 in [-1, 1]: its nearest memory's action.
        distances: per kind of memories, (N,) float32: the distance to it, in the units of its kind.
        memory_rows: per kind of memories, (N,) int64, on the CPU: the row that it is.
        offsets: (E + 1,) int64, on the CPU: episode e is rows offsets[e] to offsets[e + 1].
        successes: (E,) bool, on the CPU: which episodes did what the task asks.
    """

    obs_ND: torch.Tensor
    actions_NA: torch.Tensor
    memory_actions: dict[MemoryKey, torch.Tensor] = field(default_factory=dict)
    distances: dict[MemoryKey, torch.Tensor] = field(default_factory=dict)
    memory_rows: dict[MemoryKey, npt.NDArray[np.int64]] = field(default_factory=dict)
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    successes: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))


def parts_of(
    members: Sequence[Member], data: TrainingData | Mapping[DataKey, TrainingData]
) -> dict[DataKey, TrainingData]:
    """Return what each member learns from, by `data_key`, of a mapping that may hold more, or of one for all."""
    keys = dict.fromkeys(member.data_key for member in members)
    return {key: data if isinstance(data, TrainingData) else data[key] for key in keys}


def check_rows(member: Member, choices: int, what: str) -> None:
    """Refuse a batch larger than what it is drawn from.

    Raises:
        ConfigError: it is.
    """
    if (member.batch_size or 0) > choices:
        raise ConfigError(
            f"the batch size {member.batch_size} is larger than the {choices} {what}; use at most {choices}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMemories:
    """The nearest memory of every demonstration row.

    Attributes:
        actions_NA: (N, A) float32, its action in [-1, 1].
        distances_N: (N,) float32, its distance, in the units that lambda is given in.
        rows_N: (N,) int64, the row that it is.
    """

    actions_NA: npt.NDArray[np.float32]
    distances_N: npt.NDArray[np.float32]
    rows_N: npt.NDArray[np.int64]


def make_training_data(
    obs_ND: npt.NDArray[np.float32],
    units_NA: npt.NDArray[np.float32],
    memories: dict[MemoryKey, NearestMemories],
    device: str = "cpu",
    offsets: npt.NDArray[np.int64] | None = None,
    successes: npt.NDArray[np.bool_] | None = None,
) -> TrainingData:
    """Put demonstrations and their nearest memories on a device.

    Args:
        obs_ND: (N, D) float32, standardised.
        units_NA: (N, A) float32, in [-1, 1].
        memories: by key, for the same rows.
        device: `cpu` or `cuda`.
        offsets: (E + 1,) of episodes; None is one episode.
        successes: (E,) which episodes did what the task asks; None is all.
    """
    offsets = np.array([0, len(obs_ND)]) if offsets is None else offsets
    return TrainingData(
        obs_ND=torch.tensor(obs_ND, device=device),
        actions_NA=torch.tensor(units_NA, device=device),
        memory_actions={key: torch.tensor(nearest.actions_NA, device=device) for key, nearest in memories.items()},
        distances={key: torch.tensor(nearest.distances_N, device=device) for key, nearest in memories.items()},
        memory_rows={key: nearest.rows_N for key, nearest in memories.items()},
        offsets=offsets,
        successes=np.ones(len(offsets) - 1, dtype=bool) if successes is None else successes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One worker's part in training the same members on several devices: a slice of every batch.

    Attributes:
        rank: of this worker, from 0.
        workers: how many.
        sum: adds up a tensor over all workers, in place.
    """

    rank: int
    workers: int
    sum: Callable[[torch.Tensor], None]

    def rows(self, batch: int) -> slice:
        """Return this worker's rows of a batch; all workers' together are the batch."""
        return slice(self.rank * batch // self.workers, (self.rank + 1) * batch // self.workers)
