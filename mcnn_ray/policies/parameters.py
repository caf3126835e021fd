"""Parameters of policies' torch networks, as they stand among a policy's arrays: behind a prefix of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["load_parameters", "named_arrays", "named_parameters"]

_PREFIX = "parameters."  # since a network chooses its names freely


def named_arrays(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, npt.NDArray[Any]]:
    """Return named tensors as a policy's arrays."""
    return {_PREFIX + name: tensor.cpu().numpy() for name, tensor in tensors}


def named_parameters(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return those of a policy's arrays that `named_arrays` gave, under the network's own names."""
    return {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}


def load_parameters(network: torch.nn.Module, parameters: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Give a network copies of its parameters and buffers, for acting: it is not trained any more.

    Args:
        network: may be on the meta device, where it takes no memory before its parameters are seen to fit.
        parameters: by the network's own names.

    Raises:
        ValueError: they have other names or shapes.
    """
    tensors = {name: torch.tensor(array, dtype=torch.float32) for name, array in parameters.items()}
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    network.requires_grad_(False).eval()
