"""LeRobot's diffusion policy for `compare_diffusion.py`: what its network tells, how fast it trains and acts.

    python diffusion_lerobot.py IN.npz OUT.npz

IN holds weights under LeRobot's names, batches, and what the network is asked; the torch beside it needs no simulator.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import numpy as np
import torch

# LeRobot imports it for images, of which there are none here; its usual build needs torch's for GPUs.
for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.functional"):
    sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))

from lerobot.configs.types import FeatureType, PolicyFeature  # noqa: E402
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig  # noqa: E402
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy  # noqa: E402


def make_policy(dim: int, actions: int, inference: tuple[str, int]) -> DiffusionPolicy:
    """Return a policy of the kitchen's sizes, with the observation in two parts, as it wants one of each kind."""
    return DiffusionPolicy(
        DiffusionConfig(
            n_obs_steps=2,
            horizon=16,
            n_action_steps=8,
            device="cpu",
            down_dims=(256, 512, 1024),
            diffusion_step_embed_dim=256,
            prediction_type="sample",
            noise_scheduler_type=inference[0],
            num_inference_steps=inference[1],
            do_mask_loss_for_padding=True,
            input_features={
                "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(dim // 2,)),
                "observation.environment_state": PolicyFeature(type=FeatureType.ENV, shape=(dim - dim // 2,)),
            },
            output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(actions,))},
        )
    )


def split(obs_BTD: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the two parts of observations under LeRobot's names."""
    half = obs_BTD.shape[-1] // 2
    return {"observation.state": obs_BTD[..., :half], "observation.environment_state": obs_BTD[..., half:]}


def median_s(act: object, repeats: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        before = time.process_time()
        act()
        times.append(time.process_time() - before)
    return float(np.median(times))


def main() -> None:
    """Answer what IN asks for."""
    torch.set_num_threads(1)
    with np.load(sys.argv[1]) as read:
        given = dict(read)
    asked = json.loads(str(given.pop("asked")))
    arrays = {name: torch.from_numpy(array) for name, array in given.items()}
    obs_SBTD, actions_SBPA, pad_SBP = (arrays.pop(name) for name in ("observations", "actions", "pad"))
    noisy_BPA, step_B, told_obs_BTD = (arrays.pop(name) for name in ("noisy", "step", "told_observations"))
    policy = make_policy(obs_SBTD.shape[-1], actions_SBPA.shape[-1], ("DDPM", 100))
    policy.load_state_dict(arrays)
    with torch.no_grad():
        told_BPA = policy.diffusion.unet(noisy_BPA, step_B, global_cond=told_obs_BTD.flatten(1))
    optimiser = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    rate = policy.config.get_scheduler_preset().build(optimiser, 10_000)
    times = []
    for obs_BTD, actions_BPA, pad_BP in zip(obs_SBTD, actions_SBPA, pad_SBP, strict=True):
        before = time.process_time()
        loss, _ = policy.forward({**split(obs_BTD), "action": actions_BPA, "action_is_pad": pad_BP})
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rate.step()
        times.append(time.process_time() - before)
    acting = {}
    for kind, steps in (("DDPM", 100), ("DDIM", 10)):
        one = make_policy(obs_SBTD.shape[-1], actions_SBPA.shape[-1], (kind, steps)).eval()
        batch = split(told_obs_BTD[:1])
        with torch.inference_mode():
            acting[f"{kind}_s"] = median_s(
                lambda one=one, batch=batch: one.diffusion.generate_actions(batch), asked["chunks"]
            )
    np.savez(sys.argv[2], told=told_BPA.numpy(), step_s=times, **acting)


if __name__ == "__main__":
    main()
