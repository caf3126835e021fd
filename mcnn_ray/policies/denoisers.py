"""Networks of diffusion policies: from noisy actions, a denoising step and observations to actions, or to the noise.

Shapes: B chunks, P actions of a chunk, T observed steps, S denoising steps, D observation numbers, A action numbers, C
channels, H numbers that stand for a denoising step, K numbers that convolutions are conditioned on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mcnn_ray.diffusion_options import UNET_GROUPS, UNET_HALVINGS

__all__ = ["Denoiser", "make_denoiser"]

_KERNEL = 5
_LONGEST = 10_000.0  # wave of the sines that stand for a step, over 2 pi, in steps


class Denoiser(torch.nn.Module):
    """What the networks share: the steps of denoising, and numbers that stand for one.

    Args:
        options: of a member.
        inner: times H, the layer between.

    Attributes:
        table: (S, 6) float32, how actions are made out of noise; see `mcnn_ray.training.noise`. Zeros until it is set.
    """

    table: torch.Tensor
    frequencies: torch.Tensor

    def __init__(self, options: Mapping[str, Any], inner: int) -> None:
        super().__init__()
        time_width, steps = int(options["time_width"]), int(options["inference_steps"] or options["denoising_steps"])
        self.register_buffer("table", torch.zeros(steps, 6))
        waves = _LONGEST ** -torch.linspace(0.0, 1.0, time_width // 2)
        self.register_buffer("frequencies", waves, persistent=False)
        self.time_layers = torch.nn.Sequential(
            torch.nn.Linear(time_width, inner * time_width),
            torch.nn.Mish(),
            torch.nn.Linear(inner * time_width, time_width),
        )

    def time(self, step_B: torch.Tensor) -> torch.Tensor:
        """Return (B, H) numbers that stand for (B,) denoising steps."""
        phase = step_B[:, None] * self.frequencies
        return self.time_layers(torch.cat([phase.sin(), phase.cos()], 1))  # type: ignore[no-any-return]


class _Mlp(Denoiser):
    """Three layers over everything joined (Wang et al. 2023)."""

    def __init__(self, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> None:
        super().__init__(options, 2)
        width, chunk = int(options["width"]), int(options["predicted"]) * action_dim
        joined = chunk + int(options["time_width"]) + int(options["observed"]) * observation_dim
        self.layers = torch.nn.Sequential(
            *(torch.nn.Linear(joined, width), torch.nn.Mish()),
            *(torch.nn.Linear(width, width), torch.nn.Mish()),
            *(torch.nn.Linear(width, width), torch.nn.Mish()),
            torch.nn.Linear(width, chunk),
        )

    def forward(self, noisy_BPA: torch.Tensor, time_BH: torch.Tensor, obs_BTD: torch.Tensor) -> torch.Tensor:
        """Return (B, P, A)."""
        joined = torch.cat([noisy_BPA.flatten(1), time_BH, obs_BTD.flatten(1)], 1)
        return self.layers(joined).view_as(noisy_BPA)  # type: ignore[no-any-return]


class _Unet(Denoiser):
    """Convolutions along the chunk, each conditioned on the step and the observations (Chi et al. 2023)."""

    def __init__(self, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> None:
        super().__init__(options, 4)
        width, known = int(options["width"]), int(options["time_width"]) + int(options["observed"]) * observation_dim
        widths = [width * 2**level for level in range(UNET_HALVINGS + 1)]
        self.down, self.shorter = torch.nn.ModuleList(), torch.nn.ModuleList()
        for enters, leaves in zip([action_dim, *widths[:-1]], widths, strict=True):
            self.down.append(_Pair(enters, leaves, known))
        for channels in widths[:-1]:
            self.shorter.append(_Convolution(channels, channels, 3, stride=2, padding=1))
        self.middle = _Pair(widths[-1], widths[-1], known)
        self.up, self.longer = torch.nn.ModuleList(), torch.nn.ModuleList()
        for enters, leaves in zip(widths[:0:-1], widths[-2::-1], strict=True):
            self.up.append(_Pair(2 * enters, leaves, known))
            self.longer.append(torch.nn.ConvTranspose1d(leaves, leaves, 4, stride=2, padding=1))
        self.last = torch.nn.Sequential(_layer(width, width), _Convolution(width, action_dim, 1))

    def forward(self, noisy_BPA: torch.Tensor, time_BH: torch.Tensor, obs_BTD: torch.Tensor) -> torch.Tensor:
        """Return (B, P, A); P is a multiple of 2 to the halvings."""
        known_BK = torch.nn.functional.mish(torch.cat([time_BH, obs_BTD.flatten(1)], 1))
        x_BCP, passed = noisy_BPA.mT, []
        for level, pair in enumerate(self.down):
            x_BCP = pair(x_BCP, known_BK)
            passed.append(x_BCP)
            if level < UNET_HALVINGS:
                x_BCP = self.shorter[level](x_BCP)
        x_BCP = self.middle(x_BCP, known_BK)
        for pair, longer in zip(self.up, self.longer, strict=True):
            x_BCP = longer(pair(torch.cat([x_BCP, passed.pop()], 1), known_BK))
        return self.last(x_BCP).mT  # type: ignore[no-any-return]


class _Convolution(torch.nn.Conv1d):
    """On a CPU, one matrix product: twice as fast, as chunks are short."""

    def forward(self, x_BCP: torch.Tensor) -> torch.Tensor:
        if x_BCP.is_cuda:
            return super().forward(x_BCP)
        padding, kernel, stride = int(self.padding[0]), self.kernel_size[0], self.stride[0]
        seen_BCPK = torch.nn.functional.pad(x_BCP, (padding, padding)).unfold(2, kernel, stride)
        batch, channels, length, _ = seen_BCPK.shape
        columns = seen_BCPK.permute(1, 3, 0, 2).reshape(channels * kernel, batch * length)
        assert self.bias is not None
        output = torch.addmm(self.bias[:, None], self.weight.flatten(1), columns)
        return output.view(-1, batch, length).transpose(0, 1)


class _Pair(torch.nn.Module):
    """Two residual blocks, the first of which may change the number of channels."""

    def __init__(self, enters: int, leaves: int, known: int) -> None:
        super().__init__()
        self.first, self.second = _Block(enters, leaves, known), _Block(leaves, leaves, known)

    def forward(self, x_BCP: torch.Tensor, known_BK: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x_BCP, known_BK), known_BK)  # type: ignore[no-any-return]


class _Block(torch.nn.Module):
    """Two convolutions; what is known scales and shifts the channels between them (FiLM)."""

    def __init__(self, enters: int, leaves: int, known: int) -> None:
        super().__init__()
        self.first, self.second = _layer(enters, leaves), _layer(leaves, leaves)
        self.film = torch.nn.Linear(known, 2 * leaves)
        self.around = _Convolution(enters, leaves, 1) if enters != leaves else torch.nn.Identity()

    def forward(self, x_BCP: torch.Tensor, known_BK: torch.Tensor) -> torch.Tensor:
        scale_BC1, shift_BC1 = self.film(known_BK)[..., None].chunk(2, 1)
        inner_BCP = torch.addcmul(shift_BC1, self.first(x_BCP), scale_BC1)
        return self.second(inner_BCP) + self.around(x_BCP)  # type: ignore[no-any-return]


def _layer(enters: int, leaves: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        _Convolution(enters, leaves, _KERNEL, padding=_KERNEL // 2),
        torch.nn.GroupNorm(UNET_GROUPS, leaves),
        torch.nn.Mish(),
    )


def make_denoiser(observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Denoiser:
    """Return a network.

    Its `time` makes (B, H) of (B,) steps; called with (B, P, A) noisy actions, these and (B, T, D) standardised
    observations, it returns (B, P, A).

    Args:
        observation_dim: D.
        action_dim: A.
        options: of a member; see `mcnn_ray.diffusion_options`.
    """
    kind = _Unet if options["network"] == "unet" else _Mlp
    return kind(observation_dim, action_dim, options)
