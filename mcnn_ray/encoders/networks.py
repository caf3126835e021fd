"""The encoders' networks, 48 x 48 RGB images in [0, 1] to 512 numbers.

Shapes: B batch, C channels, H and W pixels, E embedding numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

__all__ = ["ARCHITECTURES", "EMBEDDING", "IMAGE_SHAPE", "draw_weights", "make_network", "weight_shapes", "weights_of"]

IMAGE_SHAPE = (48, 48, 3)  # height, width, red green blue
EMBEDDING = 512
_UNUSED = "num_batches_tracked"  # counts of batch normalisation that no output depends on


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        y_BCHW = torch.relu(self.bn1(self.conv1(x_BCHW)))
        passed_BCHW = x_BCHW if self.downsample is None else self.downsample(x_BCHW)
        return torch.relu(self.bn2(self.conv2(y_BCHW)) + passed_BCHW)


class ResNet34(nn.Module):
    """ResNet34 without its last layer, as the paper uses it: the last map, 2 x 2 here, is averaged.

    Parameters have torchvision's names, which coiltraine shares.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for layer, (outputs, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], 1):
            first = _Block(inputs, outputs, 1 if layer == 1 else 2)
            self.add_module(
                f"layer{layer}", nn.Sequential(first, *(_Block(outputs, outputs, 1) for _ in range(blocks - 1)))
            )
            inputs = outputs

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return (B, E) embeddings of (B, C, H, W) images."""
        x_BCHW = self.maxpool(torch.relu(self.bn1(self.conv1(images_BCHW))))
        for layer in range(1, 5):
            x_BCHW = self.get_submodule(f"layer{layer}")(x_BCHW)
        embeddings_BE: torch.Tensor = x_BCHW.mean((2, 3))
        return embeddings_BE


class SmallNetwork(nn.Sequential):
    """Four convolutions, for machines without a GPU; the last map, 128 channels of 2 x 2, is the embedding."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs, size, padding in [(3, 32, 5, 2), (32, 64, 3, 1), (64, 128, 3, 1), (128, 128, 3, 0)]:
            layers += [
                nn.Conv2d(inputs, outputs, size, 2, padding, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        super().__init__(*layers, nn.Flatten())


ARCHITECTURES: dict[str, type[nn.Module]] = {"resnet34": ResNet34, "small": SmallNetwork}


def weight_shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every weight of a network, one of `ARCHITECTURES`."""
    with torch.device("meta"):
        state = ARCHITECTURES[architecture]().state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items() if not name.endswith(_UNUSED)}


def weights_of(network: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Return copies of a network's weights by name, running statistics among them."""
    state = network.state_dict()
    return {name: tensor.cpu().numpy().copy() for name, tensor in state.items() if not name.endswith(_UNUSED)}


def make_network(architecture: str, weights: dict[str, npt.NDArray[np.float32]]) -> nn.Module:
    """Return a network with weights as `weight_shapes` lists them, for inference."""
    with torch.device("meta"):  # no time spent on first values
        network = ARCHITECTURES[architecture]().to_empty(device="cpu")
    network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()}, strict=False)
    # As images lie in memory: pixel by pixel.
    network.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def draw_weights(architecture: str, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return random weights: uniform in +-sqrt(6 / inputs) (He et al. 2015), batch normalisation that does nothing.

    They are made of a bit generator's raw numbers, which no version of numpy may change.
    """
    bits, weights = np.random.Philox(seed), {}
    for name, shape in weight_shapes(architecture).items():
        if len(shape) == 4:
            raw = bits.random_raw(int(np.prod(shape))) >> np.uint64(40)
            unit = (raw.astype(np.float64) / 2**23 - 1.0) * np.sqrt(6.0 / np.prod(shape[1:]))
            weights[name] = unit.reshape(shape).astype(np.float32)
        else:
            ones = name.endswith((".running_var", ".weight"))
            weights[name] = np.full(shape, 1.0 if ones else 0.0, np.float32)
    return weights
