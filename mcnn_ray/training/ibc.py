"""Implicit behaviour cloning (`ibc`): an energy that is least at what was demonstrated.

Florence et al. 2021, "Implicit Behavioral Cloning": the InfoNCE loss (equation 2) with counter-examples drawn uniformly
from a box, the demonstrated range of each action number widened by 5 % on both sides and cut at the action bounds
(`uniform_boundary_buffer` of google-research/ibc). Energies see actions in units of that box.

The values of the preset `paper` are those of that repository's D4RL runs, `configs/d4rl/mlp_ebm_langevin_best.gin`, the
numbers of which the tables quote. These runs did two things that are not done here: they moved counter-examples and
samples by 100 steps of Langevin dynamics; and they had spectral normalisation and a penalty on the energy's gradient,
which those steps need. Their 8 counter-examples and 512 samples are also those of the repository's derivative-free runs
on the particle task (`configs/particle/mlp_ebm_dfo.gin`); those on block pushing have 256 and 16,384.

Without those steps it is a method for actions of few numbers. Uniform counter-examples are ever farther from what was
demonstrated, and are told apart before the energy has a shape near it: with 64 of them and 1,500 steps on a smooth
function of 4 numbers, the error over the actions' standard deviation was 0.01 for 1 action number, 0.05 for 2, 0.14 for
4, 0.22 for 8 and 0.57 for 16; on door-expert, with 28, it stays above that of the mean action.

Shapes: B batch, C counter-examples, N transitions, A action numbers.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.member import Member
from mcnn_ray.policies.implicit import energies
from mcnn_ray.policies.mlp import layer_arrays
from mcnn_ray.training.data import Shard, TrainingData, check_rows
from mcnn_ray.training.learner import Learner
from mcnn_ray.training.step_shape import StepCost

__all__ = ["ImplicitLearner", "info_nce"]

_WIDENED = 0.05  # share of the demonstrated range by which the box goes beyond it, on either side
_DECAY = 0.99  # of the learning rate, every `decay_steps`


def info_nce(energy_BC1: torch.Tensor) -> torch.Tensor:
    """Return (B,) losses -log softmax(-energy) of (B, 1 + C) energies, of which the first is the demonstrated one's."""
    return energy_BC1[:, 0] + torch.logsumexp(-energy_BC1, 1)


class ImplicitLearner(Learner):
    """One member of the family `ibc`; arguments and errors are those of `Learner`."""

    def __init__(self, member: Member, data: TrainingData, shard: Shard | None = None) -> None:
        super().__init__(member, data, shard)
        check_rows(member, self.choices, "demonstration steps")
        least_A, most_A = data.actions_NA.amin(0), data.actions_NA.amax(0)
        beyond_A = _WIDENED * (most_A - least_A)
        self._low_A, self._high_A = (least_A - beyond_A).clamp(min=-1), (most_A + beyond_A).clamp(max=1)
        middle_A, half_A = (self._high_A + self._low_A) / 2, (self._high_A - self._low_A) / 2
        # A number that never changes has no width; it is 0 here, and the policy's box gives it back.
        self._actions_NA = torch.where(half_A > 0, (data.actions_NA - middle_A) / half_A, 0.0)

    def _make_networks(self) -> torch.nn.ModuleDict:
        widths = (self.observation_dim + self.action_dim, *self.member.hidden, 1)
        layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        return torch.nn.ModuleDict({"energy": torch.nn.ModuleList(layers)})

    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.networks.parameters(), lr=self.member.learning_rate or 0.0)]

    @property
    def choices(self) -> int:
        """The number N of transitions."""
        return len(self.data.obs_ND)

    @property
    def _layers(self) -> list[tuple[Any, Any]]:
        layers: Any = self.networks["energy"]
        return [(layer.weight.T, layer.bias) for layer in layers]

    def learn(self, drawn_B: torch.Tensor, step: int) -> torch.Tensor:
        """Take one gradient step; see `Learner.learn`."""
        # All of the batch's, whoever shares it, so that workers together train as one does alone.
        shape = (self.batch, self.member.option("counter_examples"), self.action_dim)
        counter_BCA = torch.rand(shape, device=self.device) * 2 - 1
        if self.shard is not None:
            counter_BCA = counter_BCA[self.shard.rows(self.batch)]
        actions_BCA = torch.cat([self._actions_NA[drawn_B][:, None], counter_BCA], 1)
        loss = info_nce(energies(self._layers, self.data.obs_ND[drawn_B], actions_BCA, torch.relu)).sum() / self.batch
        (optimiser,) = self.optimisers
        for group in optimiser.param_groups:
            group["lr"] = (self.member.learning_rate or 0.0) * _DECAY ** (step / self.member.option("decay_steps"))
        self.descend(optimiser, loss)
        return loss

    def policy_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the layers and the box, by name."""
        arrays = {"box_low": self._low_A, "box_high": self._high_A, **layer_arrays(self._layers)}
        return {name: np.array(tensor.detach().cpu().numpy(), order="C") for name, tensor in arrays.items()}

    @classmethod
    def cost(cls, member: Member, dim: int, actions: int) -> StepCost:
        """Count a step's work and memory; see `Learner.cost`."""
        batch = member.batch_size or 0
        rows = batch * (1 + int(member.option("counter_examples")))
        searched = int(member.option("inference_samples") * member.option("inference_iterations"))
        widths = (*member.hidden, 1)
        pairs = list(itertools.pairwise(widths))
        first = widths[0] * (batch * dim + rows * actions)  # whose inputs need no gradient
        others = sum(fan_in * fan_out for fan_in, fan_out in pairs)
        return StepCost(
            parameters=(dim + actions + 1) * widths[0] + sum((fan_in + 1) * fan_out for fan_in, fan_out in pairs),
            flop=4 * first + 6 * rows * others,
            kept=2 * rows * (actions + sum(widths)),
            share=0.88,
            act_flop=2 * searched * (actions * widths[0] + others),
            act_share=0.88,
        )
