"""Members that learn from windows, steps of an episode in a row, each of which has a loss.

Shapes: N transitions, W windows, B batch, T steps of a window.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.member import Member
from mcnn_ray.training.data import Shard, TrainingData, check_rows
from mcnn_ray.training.learner import Learner

__all__ = ["WindowLearner", "windows"]


def windows(offsets: npt.NDArray[np.int64], window: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where windows of `window` steps begin, and how many steps of each are an episode's.

    Every full window within an episode is one. An episode shorter than that is one window, of its own length.

    Args:
        offsets: (E + 1,) int64, of episodes.
        window: T, at least 1.

    Returns:
        (W,) int64 first rows, ascending; (W,) int64 lengths, 1 to T.
    """
    length_E = np.diff(offsets)
    last_E = np.maximum(length_E - window, 0)
    starts_W = np.concatenate(
        [
            np.arange(first, first + last + 1)
            for first, last, length in zip(offsets, last_E, length_E, strict=False)
            if length
        ]
    )
    return starts_W, np.minimum(window, offsets[np.searchsorted(offsets, starts_W, "right")] - starts_W)


class WindowLearner(Learner):
    """A member with the option `window` and one optimiser. Subclasses say what each step's loss is.

    Args:
        member: what it is.
        data: what it learns from; a batch is of windows, which never cross episodes.
        shard: this worker's part of every batch, when several train the same member.
    """

    def __init__(self, member: Member, data: TrainingData, shard: Shard | None = None) -> None:
        window = int(member.option("window"))
        starts_W, lengths_W = windows(data.offsets, window)
        device = data.obs_ND.device
        self._starts_W, self._lengths_W = torch.tensor(starts_W, device=device), torch.tensor(lengths_W, device=device)
        self._steps_T = torch.arange(window, device=device)
        super().__init__(member, data, shard)

    @abstractmethod
    def _losses(self, rows_BT: torch.Tensor, step: int) -> torch.Tensor:
        """Return the (B, T) loss of each step of windows, whose rows are given."""

    @classmethod
    def check(cls, member: Member, demonstrations: Demonstrations) -> None:
        """Refuse demonstrations with fewer windows than a batch has.

        Raises:
            ConfigError: they have.
        """
        window = int(member.option("window"))
        count = len(windows(demonstrations.offsets, window)[0])
        check_rows(member, count, f"windows of {window} steps that the demonstrations have")

    @property
    def choices(self) -> int:
        """How many windows there are."""
        return len(self._starts_W)

    def learn(self, drawn_B: torch.Tensor, step: int) -> torch.Tensor:
        """Take one gradient step on windows; return this part's share of the batch's loss, over all its valid steps."""
        length_B1 = self._lengths_W[drawn_B, None]
        valid_BT = self._steps_T < length_B1
        # Beyond an episode's end its last row stands in; no earlier step sees it, and its own loss does not count.
        rows_BT = self._starts_W[drawn_B, None] + torch.minimum(self._steps_T, length_B1 - 1)
        loss = self.mean_over(self._losses(rows_BT, step), valid_BT)
        self.descend(self.optimisers[0], loss)
        return loss
