"""The paper's encoder: the perception part of a network that coiltraine cloned from driving (CILRS, ResNet34).

The checkpoint is felipecode/coiltraine's `nocrash/resnet34imnet10S1/checkpoints/660000.pth`.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.encoders.encoder import Encoder
from mcnn_ray.encoders.networks import weight_shapes
from mcnn_ray.errors import ArtifactError

__all__ = ["read_coiltraine"]

_PREFIX = "perception."
# Of the last layer, whose input is of larger images than ours, and counts that no output depends on.
_LEFT_OUT = ("fc.weight", "fc.bias")
_COUNTS = "num_batches_tracked"


def read_coiltraine(checkpoint: Path) -> Encoder:
    """Read the perception network of a coiltraine checkpoint; nothing in the file can run.

    Raises:
        ArtifactError: it cannot be read, holds more than tensors and numbers, or is another network's.
    """
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        file_sha256 = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    except pickle.UnpicklingError as error:
        raise ArtifactError(
            f"{checkpoint} holds more than tensors and numbers, or is damaged, and is not loaded "
            f"({str(error).splitlines()[0][:120]}); take coiltraine's own file"
        ) from error
    except OSError as error:
        raise ArtifactError(f"{checkpoint} cannot be read: {error.strerror}") from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:  # whose words are torch's own, or a number
        raise ArtifactError(f"{checkpoint} is no checkpoint that torch wrote, or damaged; fetch it again") from error
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise ArtifactError(f"{checkpoint} has no state_dict; take a checkpoint as coiltraine writes it")
    facts = {"file": checkpoint.name, "file_sha256": file_sha256}
    return Encoder("cilrs", "resnet34", _perception(state, checkpoint), facts)


def _perception(state: dict[Any, Any], checkpoint: Path) -> dict[str, npt.NDArray[np.float32]]:
    found = {
        key.removeprefix(_PREFIX): value
        for key, value in state.items()
        if isinstance(key, str) and key.startswith(_PREFIX) and not key.endswith(_COUNTS)
    }
    for key in _LEFT_OUT:
        found.pop(key, None)
    expected = weight_shapes("resnet34")
    for key in sorted(expected.keys() | found.keys()):
        value = found.get(key)
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
        if shape != expected.get(key):
            raise ArtifactError(
                f"{checkpoint} is not the paper's ResNet34: {_PREFIX}{key} has the shape {shape}, expected "
                f"{expected.get(key)}"
            )
    return {key: value.to(torch.float32).numpy().copy() for key, value in found.items()}
