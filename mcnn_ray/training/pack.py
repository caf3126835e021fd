"""Packs: members trained together as stacked tensors in one process.

An MLP on 45 numbers leaves a processor idle; many at once fill it. The gradient is written by hand: for these layers it
is shorter than the bookkeeping that autograd does on every step.

Shapes: P members, N transitions, B batch, D observation numbers, A action numbers, H hidden width, C codebooks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.blend import beta_at, blend, sigma_beta, sigma_beta_slope
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member, MemoryKey

__all__ = ["CHUNK_STEPS", "Pack", "TrainingData"]

CHUNK_STEPS = 100  # steps whose batches are drawn at once; checkpoints fall on its multiples


@dataclass(kw_only=True)
class TrainingData:
    """What every member of a pack learns from, on one device.

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


class Pack:
    """Members of one shape (hidden widths, batch size, learning rate) trained together.

    Each has its own lambda, L, codebook and seed, and draws its own batches, so that it learns the same alone or in
    company. Loss: mean squared error over batch and actions; Adam; the activation follows the paper's beta schedule.

    Args:
        members: to be trained; their order is kept.
        data: what they learn from.

    Raises:
        ConfigError: members of different shape, or a batch larger than the dataset.
    """

    def __init__(self, members: Sequence[Member], data: TrainingData) -> None:
        shapes = {(member.hidden, member.batch_size, member.learning_rate) for member in members}
        if len(shapes) != 1:
            raise ConfigError(
                f"a pack needs members of one shape, got {len(shapes)} (hidden, batch size, learning rate)"
            )
        hidden, batch_size, learning_rate = shapes.pop()
        if batch_size is None or learning_rate is None:
            raise ConfigError(f"{members[0].method} is not trained and cannot be in a pack")
        if batch_size > len(data.obs_ND):
            raise ConfigError(
                f"the batch size {batch_size} is larger than the {len(data.obs_ND)} demonstration steps; "
                f"use at most {len(data.obs_ND)}"
            )
        self.members = list(members)
        self.step = 0  # steps taken
        self._batch_size = batch_size
        self._data = data
        self._device = data.obs_ND.device
        self._generators = [torch.Generator().manual_seed(member.seed) for member in members]
        self._memory = _MemoryTensors(members, data)
        widths = (data.obs_ND.shape[1], *hidden, data.actions_NA.shape[1])
        self._parameters = [
            tensor.to(self._device) for tensor in _initial_parameters(self._generators, widths)
        ]  # weight (P, in, out) and bias (P, 1, out) by turns
        self._optimiser = torch.optim.Adam(self._parameters, lr=learning_rate, fused=True)

    @torch.no_grad()
    def train(self, steps: int) -> npt.NDArray[np.float32]:
        """Take gradient steps.

        Args:
            steps: how many; the batches of up to `CHUNK_STEPS` are drawn at once, so a run repeats bit for bit when it
                is cut into the same calls, or into multiples of `CHUNK_STEPS`.

        Returns:
            (steps, P) float32 loss of each member on each step's batch, before the step.
        """
        losses: list[torch.Tensor] = []
        while steps > 0:
            chunk = min(steps, CHUNK_STEPS)
            draws = [
                torch.randint(len(self._data.obs_ND), (chunk, self._batch_size), generator=generator)
                for generator in self._generators
            ]
            rows_SPB = torch.stack(draws, dim=1).to(self._device)
            losses.extend(self._train_step(rows_PB) for rows_PB in rows_SPB)
            steps -= chunk
        return torch.stack(losses).cpu().numpy()

    def _train_step(self, rows_PB: torch.Tensor) -> torch.Tensor:
        """Take one step on the given rows; return the (P,) losses."""
        self.step += 1
        weights, biases = self._parameters[0::2], self._parameters[1::2]
        inputs = [self._data.obs_ND[rows_PB]]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(torch.baddbmm(bias, inputs[-1], weight).relu_())
        output_PBA = torch.baddbmm(biases[-1], inputs[-1], weights[-1])
        loss_P, gradient = self._memory.loss_and_gradient(
            output_PBA, self._data.actions_NA[rows_PB], rows_PB, beta_at(self.step)
        )
        for layer in reversed(range(len(weights))):
            weights[layer].grad = inputs[layer].mT @ gradient
            biases[layer].grad = gradient.sum(1, keepdim=True)
            if layer > 0:
                # One pass over the gradient; a product with `inputs > 0` takes three.
                gradient = torch.ops.aten.threshold_backward(gradient @ weights[layer].mT, inputs[layer], 0)
        self._optimiser.step()
        return loss_P

    def layers(self, position: int) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
        """Return the weight (in, out) and bias (out,) of each layer of the member at a position, as copies."""
        arrays = [parameter[position].cpu().numpy().copy() for parameter in self._parameters]
        return [(weight, bias[0]) for weight, bias in zip(arrays[0::2], arrays[1::2], strict=True)]

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all that a resumed run needs: parameters, Adam's moments, generators and the step."""
        state: dict[str, npt.NDArray[np.generic]] = {"step": np.array([self.step], dtype=np.int64)}
        for i, parameter in enumerate(self._parameters):
            state[f"parameters.{i}"] = parameter.cpu().numpy().copy()
            moments = self._optimiser.state.get(parameter, {})
            for name in ("exp_avg", "exp_avg_sq"):
                if name in moments:
                    state[f"{name}.{i}"] = moments[name].cpu().numpy().copy()
        state["generators"] = np.stack([generator.get_state().numpy() for generator in self._generators])
        return state

    def load_state(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Continue from what `state` gave.

        Raises:
            KeyError, ValueError, RuntimeError: the state is of another pack.
        """
        if state["generators"].shape[0] != len(self.members):
            raise ValueError(f"state of {state['generators'].shape[0]} members, expected {len(self.members)}")
        for i, parameter in enumerate(self._parameters):  # all before anything is changed
            shape = state[f"parameters.{i}"].shape
            if shape != tuple(parameter.shape):
                raise ValueError(f"parameters.{i} has the shape {shape}, expected {tuple(parameter.shape)}")
        self.step = int(state["step"][0])
        for i, parameter in enumerate(self._parameters):
            parameter.copy_(torch.from_numpy(state[f"parameters.{i}"]))
            if f"exp_avg.{i}" in state:
                self._optimiser.state[parameter] = {
                    "step": torch.tensor(float(self.step), device=self._device),
                    "exp_avg": torch.from_numpy(state[f"exp_avg.{i}"]).to(self._device),
                    "exp_avg_sq": torch.from_numpy(state[f"exp_avg_sq.{i}"]).to(self._device),
                }
        for generator, saved in zip(self._generators, state["generators"], strict=True):
            generator.set_state(torch.from_numpy(np.ascontiguousarray(saved)))


class _MemoryTensors:
    """The members' heads: tanh for `bc`, the blend for `mcnn+mlp`, each on its own slice of the stack."""

    def __init__(self, members: Sequence[Member], data: TrainingData) -> None:
        device = data.obs_ND.device
        keys = sorted({member.memory_key for member in members if member.memory_key is not None})
        with_memory = [i for i, member in enumerate(members) if member.memory_key is not None]
        without = [i for i, member in enumerate(members) if member.memory_key is None]
        self._with = torch.tensor(with_memory, dtype=torch.long, device=device)
        self._without = torch.tensor(without, dtype=torch.long, device=device)
        if not keys:
            return
        self._actions_CNA = torch.stack([data.memory_actions[key] for key in keys])
        self._distances_CN = torch.stack([data.distances[key] for key in keys])
        book = [keys.index(key) for i in with_memory if (key := members[i].memory_key) is not None]
        self._book_P1 = torch.tensor(book, device=device)[:, None]
        self._lambda_P1 = torch.tensor([members[i].lambda_ for i in with_memory], device=device)[:, None]
        self._L_P11 = torch.tensor([members[i].L for i in with_memory], device=device)[:, None, None]

    def loss_and_gradient(
        self, output_PBA: torch.Tensor, target_PBA: torch.Tensor, rows_PB: torch.Tensor, beta: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (P,) mean squared errors and the (P, B, A) gradient of each with respect to the output."""
        error_PBA, slope_PBA = torch.empty_like(output_PBA), torch.empty_like(output_PBA)
        if len(self._without):
            squashed = output_PBA[self._without].tanh()
            error_PBA[self._without] = squashed - target_PBA[self._without]
            slope_PBA[self._without] = 1.0 - squashed * squashed
        if len(self._with):
            rows, output = rows_PB[self._with], output_PBA[self._with]
            weight = torch.exp(-self._lambda_P1 * self._distances_CN[self._book_P1, rows])[..., None]
            action = blend(weight, self._actions_CNA[self._book_P1, rows], sigma_beta(output, beta), self._L_P11)
            error_PBA[self._with] = action - target_PBA[self._with]
            slope_PBA[self._with] = (self._L_P11 * (1.0 - weight)) * sigma_beta_slope(output, beta)
        loss_P = error_PBA.square().mean((1, 2))
        return loss_P, error_PBA * slope_PBA * (2.0 / error_PBA[0].numel())


def _initial_parameters(generators: Sequence[torch.Generator], widths: tuple[int, ...]) -> list[torch.Tensor]:
    """Draw weights and biases uniform in +-1/sqrt(fan-in), as torch.nn.Linear does, each member from its generator."""
    stacks: list[list[torch.Tensor]] = []
    for generator in generators:
        own = []
        for fan_in, fan_out in itertools.pairwise(widths):
            bound = fan_in**-0.5
            own.append(torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=generator))
            own.append(torch.empty(1, fan_out).uniform_(-bound, bound, generator=generator))
        stacks.append(own)
    return [torch.stack(tensors) for tensors in zip(*stacks, strict=True)]
