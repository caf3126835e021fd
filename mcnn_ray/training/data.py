"""What members learn from, on one device, and one worker's part of it.

Shapes: N transitions, D observation numbers, A action numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.member import MemoryKey

__all__ = ["NearestMemories", "Shard", "TrainingData", "make_training_data"]


@dataclass(kw_only=True)
class TrainingData:
    """What members learn from, on one device.

    Attributes:
        obs_ND: (N, D) float32, standardised.
        actions_NA: (N, A) float32, in [-1, 1].
        memory_actions: per kind of memories, (N, A) float32 in [-1, 1]: its nearest memory's action.
        distances: per kind of memories, (N,) float32: the distance to it.
    """

    obs_ND: torch.Tensor
    actions_NA: torch.Tensor
    memory_actions: dict[MemoryKey, torch.Tensor] = field(default_factory=dict)
    distances: dict[MemoryKey, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMemories:
    """The nearest memory of every demonstration row.

    Attributes:
        actions_NA: (N, A) float32, its action in [-1, 1].
        distances_N: (N,) float32, its distance, standardised units.
    """

    actions_NA: npt.NDArray[np.float32]
    distances_N: npt.NDArray[np.float32]


def make_training_data(
    obs_ND: npt.NDArray[np.float32],
    units_NA: npt.NDArray[np.float32],
    memories: dict[MemoryKey, NearestMemories],
    device: str = "cpu",
) -> TrainingData:
    """Put demonstrations and their nearest memories on a device.

    Args:
        obs_ND: (N, D) float32, standardised.
        units_NA: (N, A) float32, in [-1, 1].
        memories: by key, for the same rows.
        device: `cpu` or `cuda`.
    """
    return TrainingData(
        obs_ND=torch.tensor(obs_ND, device=device),
        actions_NA=torch.tensor(units_NA, device=device),
        memory_actions={key: torch.tensor(nearest.actions_NA, device=device) for key, nearest in memories.items()},
        distances={key: torch.tensor(nearest.distances_N, device=device) for key, nearest in memories.items()},
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
