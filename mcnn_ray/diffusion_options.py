"""Hyperparameters of diffusion policies: their presets, their ranges, and which of them go together.

Paper, appendix "Detailed Experimental Setup": on Adroit as Wang et al. 2023, "Diffusion Policies as an Expressive
Policy Class for Offline Reinforcement Learning", in Kitchen as Chi et al. 2023, "Diffusion Policy".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mcnn_ray.errors import ConfigError
from mcnn_ray.options import Option

__all__ = [
    "DIFFUSION_KITCHEN",
    "DIFFUSION_OPTIONS",
    "DIFFUSION_PAPER",
    "UNET_GROUPS",
    "UNET_HALVINGS",
    "check_diffusion",
    "check_diffusion_with_memories",
]

UNET_HALVINGS = 2  # of a chunk's length on the way down
UNET_GROUPS = 8  # of channels that are normalised together

DIFFUSION_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        "network": Option(default="mlp", choices=("mlp", "unet"), meaning="three layers, or convolutions over a chunk"),
        "width": Option(
            default=256, least=1, most=10_000, meaning="of the layers; the U-Net's are 1, 2 and 4 times it"
        ),
        "time_width": Option(default=16, least=4, most=10_000, meaning="numbers that stand for a denoising step; even"),
        "observed": Option(default=1, least=1, most=1000, meaning="observations that actions depend on, steps"),
        "predicted": Option(default=1, least=1, most=1000, meaning="actions of a chunk, the first observed step's on"),
        "executed": Option(
            default=1, least=1, most=1000, meaning="of them carried out, from the newest observation on"
        ),
        "denoising_steps": Option(default=5, least=1, most=10_000, meaning="from noise to actions"),
        "schedule": Option(
            default="vp", choices=("vp", "squared-cosine"), meaning="of the noise: variance-preserving, or cosine's"
        ),
        "prediction": Option(
            default="sample", choices=("sample", "noise"), meaning="what the network tells; memories need sample"
        ),
        "inference_steps": Option(
            default=0, most=10_000, meaning="denoising steps of an action, by DDIM; 0 for all, by DDPM"
        ),
        "momentum": Option(default=0.9, most=0.999, meaning="of AdamW, its first beta"),
        "weight_decay": Option(default=0.0, most=1.0, meaning="over the learning rate, each step"),
        "warmup": Option(
            default=0, meaning="steps in which the learning rate rises, then falls as a cosine; 0 for not"
        ),
        "ema_power": Option(
            default=0.0, most=10.0, meaning="the policy's weights are a mean, of decay 1 - step^-power; 0 for the last"
        ),
    }
)
DIFFUSION_PAPER: Mapping[str, Any] = MappingProxyType({"learning_rate": 3e-5, "batch_size": 256})
DIFFUSION_KITCHEN: Mapping[str, Any] = MappingProxyType(
    {
        "learning_rate": 1e-4,
        "network": "unet",
        "time_width": 256,
        "observed": 2,
        "predicted": 16,
        "executed": 8,
        "denoising_steps": 100,
        "schedule": "squared-cosine",
        "momentum": 0.95,
        "weight_decay": 1e-6,
        "warmup": 500,
        "ema_power": 0.75,
    }
)


def check_diffusion(options: Mapping[str, Any]) -> None:
    """Refuse options that are each in range but do not go together.

    Raises:
        ConfigError: they do not.
    """
    _check_chunk(options)
    if options["time_width"] % 2:
        raise ConfigError(f"option time_width is {options['time_width']}; it must be even, for sines and cosines")
    steps, taken = options["denoising_steps"], options["inference_steps"]
    if taken and steps % taken:
        raise ConfigError(
            f"option inference_steps is {taken}, which does not divide the {steps} denoising_steps; take a divisor, or "
            "0 for all of them"
        )


def check_diffusion_with_memories(options: Mapping[str, Any]) -> None:
    """Refuse likewise, and a network that tells noise, which memories cannot be blended with.

    Raises:
        ConfigError: they do not go together.
    """
    check_diffusion(options)
    if options["prediction"] != "sample":
        raise ConfigError(
            f"option prediction is '{options['prediction']}', but memories are actions, so mcnn+diff blends them with "
            "actions; set prediction to sample, or take the method diff"
        )


def _check_chunk(options: Mapping[str, Any]) -> None:
    observed, predicted, executed = options["observed"], options["predicted"], options["executed"]
    if observed - 1 + executed > predicted:
        raise ConfigError(
            f"option predicted is {predicted}, but a chunk begins at the first of {observed} observed steps and "
            f"{executed} actions from the last one on are executed; set predicted to at least {observed - 1 + executed}"
        )
    if options["network"] != "unet":
        return
    if predicted % 2**UNET_HALVINGS:
        raise ConfigError(
            f"option predicted is {predicted}; the U-Net halves a chunk {UNET_HALVINGS} times, so set predicted to "
            f"{-(-predicted // 2**UNET_HALVINGS) * 2**UNET_HALVINGS}, say, or network to mlp"
        )
    if options["width"] % UNET_GROUPS:
        raise ConfigError(
            f"option width is {options['width']}; the U-Net normalises {UNET_GROUPS} groups of its channels, so set "
            f"width to {-(-options['width'] // UNET_GROUPS) * UNET_GROUPS}, say"
        )
