"""Noise schedules of diffusion policies, as tables, from the schedulers of `diffusers`; acting needs only the table.

Shapes: S denoising steps, T steps of the schedule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.errors import ConfigError

__all__ = ["denoising_table", "make_scheduler", "vp_betas"]

_VP = (
    0.1,
    10.0,
)  # least and greatest noise: Song et al. 2021, "Score-Based Generative Modeling", as Wang et al. have it


def vp_betas(steps: int) -> npt.NDArray[np.float64]:
    """Return the (T,) betas of `exp(-least t - (greatest - least) t^2 / 2)`, the variance kept, from t = 0 to 1."""
    least, greatest = _VP
    times = np.arange(steps + 1) / steps
    return -np.expm1(-np.diff(least * times + (greatest - least) * times**2 / 2.0))


def make_scheduler(steps: int, schedule: str, taken: int = 0) -> Any:
    """Return a scheduler of `diffusers` whose samples are given, and are not clipped.

    Args:
        steps: T.
        schedule: `vp` or `squared-cosine`.
        taken: 0 for DDPM, over all steps; else DDIM over so many, a divisor of T.

    Raises:
        ConfigError: diffusers is not installed.
    """
    try:
        # Not at the top: it takes seconds, and those who act do without.
        from diffusers.schedulers.scheduling_ddim import DDIMScheduler
        from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
    except ImportError as error:
        raise ConfigError(
            f"diff and mcnn+diff train with the package diffusers, which cannot be imported ({error}); install it with "
            "pip install 'mcnn-ray[diffusion]'"
        ) from error
    scheduler: Any = (DDIMScheduler if taken else DDPMScheduler)(
        num_train_timesteps=steps,
        beta_schedule="squaredcos_cap_v2",
        trained_betas=vp_betas(steps) if schedule == "vp" else None,
        prediction_type="sample",
        clip_sample=False,
        timestep_spacing="trailing",  # from pure noise, whatever their number
    )
    scheduler.set_timesteps(taken or steps)
    return scheduler


def denoising_table(steps: int, schedule: str, taken: int = 0) -> npt.NDArray[np.float32]:
    """Return how actions are made out of noise; arguments and errors are those of `make_scheduler`.

    Returns:
        (S, 6) float32, a row for each step that is taken, the first one first: its number t, T - 1 at first; shares of
        the actions and of the noise in the noisy actions; shares of the actions that the network tells, of the noisy
        ones and of fresh noise in the next noisy ones. After the last row these are the actions that the network tells.
    """
    scheduler = make_scheduler(steps, schedule, taken)

    def stepped(told: float, t: int, noisy: float) -> float:
        ones, generator = torch.ones(1, 1, dtype=torch.float64), torch.Generator().manual_seed(0)
        return float(scheduler.step(told * ones, t, noisy * ones, generator=generator).prev_sample)

    drawn = float(torch.randn(1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    rows = []
    for t in scheduler.timesteps.tolist():
        kept = float(scheduler.alphas_cumprod[t])
        noise = stepped(0.0, t, 0.0)  # a step is linear in what it takes, so that one of each tells its share
        shares = (stepped(1.0, t, 0.0) - noise, stepped(0.0, t, 1.0) - noise, noise / drawn)
        rows.append((t, kept**0.5, (1.0 - kept) ** 0.5, *shares))
    return np.array(rows, dtype=np.float32)
