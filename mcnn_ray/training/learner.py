"""Members that learn by autograd: one network after another, each with a loss and optimisers of its own.

Shapes: P members, S steps, B batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.member import DataKey, Member
from mcnn_ray.training.data import Shard, TrainingData, parts_of
from mcnn_ray.training.sampling import sample_rows
from mcnn_ray.training.step_shape import StepCost

__all__ = ["Learner", "LearnerPack", "copied_state"]

Arrays = dict[str, npt.NDArray[np.generic]]


class Learner(ABC):
    """One member. Subclasses say what its networks are, what a batch is drawn from and how one step changes them.

    All chance comes from torch's global generator, which is seeded by member and step before every step: so a run that
    goes on from a checkpoint meets the same numbers.

    Args:
        member: what it is.
        data: what it learns from.
        shard: this worker's part of every batch, when several train the same member.

    Attributes:
        networks: all that is learned, in training mode; and what is fixed but has to be kept, as buffers.
        optimisers: of the networks' parameters.

    Raises:
        ConfigError: it cannot learn from this data.
    """

    def __init__(self, member: Member, data: TrainingData, shard: Shard | None = None) -> None:
        self.member, self.data, self.shard = member, data, shard
        self.batch = member.batch_size or 0
        self.device = data.obs_ND.device
        self.observation_dim, self.action_dim = data.obs_ND.shape[1], data.actions_NA.shape[1]
        with _seeded():
            _seed(member.seed)
            self.networks = self._make_networks().to(self.device)
        self.optimisers = self._make_optimisers()

    @abstractmethod
    def _make_networks(self) -> torch.nn.ModuleDict:
        """Return the networks, on the CPU."""

    @abstractmethod
    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        """Return the optimisers of the networks' parameters."""

    @property
    @abstractmethod
    def choices(self) -> int:
        """From how many things a batch is drawn with replacement: rows, or windows."""

    @abstractmethod
    def learn(self, drawn_B: torch.Tensor, step: int) -> torch.Tensor:
        """Take one gradient step.

        Args:
            drawn_B: (B,) int64, in [0, choices), this worker's part of the batch.
            step: counted from 0.

        Returns:
            () float32 loss before the step, that of this part times its share of the batch.
        """

    @abstractmethod
    def policy_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of what its policy needs, by name."""

    @classmethod
    @abstractmethod
    def cost(cls, member: Member, dim: int, actions: int) -> StepCost:
        """Count a step's work and memory, for `dim` observation numbers and `actions` action numbers."""

    @classmethod
    def check(cls, member: Member, demonstrations: Demonstrations) -> None:
        """Refuse demonstrations that it could not learn from, before anything starts.

        Args:
            member: what it would be.
            demonstrations: all that it would learn from.

        Raises:
            ConfigError, DatasetError: it cannot learn from these.
        """
        return

    def take(self, first_step: int, steps: int) -> torch.Tensor:
        """Take steps; return their (S,) float32 losses."""
        seed_1 = torch.tensor([self.member.seed], device=self.device)
        count_1 = torch.tensor([self.choices], device=self.device)
        drawn_SB = sample_rows(seed_1, first_step, steps, self.batch, count_1)[:, 0]
        if self.shard is not None:
            drawn_SB = drawn_SB[:, self.shard.rows(self.batch)]
        losses = []
        with _seeded():
            for step, drawn_B in enumerate(drawn_SB, first_step):
                _seed(self.member.seed, step + 1)
                losses.append(self.learn(drawn_B, step).detach())
        return torch.stack(losses)

    def mean_over(self, values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """Return this part's share of the mean of those of a batch's values that count, over all workers' parts.

        Args:
            values: float32, of this part.
            counted: bool, of the same shape.
        """
        count = counted.sum().float()
        if self.shard is not None:
            self.shard.sum(count)
        return (values * counted).sum() / count

    def descend(self, optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        """Step an optimiser down the gradient of a loss, summed over the workers that share the batch."""
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        gradients = torch.autograd.grad(loss, parameters)
        if self.shard is not None:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self.shard.sum(flat)
            gradients = tuple(
                part.view_as(parameter)
                for part, parameter in zip(
                    flat.split([parameter.numel() for parameter in parameters]), parameters, strict=True
                )
            )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimiser.step()

    def state(self) -> Arrays:
        """Return copies of all that a resumed run needs."""
        state: Arrays = copied_state(self.networks)
        for i, optimiser in enumerate(self.optimisers):
            for j, values in optimiser.state_dict()["state"].items():
                state |= {f"optimiser.{i}.{j}.{key}": value.cpu().numpy().copy() for key, value in values.items()}
        return state

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` gave.

        Raises:
            RuntimeError: the state is of other networks.
        """
        networks = {key: torch.tensor(array) for key, array in state.items() if not key.startswith("optimiser.")}
        self.networks.load_state_dict(networks)
        moments: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in self.optimisers]
        for key, array in state.items():
            if key.startswith("optimiser."):
                _, i, j, name = key.split(".")
                moments[int(i)].setdefault(int(j), {})[name] = torch.tensor(array)
        for optimiser, values in zip(self.optimisers, moments, strict=True):
            optimiser.load_state_dict({**optimiser.state_dict(), "state": values})


class LearnerPack:
    """Members of one family that take turns in one process; what `mcnn_ray.training.pack.Pack` is to the others.

    Args:
        members: to be trained; their order is kept.
        data: what they learn from; where that differs, by their `data_key`.
        kind: their class.
        shard: this worker's part of every batch, when several train the same members.

    Attributes:
        members: in the pack now.
        step: steps taken.
        device: of all tensors.

    Raises:
        ConfigError: one cannot learn from its data.
    """

    chunk_steps: ClassVar[int] = 10  # between looks at checkpoints and requests to stop: seconds, for large networks

    def __init__(
        self,
        members: Sequence[Member],
        data: TrainingData | Mapping[DataKey, TrainingData],
        kind: type[Learner],
        shard: Shard | None = None,
    ) -> None:
        self.step = 0
        self.members = list(members)
        parts = parts_of(members, data)
        self._shard = shard
        self._learners = [kind(member, parts[member.data_key], shard) for member in members]
        self.device = self._learners[0].device

    def train(self, steps: int) -> npt.NDArray[np.float32]:
        """Take gradient steps; cut into several calls, they are the same.

        Returns:
            (steps, P) float32 loss of each member on each step's batch, before the step.
        """
        loss_SP = torch.stack([learner.take(self.step, steps) for learner in self._learners], 1)
        self.step += steps
        if self._shard is not None:
            self._shard.sum(loss_SP)
        return loss_SP.cpu().numpy()

    def keep(self, positions: Sequence[int]) -> None:
        """Go on with the members at some positions only, ascending, at least one."""
        self.members = [self.members[position] for position in positions]
        self._learners = [self._learners[position] for position in positions]

    def parameters(self, position: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of what the policy of the member at a position needs, by name."""
        return self._learners[position].policy_arrays()

    def state(self) -> Arrays:
        """Return copies of all that a resumed run needs; the step is also the sampler's state."""
        state: Arrays = {"step": np.array([self.step], dtype=np.int64)}
        for i, learner in enumerate(self._learners):
            state |= {f"{i}/{key}": array for key, array in learner.state().items()}
        return state

    def load_state(self, state: Mapping[str, npt.NDArray[Any]], positions: Sequence[int] | None = None) -> None:
        """Continue from what `state` gave; arguments as for `Pack.load_state`.

        Raises:
            LookupError, ValueError, RuntimeError: the state is of another pack, and this one is unchanged.
        """
        positions = range(len(self.members)) if positions is None else positions
        found = {int(key.split("/")[0]) for key in state if "/" in key}
        if found != set(range(len(positions))):
            raise ValueError(f"it holds {len(found)} members, expected {len(positions)}")
        step, kept = int(state["step"][0]), [self._learners[position] for position in positions]
        before = [learner.state() for learner in kept]
        try:
            for i, learner in enumerate(kept):
                own = {key.partition("/")[2]: array for key, array in state.items() if key.startswith(f"{i}/")}
                learner.load_state(own)
        except (LookupError, ValueError, RuntimeError):
            for learner, old in zip(kept, before, strict=True):
                learner.load_state(old)
            raise
        self.step = step
        self.keep(list(positions))


def copied_state(module: torch.nn.Module) -> dict[str, npt.NDArray[Any]]:
    """Return copies of a module's parameters and buffers, by name."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in module.state_dict().items()}


@contextmanager
def _seeded() -> Iterator[None]:
    """Give torch's global generators back as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def _seed(*numbers: int) -> None:
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]))
