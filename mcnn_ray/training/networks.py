"""Networks of several members as stacked tensors: forward, and the gradient written into one flat tensor.

Shapes: G members, B batch, D observation numbers, I = D + 1, A action numbers, F numbers of one member's parameters.
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

__all__ = ["StackedMlp", "StackedNetwork", "beside_one", "row_length"]

aten = torch.ops.aten

_ALIGNED = 32  # numbers: every layer starts on a 128-byte line, which wide loads want
_ROW = 8  # numbers: so does every fourth row of the layers' inputs, and of weights whose rows are an output's


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

    def forward(self, views: Any, inputs_GBI: torch.Tensor) -> None:
        """Write the outputs for inputs of D numbers and a last one that is 1."""

    def backward(self, views: Any, gradient_GBA: torch.Tensor) -> None:
        """Write the parameters' gradient, given that of the last outputs."""


def beside_one(*shape: int, device: torch.device) -> torch.Tensor:
    """Return a float32 tensor for as many numbers and a last one that is 1, whose weights are a layer's biases.

    So a bias costs no operation of its own: neither copies before products nor sums over the batch for its gradient.

    Args:
        shape: its last size is what is to stand beside the 1; rows are padded.
        device: of the tensor.
    """
    *others, width = shape
    tensor = torch.zeros(*others, row_length(width), device=device)[..., : width + 1]
    tensor[..., -1] = 1.0
    return tensor


def row_length(width: int) -> int:
    """Return how many numbers of memory a row takes that `beside_one` makes for `width` numbers."""
    return _rounded(width + 1, _ROW)


def _rounded(numbers: int, multiple: int) -> int:
    return math.ceil(numbers / multiple) * multiple


@dataclass(frozen=True, slots=True)
class _Layer:
    """Views of one layer of all members; transposing anew at each step would cost as much as a small operation."""

    weight: torch.Tensor  # (G, in + 1, out), the last row the biases
    back: torch.Tensor  # (G, out, in), without the biases


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
            rows, columns = _stored(fan_in, fan_out)
            self._starts.append(self._starts[-1] + _rounded(rows * columns, _ALIGNED))
        self.size = self._starts[-1]
        self.gradients_GF = torch.zeros(group, self.size, device=device)
        self._gradients = self.views(self.gradients_GF)
        self._hidden = [beside_one(group, batch, width, device=device) for width in widths[1:-1]]
        self._hidden_mT = [hidden.mT for hidden in self._hidden]
        self._units = [hidden[..., :-1] for hidden in self._hidden]
        self._back = [torch.empty_like(units) for units in self._units]
        self.output_GBA = torch.empty(group, batch, widths[-1], device=device)
        if device.type == "cpu":  # long rows, see `_stored`; a GPU wants the layout of the targets, which it meets next
            self.output_GBA = torch.empty(group, widths[-1], batch).mT
        self._inputs_GBI = torch.empty(0)

    def initial(self, seed: int) -> torch.Tensor:
        """Draw weights and biases uniform in +-1/sqrt(fan-in), as torch.nn.Linear does."""
        generator = torch.Generator().manual_seed(seed)
        flat_1F = torch.zeros(1, self.size)
        for layer in self.views(flat_1F):
            bound = layer.back.shape[2] ** -0.5
            for numbers in (layer.weight[0, :-1], layer.weight[0, -1]):
                numbers.copy_(torch.empty(numbers.shape).uniform_(-bound, bound, generator=generator))
        return flat_1F[0]

    def by_name(self, parameters_F: torch.Tensor) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of `layers.i.weight` (in, out) and `layers.i.bias` (out,) of one member."""
        layers = self.views(parameters_F[None])
        arrays = layer_arrays((layer.weight[0, :-1], layer.weight[0, -1]) for layer in layers)
        return {name: tensor.cpu().numpy().copy() for name, tensor in arrays.items()}

    def views(self, parameters_GF: torch.Tensor) -> list[_Layer]:
        """Return each layer's weights and biases, as views."""
        layers = []
        for start, (fan_in, fan_out) in zip(self._starts, itertools.pairwise(self._widths), strict=False):
            rows, columns = _stored(fan_in, fan_out)
            stored = parameters_GF[:, start : start + rows * columns].unflatten(1, (rows, columns))
            weight = stored if columns == fan_out else stored[..., : fan_in + 1].mT
            layers.append(_Layer(weight, weight[:, :-1].mT))
        return layers

    def forward(self, views: list[_Layer], inputs_GBI: torch.Tensor) -> None:
        """Write the outputs for inputs of D numbers and a last one that is 1."""
        self._inputs_GBI = inputs_GBI
        inputs = inputs_GBI
        for layer, units, hidden in zip(views, self._units, self._hidden, strict=False):
            torch.bmm(inputs, layer.weight, out=units).relu_()
            inputs = hidden
        torch.bmm(inputs, views[-1].weight, out=self.output_GBA)

    def backward(self, views: list[_Layer], gradient_GBA: torch.Tensor) -> None:
        """Write the parameters' gradient, given that of the last outputs."""
        gradient = gradient_GBA
        inputs_mT = [self._inputs_GBI.mT, *self._hidden_mT]
        for i in reversed(range(len(views))):
            torch.bmm(inputs_mT[i], gradient, out=self._gradients[i].weight)
            if i > 0:
                back = self._back[i - 1]
                torch.bmm(gradient, views[i].back, out=back)
                # One pass over the gradient; a product with `units > 0` takes three.
                gradient = aten.threshold_backward.grad_input(back, self._units[i - 1], 0, grad_input=back)


def _stored(fan_in: int, fan_out: int) -> tuple[int, int]:
    """Return rows and columns of a layer in memory: long rows, since products with rows of 28 numbers are slow."""
    if fan_in <= fan_out:
        return fan_in + 1, fan_out
    return fan_out, row_length(fan_in)
