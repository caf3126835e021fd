"""Gradient steps of members that step at once: batches, heads, loss, Adam.

A head gives `base + scale * squash(f(x))`: behaviour cloning squashes by tanh with base 0 and scale 1, MCNN (equation
1) by sigma_beta with base `exp(-lambda d) a_memory` and scale `L (1 - exp(-lambda d))`. Base and scale need no network,
so they are computed for many steps at once.

Shapes: G members, the first M of them with memories; N rows of all tables laid one after another, S steps, B batch,
D observation numbers, I = D + 1, A action numbers, F numbers of one member's parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from mcnn_ray.core.blend import beta_at
from mcnn_ray.member import DataKey, Member
from mcnn_ray.training.data import Shard, TrainingData, parts_of
from mcnn_ray.training.networks import StackedNetwork, beside_one
from mcnn_ray.training.sampling import sample_rows

__all__ = ["Buffers", "Stepper", "stepping_order"]

_GRAPH_STEPS = 20  # of one CUDA graph
_BETA_STEPS = 100  # after these every schedule's beta is 0

aten = torch.ops.aten


def stepping_order(member: Member) -> tuple[bool, float]:
    """Return the key that sorts the members of a stepper: those with memories first, equal learning rates together."""
    return (member.memory_key is None, member.learning_rate or 0.0)


class Buffers:
    """Where the batches of many steps are gathered; kept, since fresh blocks would cost more than gathering does.

    Args:
        steps: S, at most.
        output_GBA: of the network: its shape is that of the targets.
        dim: D.
    """

    def __init__(self, steps: int, output_GBA: torch.Tensor, dim: int) -> None:
        group, batch, actions = output_GBA.shape
        self.inputs_SGBI = beside_one(steps, group, batch, dim, device=output_GBA.device)
        self.base_SGBA, self.error_SGBA, self.memory_actions_SGBA = (
            output_GBA.new_empty(steps, group, batch, actions) for _ in range(3)
        )
        self.scale_SGB1 = output_GBA.new_empty(steps, group, batch, 1)


class Stepper:
    """Takes the steps of some members at once. Its parameters and moments are the pack's own, changed in place.

    Args:
        members: sorted by `stepping_order`.
        parts: what they learn from, by `data_key`.
        network: for as many members; like the buffers it may be shared by steppers that take turns.
        buffers: for as many members.
        parameters_GF: (G, F) float32.
        moments: Adam's two, (G, F) float32 each.
        step: steps taken so far.
        shard: this worker's part of every batch, or None for all of it.
    """

    def __init__(
        self,
        members: Sequence[Member],
        parts: Mapping[DataKey, TrainingData],
        network: StackedNetwork,
        buffers: Buffers,
        parameters_GF: torch.Tensor,
        moments: Sequence[torch.Tensor],
        step: int,
        shard: Shard | None,
    ) -> None:
        self._members = members
        self._tables = _Tables(members, parts, buffers)
        self._error_SGBA = buffers.error_SGBA
        self._network = network
        self._views = network.views(parameters_GF)
        self._shard = shard
        self._batch = members[0].batch_size or 0
        self._memories = sum(member.memory_key is not None for member in members)
        self._optimiser = _Adam(members, parameters_GF, network.gradients_GF, moments, step)
        self._graph: tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor] | None = None
        self._warm = False

    def take(self, first_step: int, steps: int) -> torch.Tensor:
        """Take steps.

        Args:
            first_step: counted from 0.
            steps: S.

        Returns:
            (S, G) float32 losses before each step; of this shard's rows only.
        """
        tables = self._tables
        rows_SGB = sample_rows(tables.seed_G, first_step, steps, self._batch, tables.count_G)
        if self._shard is not None:
            rows_SGB = rows_SGB[:, :, self._shard.rows(self._batch)]
        if first_step < _BETA_STEPS:
            beta = [
                [beta_at(step + 1, m.beta_schedule or "paper") for m in self._members[: self._memories]]
                for step in range(first_step, first_step + steps)
            ]
            beta_SM11 = torch.tensor(beta, device=rows_SGB.device)[:, :, None, None]
            return self._steps(rows_SGB, beta_SM11)
        if rows_SGB.is_cuda and self._warm and steps % _GRAPH_STEPS == 0 and self._shard is None:
            return self._replay(rows_SGB)
        self._warm = True
        return self._steps(rows_SGB, None)

    def _replay(self, rows_SGB: torch.Tensor) -> torch.Tensor:
        if self._graph is None:
            static_SGB = rows_SGB[:_GRAPH_STEPS].clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss_SG = self._steps(static_SGB, None)
            self._graph = graph, static_SGB, loss_SG
        graph, static_SGB, loss_SG = self._graph
        losses = []
        for part_SGB in rows_SGB.split(_GRAPH_STEPS):
            static_SGB.copy_(part_SGB)
            graph.replay()
            losses.append(loss_SG.clone())
        return torch.cat(losses)

    def _steps(self, rows_SGB: torch.Tensor, beta_SM11: torch.Tensor | None) -> torch.Tensor:
        network, views = self._network, self._views
        inputs_SGBI, base_SGBA, scale_SGB1 = self._tables.gather(rows_SGB)
        numbers = self._batch * base_SGBA.shape[3]  # of the whole batch, also in a shard
        slope_SGB1 = scale_SGB1 * (2.0 / numbers)
        error_SGBA = self._error_SGBA[: len(rows_SGB)]
        head = _Head(network.output_GBA, self._memories)
        beta_S = [None] * len(rows_SGB) if beta_SM11 is None else list(beta_SM11)
        for inputs, base, scale, slope, error, beta_M11 in zip(
            inputs_SGBI, base_SGBA, scale_SGB1, slope_SGB1, error_SGBA, beta_S, strict=True
        ):
            network.forward(views, inputs)
            torch.addcmul(base, scale, head.squashed(beta_M11), out=error)
            network.backward(views, head.gradient(error, slope, beta_M11))
            if self._shard is not None:
                self._shard.sum(network.gradients_GF)
            self._optimiser.step()
        return error_SGBA.square_().sum((2, 3)) / numbers


class _Head:
    """The squashing functions of all members: sigma_beta of the first `many`, tanh of the others."""

    def __init__(self, output_GBA: torch.Tensor, many: int) -> None:
        self._squashed_GBA, self._gradient_GBA = torch.empty_like(output_GBA), torch.empty_like(output_GBA)
        tensors = (output_GBA, self._squashed_GBA, self._gradient_GBA)
        self._with = [tensor[:many] for tensor in tensors] if many else None
        self._without = [tensor[many:] for tensor in tensors] if many < len(output_GBA) else None

    def squashed(self, beta_M11: torch.Tensor | None) -> torch.Tensor:
        """Return (G, B, A) squashed outputs, valid until the next call."""
        if self._with is not None:
            output, squashed, _ = self._with
            torch.clamp(output, -1.0, 1.0, out=squashed)
            if beta_M11 is not None:
                squashed.lerp_(output, beta_M11)
        if self._without is not None:
            output, squashed, _ = self._without
            torch.tanh(output, out=squashed)
        return self._squashed_GBA

    def gradient(self, error_GBA: torch.Tensor, slope_GB1: torch.Tensor, beta_M11: torch.Tensor | None) -> torch.Tensor:
        """Return the (G, B, A) gradient of the outputs, given that `slope * error` is that of the squashed ones."""
        torch.mul(error_GBA, slope_GB1, out=self._gradient_GBA)
        if self._with is not None:
            output, _, gradient = self._with
            outside = None if beta_M11 is None else gradient * beta_M11
            aten.hardtanh_backward.grad_input(gradient, output, -1.0, 1.0, grad_input=gradient)
            if beta_M11 is not None and outside is not None:
                gradient.mul_(1.0 - beta_M11).add_(outside)
        if self._without is not None:
            _, squashed, gradient = self._without
            aten.tanh_backward.grad_input(gradient, squashed, grad_input=gradient)
        return self._gradient_GBA


class _Tables:
    """What the members read at each row they draw; tables of several demonstrations or memories lie end to end."""

    def __init__(self, members: Sequence[Member], parts: Mapping[DataKey, TrainingData], buffers: Buffers) -> None:
        self._buffers = buffers
        used = list(parts_of(members, parts))
        device = parts[used[0]].obs_ND.device
        lengths = [len(parts[key].obs_ND) for key in used]
        starts = dict(zip(used, _starts(lengths), strict=True))
        self._obs_ND = _joined([parts[key].obs_ND for key in used])
        self._actions_NA = _joined([parts[key].actions_NA for key in used])
        self._start_G1 = torch.tensor([[starts[member.data_key]] for member in members], device=device)
        self.count_G = torch.tensor([len(parts[member.data_key].obs_ND) for member in members], device=device)
        self.seed_G = torch.tensor([member.seed for member in members], device=device)

        with_memories = [member for member in members if member.memory_key is not None]
        self._many = len(with_memories)
        if not with_memories:
            return
        keys = list(dict.fromkeys((member.data_key, member.memory_key) for member in with_memories))
        tables = [(parts[part].memory_actions[key], parts[part].distances[key]) for part, key in keys if key]
        memory_starts = dict(zip(keys, _starts([len(table[1]) for table in tables]), strict=True))
        self._memory_actions_NA = _joined([table[0] for table in tables])
        self._distances_N = _joined([table[1] for table in tables])
        self._memory_start_M1 = torch.tensor(
            [[memory_starts[member.data_key, member.memory_key]] for member in with_memories], device=device
        )
        self._lambda_M1 = torch.tensor([[member.lambda_] for member in with_memories], device=device)
        self._L_M1 = torch.tensor([[member.L] for member in with_memories], device=device)

    def gather(self, rows_SGB: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (S, G, B, I) inputs; the head's base less the target (S, G, B, A), and its scale (S, G, B, 1)."""
        steps, _, batch = rows_SGB.shape
        buffers, many = self._buffers, self._many
        inputs_SGBI, base_SGBA = buffers.inputs_SGBI[:steps], buffers.base_SGBA[:steps]
        scale_SGB1 = buffers.scale_SGB1[:steps].fill_(1.0)
        index = (rows_SGB + self._start_G1).flatten()
        torch.index_select(self._obs_ND, 0, index, out=inputs_SGBI[..., :-1].view(len(index), -1))
        torch.index_select(self._actions_NA, 0, index, out=base_SGBA.view(len(index), -1)).neg_()
        if many:
            index = (rows_SGB[:, :many] + self._memory_start_M1).flatten()
            weight_SMB = torch.exp(-self._lambda_M1 * self._distances_N[index].view(steps, many, batch))
            actions_SMBA = buffers.memory_actions_SGBA.flatten()[: len(index) * base_SGBA.shape[3]].view(len(index), -1)
            torch.index_select(self._memory_actions_NA, 0, index, out=actions_SMBA)
            base_SGBA[:, :many].addcmul_(weight_SMB[..., None], actions_SMBA.view(steps, many, batch, -1))
            scale_SGB1[:, :many] = (self._L_M1 * (1.0 - weight_SMB))[..., None]
        return inputs_SGBI, base_SGBA, scale_SGB1


class _Adam:
    """Adam over flat parameters, one fused kernel for each learning rate."""

    def __init__(
        self,
        members: Sequence[Member],
        parameters_GF: torch.Tensor,
        gradients_GF: torch.Tensor,
        moments: Sequence[torch.Tensor],
        step: int,
    ) -> None:
        self._runs = []
        self._one = torch.ones((), device=parameters_GF.device)  # a number would be made a tensor at each step
        rates = [member.learning_rate or 0.0 for member in members]
        cuts = [0, *(i for i in range(1, len(rates)) if rates[i] != rates[i - 1]), len(rates)]
        for start, stop in itertools.pairwise(cuts):
            tensors = [[tensor[start:stop]] for tensor in (parameters_GF, gradients_GF, *moments)]
            steps = [torch.tensor(float(step), device=parameters_GF.device)]
            self._runs.append((tensors, steps, rates[start]))

    def step(self) -> None:
        for (parameters, gradients, first, second), steps, rate in self._runs:
            steps[0].add_(self._one)
            torch._fused_adam_(
                parameters,
                gradients,
                first,
                second,
                [],
                steps,
                lr=rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _starts(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths))]
