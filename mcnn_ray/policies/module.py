"""Policies with a network of a user's own. Their directories name its class; loading them runs the user's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.policies.backbone import make_backbone
from mcnn_ray.policies.base import Float32Array
from mcnn_ray.policies.blended import BlendedPolicy, Memories
from mcnn_ray.policies.parameters import named_arrays, named_parameters

__all__ = ["ModulePolicy"]


class ModulePolicy(BlendedPolicy):
    """A `torch.nn.Module` of a user's own, as `mcnn_ray.policies.backbone` describes it.

    Args:
        card: origin of the policy.
        standardiser: of observations.
        action_scale: of actions.
        backbone: dotted name of the class, which is imported.
        parameters: float32 arrays under the names that the module gives its parameters.
        memories: the codebook, or None for plain behaviour cloning.

    Raises:
        ConfigError: the class cannot be imported or used.
        ValueError: its parameters have other names or shapes than those given.
    """

    kind = "module"

    def __init__(
        self,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        backbone: str,
        parameters: Mapping[str, npt.NDArray[np.float32]],
        memories: Memories | None,
    ) -> None:
        super().__init__(card, standardiser, action_scale, memories)
        self.backbone = backbone
        self._device = "cpu"
        self._module = make_backbone(backbone, self.observation_dim, self.action_dim).requires_grad_(False)
        made = dict(self._module.named_parameters())
        shapes = {key: tuple(parameter.shape) for key, parameter in made.items()}
        given = {key: array.shape for key, array in parameters.items()}
        if shapes != given:
            key = next(key for key in shapes | given if shapes.get(key) != given.get(key))
            raise ValueError(
                f"parameter {key} has the shape {given.get(key)}, that of {backbone} now {shapes.get(key)}; was the "
                "class changed?"
            )
        for key, array in parameters.items():
            made[key].copy_(torch.from_numpy(array))

    def network(self, obs_BD: Float32Array) -> Float32Array:
        """Return f(x), (B, A) float32 before any head, for (B, D) standardised observations."""
        output_BA: Float32Array = self._module(torch.from_numpy(obs_BD).to(self._device)).cpu().numpy()
        return output_BA

    def to(self, device: str) -> None:
        """Compute the network on a device of torch's from now on; memories are looked up on the CPU."""
        super().to(device)
        self._device = device
        self._module.to(device)

    def network_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the parameters by name."""
        return named_arrays(self._module.named_parameters())

    def network_settings(self) -> dict[str, Any]:
        """Return the class's name."""
        return {"backbone": self.backbone}

    @classmethod
    def from_parts(
        cls,
        card: dict[str, Any],
        standardiser: Standardiser,
        action_scale: ActionScale,
        arrays: dict[str, npt.NDArray[Any]],
        settings: dict[str, Any],
    ) -> ModulePolicy:
        """Build the policy from its arrays and settings, importing the class that these name."""
        parameters, memories = named_parameters(arrays), Memories.from_parts(arrays, settings)
        return cls(card, standardiser, action_scale, settings["backbone"], parameters, memories)
