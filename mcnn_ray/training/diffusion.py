"""Training diffusion policies, alone or blended with memories; see `mcnn_ray.policies.diffusion`.

Shapes: N transitions, B batch, T observed steps, P actions of a chunk, K denoising steps, M memories, D observation
numbers, A action numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.flop_counter import FlopCounterMode

from mcnn_ray.core.blend import blend
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member
from mcnn_ray.policies.denoisers import make_denoiser
from mcnn_ray.training.chunks import action_places, chunk_rows, episode_bounds, memory_chunks
from mcnn_ray.training.data import Shard, TrainingData
from mcnn_ray.training.learner import Learner, copied_state
from mcnn_ray.training.noise import denoising_table, make_scheduler
from mcnn_ray.training.step_shape import StepCost

__all__ = ["DiffusionLearner", "learning_rate_at"]

_SECOND_BETA = 0.999
_MOST_DECAY = 0.9999  # of the weights' mean


def learning_rate_at(step: int, member: Member) -> float:
    """Return a step's learning rate: rising to the member's over `warmup` steps, then falling to 0 as a cosine.

    Args:
        step: counted from 0.
        member: of the family `diffusion`; without `warmup` its learning rate stays as it is.
    """
    rate, rises = member.learning_rate or 0.0, int(member.option("warmup"))
    if step < rises:
        return rate * (step + 1) / rises
    fallen = (step - rises) / max(1, member.steps - rises) if rises else 0.0
    return rate * (1.0 + math.cos(math.pi * fallen)) / 2.0


def _averaging(power: float) -> Callable[[Any, Any, Any], None]:
    def average(means: list[torch.Tensor], latest: list[torch.Tensor], count: torch.Tensor) -> None:
        torch._foreach_lerp_(means, latest, max(float(count) ** -power, 1.0 - _MOST_DECAY))

    return average


class DiffusionLearner(Learner):
    """Squared error of the actions, or the noise, that the network tells from chunks with noise of a random step.

    What a chunk has beyond its episode does not count. Blended with memories, the actions are those after the blend.

    Args:
        member: of the family `diffusion`.
        data: what it learns from; a batch is of steps, with the chunks around them.
        shard: this worker's part of every batch, when several train the same member.

    Raises:
        ConfigError: diffusers is not installed.
    """

    def __init__(self, member: Member, data: TrainingData, shard: Shard | None = None) -> None:
        observed, self._predicted = int(member.option("observed")), int(member.option("predicted"))
        device = data.obs_ND.device
        self._steps, schedule = int(member.option("denoising_steps")), str(member.option("schedule"))
        # Shares of actions and noise, of step 0 on; by all steps, however few are taken in acting.
        self._shares_2K = torch.tensor(denoising_table(self._steps, schedule)[::-1, 1:3].T.copy(), device=device)
        self._first_N, self._last_N = (torch.tensor(rows_N, device=device) for rows_N in episode_bounds(data.offsets))
        self._observed_T = torch.arange(1 - observed, 1, device=device)
        places_P = action_places(observed, self._predicted)
        self._places_P = torch.tensor(places_P, device=device)
        self._tells_noise = member.option("prediction") == "noise"
        super().__init__(member, data, shard)
        if member.memory_key is not None:
            rows_M, nearest_N = np.unique(data.memory_rows[member.memory_key], return_inverse=True)
            chunks_MPA = memory_chunks(
                data.actions_NA.cpu().numpy(), data.offsets, rows_M, nearest_N, member.memory_key[3], places_P
            )
            self._chunks_MPA = torch.tensor(chunks_MPA, device=device)
            self._nearest_N = torch.tensor(nearest_N, device=device)

    def _make_networks(self) -> torch.nn.ModuleDict:
        options = dict(self.member.options)
        self._network = make_denoiser(self.observation_dim, self.action_dim, options)
        table_S6 = denoising_table(self._steps, str(options["schedule"]), int(options["inference_steps"]))
        self._network.table.copy_(torch.from_numpy(table_S6))
        networks: dict[str, torch.nn.Module] = {"network": self._network}
        self._mean: AveragedModel | None = None
        if options["ema_power"]:
            self._mean = AveragedModel(self._network, multi_avg_fn=_averaging(float(options["ema_power"])))
            networks["mean"] = self._mean.requires_grad_(False)
        return torch.nn.ModuleDict(networks)

    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        betas = (float(self.member.option("momentum")), _SECOND_BETA)
        return [
            torch.optim.AdamW(
                self._network.parameters(),
                lr=self.member.learning_rate or 0.0,
                betas=betas,
                weight_decay=float(self.member.option("weight_decay")),
                fused=True,
            )
        ]

    @classmethod
    def check(cls, member: Member, demonstrations: Demonstrations) -> None:
        """Refuse demonstrations of which none is as long as a chunk, and go no further without diffusers.

        Raises:
            ConfigError: none is, or diffusers is not installed.
        """
        make_scheduler(1, "vp")
        longest, predicted = int(demonstrations.lengths.max()), int(member.option("predicted"))
        if longest < predicted:
            raise ConfigError(
                f"option predicted is {predicted}, but the longest demonstration of {demonstrations.source} has "
                f"{longest} steps, so that the end of a chunk is never seen; ask for at most {longest}"
            )

    @property
    def choices(self) -> int:
        """How many steps there are."""
        return len(self.data.obs_ND)

    def learn(self, drawn_B: torch.Tensor, step: int) -> torch.Tensor:
        """Take one gradient step on chunks; return this part's share of the batch's loss, over all that is counted."""
        first_B, last_B = self._first_N[drawn_B], self._last_N[drawn_B]
        observed_BT, _ = chunk_rows(drawn_B, first_B, last_B, self._observed_T)
        rows_BP, inside_BP = chunk_rows(drawn_B, first_B, last_B, self._places_P)
        clean_BPA = self.data.actions_NA[rows_BP]
        step_B, noise_BPA = self._draws()
        signal_B11, spread_B11 = self._shares_2K[:, step_B, None, None]
        noisy_BPA = signal_B11 * clean_BPA + spread_B11 * noise_BPA
        told_BPA = self._network(noisy_BPA, self._network.time(step_B), self.data.obs_ND[observed_BT])
        truth_BPA = noise_BPA if self._tells_noise else clean_BPA
        errors_BPA = self._blended(told_BPA, drawn_B) - truth_BPA
        loss = self.mean_over(errors_BPA.square().mean(-1), inside_BP)
        for group in self.optimisers[0].param_groups:
            group["lr"] = learning_rate_at(step, self.member)
        self.descend(self.optimisers[0], loss)
        if self._mean is not None:
            self._mean.update_parameters(self._network)
        return loss

    def _draws(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B,) denoising steps and (B, P, A) noise: drawn for the whole batch, whoever has which part of it."""
        part = slice(None) if self.shard is None else self.shard.rows(self.batch)
        step_B = torch.randint(self._steps, (self.batch,), device=self.device)
        noise_BPA = torch.randn(self.batch, self._predicted, self.action_dim, device=self.device)
        return step_B[part], noise_BPA[part]

    def _blended(self, told_BPA: torch.Tensor, drawn_B: torch.Tensor) -> torch.Tensor:
        key, lambda_, bound = self.member.memory_key, self.member.lambda_, self.member.L
        if key is None or lambda_ is None or bound is None:
            return told_BPA
        weight_B11 = torch.exp(-lambda_ * self.data.distances[key][drawn_B])[:, None, None]
        memory_BPA = self._chunks_MPA[self._nearest_N[drawn_B]]
        return blend(weight_B11, memory_BPA, told_BPA.clamp(-1.0, 1.0), bound)

    def policy_arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the network's parameters, their means if there are any, and its table, by name."""
        return copied_state(self._network if self._mean is None else self._mean.module)

    @classmethod
    def cost(cls, member: Member, dim: int, actions: int) -> StepCost:
        """Count a step's work and memory, for `dim` observation numbers and `actions` action numbers."""
        options, batch, kept = dict(member.options), member.batch_size or 0, 0

        def keep(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            nonlocal kept
            kept += output.numel()

        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            network = make_denoiser(dim, actions, options)
            for module in network.modules():
                if not list(module.children()):
                    module.register_forward_hook(keep)
            chunks_BPA = torch.empty(batch, int(options["predicted"]), actions)
            obs_BTD = torch.empty(batch, int(options["observed"]), dim)
            network(chunks_BPA, network.time(torch.empty(batch)), obs_BTD)
        flop, acting = counter.get_total_flops(), len(network.table) / int(options["executed"])
        parameters = sum(parameter.numel() for parameter in network.parameters())
        return StepCost(
            parameters=parameters,
            flop=3 * flop,
            kept=kept + (parameters if options["ema_power"] else 0),
            share=_share(options),
            act_flop=round(flop / batch * acting),
            act_share=0.1,
        )


def _share(options: Mapping[str, Any]) -> float:
    """Return what a step's products take of its time on one thread: measured for the small MLP and three U-Nets."""
    if options["network"] == "mlp":
        return 0.3
    return float(np.interp(float(options["width"]), (16.0, 64.0, 256.0), (0.12, 0.38, 0.65)))
