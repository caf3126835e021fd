"""Packs: members trained together as stacked tensors in one process.

An MLP on 45 numbers leaves a GPU idle, so there all members take each step at once, several steps a CUDA graph. A CPU
core is filled by one, so there they take turns, each for as many steps as keep its parameters in the cache.

Shapes: P members, G of them that step at once, S steps, B batch, F numbers of one member's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.errors import ConfigError
from mcnn_ray.member import DataKey, Member
from mcnn_ray.training.data import Shard, TrainingData, check_rows, parts_of
from mcnn_ray.training.module_network import StackedModule
from mcnn_ray.training.networks import StackedMlp, StackedNetwork
from mcnn_ray.training.stepping import Buffers, Stepper, stepping_order

__all__ = ["CHUNK_STEPS", "Pack"]

CHUNK_STEPS = 100  # steps whose batches are gathered at once


class Pack:
    """Members of one shape (hidden widths, batch size) trained together by regression.

    Each has its own lambda, L, beta schedule, learning rate, codebook, demonstrations and seed, and draws its own
    batches, so that it learns the same alone or in company. Loss: mean squared error over batch and actions; Adam.

    Args:
        members: to be trained; their order is kept.
        data: what they learn from; where that differs, by their `data_key`.
        shard: this worker's part of every batch, when several train the same members.

    Attributes:
        chunk_steps: between looks at checkpoints and requests to stop.
        members: in the pack now.
        step: steps taken.
        device: of all tensors.

    Raises:
        ConfigError: members of different shape, or a batch larger than the dataset.
    """

    chunk_steps: ClassVar[int] = CHUNK_STEPS

    def __init__(
        self,
        members: Sequence[Member],
        data: TrainingData | Mapping[DataKey, TrainingData],
        shard: Shard | None = None,
    ) -> None:
        self.step = 0  # steps taken
        self.members = list(members)
        self._parts = parts_of(members, data)
        _check(self.members, self._parts)
        self._shard = shard
        some = next(iter(self._parts.values()))
        self.device = some.obs_ND.device
        self._widths = (some.obs_ND.shape[1], *members[0].hidden, some.actions_NA.shape[1])
        self._single = self._network(1)
        self._sort()
        initial = [self._single.initial(self.members[position].seed) for position in self._position_P]
        self._parameters_PF = torch.stack(initial).to(self.device)
        self._moments = (torch.zeros_like(self._parameters_PF), torch.zeros_like(self._parameters_PF))
        self._steppers = self._make_steppers()

    def _sort(self) -> None:
        """Say which member each row of the stacked tensors belongs to, and the other way round."""
        self._position_P = sorted(range(len(self.members)), key=lambda i: stepping_order(self.members[i]))
        self._row_P = [self._position_P.index(position) for position in range(len(self.members))]

    def _network(self, group: int) -> StackedNetwork:
        batch = self.members[0].batch_size or 0
        if self._shard is not None:
            batch = len(range(batch)[self._shard.rows(batch)])
        backbone = self.members[0].backbone
        if backbone is not None:
            return StackedModule(backbone, self._widths[0], self._widths[-1], group, batch, self.device)
        return StackedMlp(self._widths, group, batch, self.device)

    def _members_at_once(self) -> int:
        return 1 if self.device.type == "cpu" else len(self.members)

    def _make_steppers(self) -> list[Stepper]:
        """Give all members to one stepper on a GPU, and one each on a CPU, where they share their buffers."""
        count, group = len(self.members), self._members_at_once()
        network = self._single if group == 1 else self._network(group)
        buffers = Buffers(CHUNK_STEPS, network.output_GBA, self._widths[0])
        sorted_members = [self.members[position] for position in self._position_P]
        return [
            Stepper(
                sorted_members[start : start + group],
                self._parts,
                network,
                buffers,
                self._parameters_PF[start : start + group],
                [moment_PF[start : start + group] for moment_PF in self._moments],
                self.step,
                self._shard,
            )
            for start in range(0, count, group)
        ]

    @torch.inference_mode()
    def train(self, steps: int) -> npt.NDArray[np.float32]:
        """Take gradient steps; cut into several calls, they are the same.

        Args:
            steps: how many.

        Returns:
            (steps, P) float32 loss of each member on each step's batch, before the step.
        """
        losses = []
        while steps > 0:
            chunk = min(steps, CHUNK_STEPS - self.step % CHUNK_STEPS)
            losses.append(torch.cat([stepper.take(self.step, chunk) for stepper in self._steppers], 1))
            self.step += chunk
            steps -= chunk
        loss_SP = torch.cat(losses)
        if self._shard is not None:
            self._shard.sum(loss_SP)
        return loss_SP[:, self._row_P].cpu().numpy()

    def keep(self, positions: Sequence[int]) -> None:
        """Go on with some of the members only; the others' memory is freed and the rest speeds up.

        Args:
            positions: of those that stay, ascending, at least one.
        """
        stay = set(positions)
        index = torch.tensor([row for row, p in enumerate(self._position_P) if p in stay], device=self.device)
        self.members = [self.members[position] for position in positions]
        self._sort()
        self._parameters_PF = self._parameters_PF[index]
        self._moments = (self._moments[0][index], self._moments[1][index])
        self._parts = parts_of(self.members, self._parts)
        self._steppers = self._make_steppers()

    def parameters(self, position: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the parameters of the member at a position, by name: what `Study.policy` takes."""
        return self._single.by_name(self._parameters_PF[self._row_P[position]])

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return copies of all that a resumed run needs; the step is also the sampler's state."""
        state: dict[str, npt.NDArray[np.generic]] = {"step": np.array([self.step], dtype=np.int64)}
        for name, tensor in self._saved().items():
            state[name] = tensor[self._row_P].cpu().numpy()
        return state

    def _saved(self) -> dict[str, torch.Tensor]:
        return {
            "parameters": self._parameters_PF,
            "exp_avg": self._moments[0],
            "exp_avg_sq": self._moments[1],
        }

    def load_state(self, state: dict[str, npt.NDArray[np.generic]], positions: Sequence[int] | None = None) -> None:
        """Continue from what `state` gave.

        Args:
            state: of this pack, or of what `keep` left of it.
            positions: given to `keep` then; None is all.

        Raises:
            KeyError, ValueError: the state is of another pack, and this one is unchanged.
        """
        positions = range(len(self.members)) if positions is None else positions
        expected = (len(positions), self._parameters_PF.shape[1])
        for name in self._saved():
            if state[name].shape != expected:
                raise ValueError(f"{name} has the shape {state[name].shape}, expected {expected}")
        self.step = int(state["step"][0])
        if len(positions) < len(self.members):
            self.keep(positions)
        for name, tensor in self._saved().items():
            tensor.copy_(torch.from_numpy(state[name])[self._position_P])
        self._steppers = self._make_steppers()


def _check(members: Sequence[Member], parts: Mapping[DataKey, TrainingData]) -> None:
    shapes = {(member.hidden, member.backbone, member.batch_size) for member in members}
    if len(shapes) != 1:
        raise ConfigError(f"a pack needs members of one shape, got {len(shapes)} (hidden, backbone, batch size)")
    if members[0].batch_size is None:
        raise ConfigError(f"{members[0].method} is not trained and cannot be in a pack")
    check_rows(members[0], min(len(data.obs_ND) for data in parts.values()), "demonstration steps")
