"""Networks of several members as stacked tensors: forward, and the gradient written into one flat tensor.

Shapes: G members, B batch, D observation numbers, A action numbers, F numbers of one member's parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.policies.mlp import layer_arrays

__all__ = ["StackedMlp", "StackedNetwork"]

aten = torch.ops.aten

_ALIGNED = 32  # numbers: every weight and bias starts on a 128-byte line, which wide loads want


class StackedNetwork(Protocol):
    """The same network for G members at once, with buffers for one batch. One forward, then its backward.

    Attributes:
        size: F.
        output_GBA: (G, B, A) float32, written by `forward`.
        gradients_GF: (G, F) float32, written by `backward`.
    """

    size: int
    output_GBA: torch.Tensor
    gradients_GF: torch.Tensor

    def initial(self, seed: int) -> torch.Tensor:
        """Return a member's (F,) float32 first parameters, on the CPU."""

    def by_name(self, parameters_F: torch.Tensor) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of one member's parameters under the names that its policy gives them."""

    def views(self, parameters_GF: torch.Tensor) -> Any:
        """Return what `forward` and `backward` take: views of the parameters of G members."""

    def forward(self, views: Any, inputs_GBD: torch.Tensor) -> None:
        """Write the outputs."""

    def backward(self, views: Any, gradient_GBA: torch.Tensor) -> None:
        """Write the parameters' gradient, given that of the last outputs."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Views of one layer of all members; transposing anew at each step would cost as much as a small operation."""

    weight: torch.Tensor  # (G, in, out)
    transposed: torch.Tensor  # (G, out, in)
    stored: torch.Tensor  # whichever of the two is contiguous
    bias: torch.Tensor  # (G, 1, out)


class StackedMlp:
    """Rectified layers. The gradient is written by hand: autograd would spend more on its bookkeeping than on it.

    Args:
        widths: D, hidden widths, A.
        group: G.
        batch: B.
        device: of all tensors.
    """

    def __init__(self, widths: Sequence[int], group: int, batch: int, device: torch.device) -> None:
        self._widths = tuple(widths)
        self._starts = [0]
        for fan_in, fan_out in itertools.pairwise(self._widths):
            for numbers in (fan_in * fan_out, fan_out):
                self._starts.append(self._starts[-1] + math.ceil(numbers / _ALIGNED) * _ALIGNED)
        self.size = self._starts[-1]
        self.gradients_GF = torch.zeros(group, self.size, device=device)
        self._gradients = self.views(self.gradients_GF)
        *self._hidden, self.output_GBA = [torch.empty(group, batch, width, device=device) for width in widths[1:]]
        self._back = [torch.empty_like(hidden) for hidden in self._hidden]
        self._ones_G1B = torch.ones(1, 1, batch, device=device).expand(group, 1, batch)
        self._inputs_GBD = torch.empty(0)

    def initial(self, seed: int) -> torch.Tensor:
        """Draw weights and biases uniform in +-1/sqrt(fan-in), as torch.nn.Linear does."""
        generator = torch.Generator().manual_seed(seed)
        flat_1F = torch.zeros(1, self.size)
        for layer in self.views(flat_1F):
            bound = layer.weight.shape[1] ** -0.5
            # Drawn in the order (in, out), however it is stored.
            layer.weight.copy_(torch.empty(layer.weight.shape).uniform_(-bound, bound, generator=generator))
            layer.bias.uniform_(-bound, bound, generator=generator)
        return flat_1F[0]

    def by_name(self, parameters_F: torch.Tensor) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of `layers.i.weight` (in, out) and `layers.i.bias` (out,) of one member."""
        arrays = layer_arrays((layer.weight[0], layer.bias[0, 0]) for layer in self.views(parameters_F[None]))
        return {name: tensor.cpu().numpy().copy() for name, tensor in arrays.items()}

    def views(self, parameters_GF: torch.Tensor) -> list[_Layer]:
        """Return the weight (G, in, out) and bias (G, 1, out) of each layer, as views."""
        layers = []
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(self._widths)):
            first, second = self._starts[2 * i], self._starts[2 * i + 1]
            numbers_GN = parameters_GF[:, first : first + fan_in * fan_out]
            bias = parameters_GF[:, second : second + fan_out].unsqueeze(1)
            # Long rows: products with rows of 28 numbers take up to twice as long.
            if fan_in < fan_out:
                stored = numbers_GN.unflatten(1, (fan_in, fan_out))
                layers.append(_Layer(stored, stored.mT, stored, bias))
            else:
                stored = numbers_GN.unflatten(1, (fan_out, fan_in))
                layers.append(_Layer(stored.mT, stored, stored, bias))
        return layers

    def forward(self, views: list[_Layer], inputs_GBD: torch.Tensor) -> None:
        """Write the outputs."""
        self._inputs_GBD = inputs_GBD
        inputs = inputs_GBD
        for layer, hidden in zip(views[:-1], self._hidden, strict=True):
            inputs = torch.baddbmm(layer.bias, inputs, layer.weight, out=hidden).relu_()
        torch.baddbmm(views[-1].bias, inputs, views[-1].weight, out=self.output_GBA)

    def backward(self, views: list[_Layer], gradient_GBA: torch.Tensor) -> None:
        """Write the parameters' gradient, given that of the last outputs."""
        gradient = gradient_GBA
        inputs = [self._inputs_GBD, *self._hidden]
        for i in reversed(range(len(views))):
            stored = self._gradients[i].stored
            if stored is self._gradients[i].weight:
                torch.bmm(inputs[i].mT, gradient, out=stored)
            else:
                torch.bmm(gradient.mT, inputs[i], out=stored)
            torch.bmm(self._ones_G1B, gradient, out=self._gradients[i].bias)  # a sum over the batch, as a product
            if i > 0:
                back = self._back[i - 1]
                torch.bmm(gradient, views[i].transposed, out=back)
                # One pass over the gradient; a product with `hidden > 0` takes three.
                gradient = aten.threshold_backward.grad_input(back, self._hidden[i - 1], 0, grad_input=back)
