"""Networks of a user's own, of several members as stacked tensors, through `torch.func`.

Shapes: G members, B batch, D observation numbers, I = D + 1, A action numbers, F numbers of one member's parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch.func import functional_call, vjp, vmap

from mcnn_ray.errors import ConfigError
from mcnn_ray.policies.backbone import make_backbone

__all__ = ["StackedModule", "check_backbone"]

Tensors = dict[str, torch.Tensor]  # by the parameter's name

_CHECKED = 5  # rows of the batch that `check_backbone` tries
_ROUNDING = 1e-3  # by which float32 outputs of the same may differ, far below what a real difference makes


class StackedModule:
    """The `StackedNetwork` of any `torch.nn.Module` without buffers. Slower than `StackedMlp`.

    A parameter with `requires_grad=False` has a gradient of 0, at which Adam leaves it as it is.

    Args:
        name: dotted name of the class; see `mcnn_ray.policies.backbone`.
        observation_dim: D.
        action_dim: A.
        group: G.
        batch: B.
        device: of all tensors.

    Raises:
        ConfigError: the class cannot be used.
    """

    def __init__(
        self, name: str, observation_dim: int, action_dim: int, group: int, batch: int, device: torch.device
    ) -> None:
        self._made_of = (name, observation_dim, action_dim)
        self._module = make_backbone(*self._made_of).to(device)
        parameters = dict(self._module.named_parameters())
        ends = itertools.accumulate(parameter.numel() for parameter in parameters.values())
        self._places = {
            key: (slice(end - parameter.numel(), end), parameter.shape)
            for (key, parameter), end in zip(parameters.items(), ends, strict=True)
        }
        self._fixed = {key for key, parameter in parameters.items() if not parameter.requires_grad}
        self.size = sum(parameter.numel() for parameter in parameters.values())
        self.gradients_GF = torch.zeros(group, self.size, device=device)
        self._gradients, _ = self.views(self.gradients_GF)
        self.output_GBA = torch.empty(group, batch, action_dim, device=device)
        # One member goes without vmap, which would cost it a third of its speed.
        self._call = self._outputs if group == 1 else vmap(self._outputs)
        self._pull_back: Callable[[torch.Tensor], tuple[Tensors]] | None = None

    def _outputs(self, trained: Tensors, fixed: Tensors, inputs_BD: torch.Tensor) -> torch.Tensor:
        output_BA: torch.Tensor = functional_call(self._module, {**trained, **fixed}, (inputs_BD,))
        return output_BA

    def initial(self, seed: int) -> torch.Tensor:
        """Return the parameters that the class draws after `torch.manual_seed(seed)`."""
        network = make_backbone(*self._made_of, seed=seed)
        return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])

    def views(self, parameters_GF: torch.Tensor) -> tuple[Tensors, Tensors]:
        """Return views of each parameter, (G, ...) or without G where that is 1: those trained, and those fixed."""
        trained: Tensors = {}
        fixed: Tensors = {}
        for key, (place, shape) in self._places.items():
            view = parameters_GF[:, place].view(len(parameters_GF), *shape).squeeze(0)
            (fixed if key in self._fixed else trained)[key] = view
        return trained, fixed

    def by_name(self, parameters_F: torch.Tensor) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of one member's parameters under the names that the module gives them."""
        return {
            key: parameters_F[place].view(shape).cpu().numpy().copy() for key, (place, shape) in self._places.items()
        }

    @torch.inference_mode(False)  # where the pack trains, nothing can be differentiated
    def forward(self, views: tuple[Tensors, Tensors], inputs_GBI: torch.Tensor) -> None:
        """Write the outputs for inputs of D numbers and a last one, which it leaves out."""
        trained, fixed = views
        inputs = inputs_GBI[..., :-1].contiguous().squeeze(0)
        pulled = vjp(lambda parameters: self._call(parameters, fixed, inputs), trained)
        output, self._pull_back = pulled  # type: ignore[misc]  # three only with has_aux
        self.output_GBA.copy_(output)

    @torch.inference_mode(False)
    def backward(self, views: tuple[Tensors, Tensors], gradient_GBA: torch.Tensor) -> None:
        """Write the parameters' gradient, given that of the last outputs."""
        assert self._pull_back is not None, "backward without a forward"
        (gradients,) = self._pull_back(gradient_GBA.squeeze(0))
        self._pull_back = None
        for key, gradient in gradients.items():
            self._gradients[key].copy_(gradient)


def check_backbone(name: str, observation_dim: int, action_dim: int) -> None:
    """Make sure that a user's network can be trained, saved and loaded, by trying it on a few numbers.

    Args:
        name: dotted name of its class.
        observation_dim: D.
        action_dim: A.

    Raises:
        ConfigError: it cannot; the message says why.
    """
    stacked = StackedModule(name, observation_dim, action_dim, 2, _CHECKED, torch.device("cpu"))
    parameters_2F = torch.stack([stacked.initial(seed) for seed in (0, 1)])
    obs_BD = torch.randn(_CHECKED, observation_dim, generator=torch.Generator().manual_seed(0))
    views = stacked.views(parameters_2F)
    try:
        stacked.forward(views, torch.nn.functional.pad(obs_BD, (0, 1)).expand(2, -1, -1))
        stacked.backward(views, torch.ones_like(stacked.output_GBA))
    except Exception as error:
        told = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(
            f"backbone {name} cannot be trained through torch.func ({type(error).__name__}: {told}); its forward must "
            "be differentiable torch operations, without branches on values, .item() or random numbers, and with "
            "dropout, if any, as torch.nn.Dropout"
        ) from error
    if not stacked.gradients_GF.any():
        raise ConfigError(f"backbone {name} has outputs without a gradient; leave out detach() and torch.no_grad()")
    other = make_backbone(name, observation_dim, action_dim, seed=1)
    parameters = {key: torch.from_numpy(array) for key, array in stacked.by_name(parameters_2F[0]).items()}
    with torch.no_grad():
        whole_BA = functional_call(other, parameters, (obs_BD,))
        rows_BA = torch.cat([functional_call(other, parameters, (obs_1D,)) for obs_1D in obs_BD.split(1)])
    if _differ(whole_BA, stacked.output_GBA[0]):
        raise ConfigError(
            f"backbone {name} made twice with the same parameters gives different outputs, so it could not be saved; "
            "keep random numbers that its constructor draws as a torch.nn.Parameter with requires_grad=False"
        )
    if _differ(rows_BA, whole_BA):
        raise ConfigError(
            f"backbone {name} gives an observation another output when others are in its batch; policies act on one "
            "at a time, so let no operation mix the rows (torch.nn.LayerNorm instead of batch normalisation)"
        )


def _differ(some_BA: torch.Tensor, other_BA: torch.Tensor) -> bool:
    return bool((some_BA - other_BA).abs().max() > _ROUNDING * (1.0 + other_BA.abs().max()))
