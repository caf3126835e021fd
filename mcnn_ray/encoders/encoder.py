"""An encoder of images with its weights, where they are from, and its directory.

Shapes: B images, X numbers of one, E embedding numbers.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file

from mcnn_ray.artifacts import locked, read_json, read_tensors, verify_manifest, write_directory, write_json
from mcnn_ray.encoders.networks import ARCHITECTURES, EMBEDDING, IMAGE_SHAPE, draw_weights, make_network, weight_shapes
from mcnn_ray.errors import ArtifactError, ConfigError, DatasetError

__all__ = ["RANDOM_ENCODERS", "Encoder", "find_encoder", "random_encoder", "read_encoder", "write_encoder"]

FORMAT = 1  # of encoder directories
WEIGHTS_FILE = "encoder.safetensors"
_DESCRIPTION_FILE = "encoder.json"
RANDOM_ENCODERS = {f"random-{architecture}": architecture for architecture in ARCHITECTURES}

Float32Array = npt.NDArray[np.float32]


class Encoder:
    """A network that is not trained any more, applied to flat images.

    Args:
        source: where the weights are from: `cilrs` (coiltraine's checkpoint, as in the paper), `bc` (cloned from
            demonstrations here) or `random`.
        architecture: one of `ARCHITECTURES`.
        weights: float32 arrays as `weight_shapes` lists them.
        facts: of their origin, JSON values.

    Attributes:
        source, architecture, weights, facts: as given.
        device: of torch's, that it computes on.
        file: a file on this machine that holds the weights; policy directories share it where the system can.
        inputs: numbers X of an image.
        outputs: numbers E of an embedding.

    Raises:
        ArtifactError: the weights are not the architecture's.
    """

    inputs = math.prod(IMAGE_SHAPE)
    outputs = EMBEDDING

    def __init__(
        self, source: str, architecture: str, weights: Mapping[str, Float32Array], facts: Mapping[str, Any]
    ) -> None:
        self.source, self.architecture, self.weights, self.facts = source, architecture, dict(weights), dict(facts)
        self.file: Path | None = None
        self.device = "cpu"
        self._network: torch.nn.Module | None = None
        self._sha256: str | None = None
        _check_weights(self.name, architecture, self.weights)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as arrays; the network is built where it is needed."""
        parts = (self.source, self.architecture, self.weights, self.facts)
        return (type(self), parts, {"file": self.file, "_sha256": self._sha256})

    @property
    def name(self) -> str:
        """Source and architecture, e.g. `random-small`."""
        return f"{self.source}-{self.architecture}"

    @property
    def sha256(self) -> str:
        """Hash of architecture and weights, whatever file they lie in."""
        if self._sha256 is None:
            digest = hashlib.sha256(self.architecture.encode())
            for name, array in sorted(self.weights.items()):
                digest.update(f"{name} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array, dtype="<f4").data)
            self._sha256 = digest.hexdigest()
        return self._sha256

    def description(self) -> dict[str, Any]:
        """Return what artefacts state of it: JSON values."""
        return {
            "source": self.source,
            "architecture": self.architecture,
            "sha256": self.sha256,
            "facts": self.facts,
        }

    def to(self, device: str) -> None:
        """Compute on a device of torch's from now on, e.g. `cuda`."""
        self.device, self._network = device, None

    def __call__(self, images_BX: npt.NDArray[Any]) -> Float32Array:
        """Return (B, E) embeddings of (B, X) images.

        An image's bits depend on the size of the batch and its place in it, not on the other images.

        Args:
            images_BX: height by width by red, green, blue, flat, in [0, 1].

        Raises:
            DatasetError: they are no such images.
        """
        if images_BX.ndim != 2 or images_BX.shape[1] != self.inputs:
            raise DatasetError(
                f"the encoder {self.name} takes images of {' x '.join(map(str, IMAGE_SHAPE))}, flat "
                f"({self.inputs} numbers), got an array of shape {images_BX.shape}"
            )
        flat_BX = np.ascontiguousarray(images_BX, dtype=np.float32)
        low, high = flat_BX.min(initial=0.0), flat_BX.max(initial=1.0)
        if not (low >= 0.0 and high <= 1.0):
            raise DatasetError(
                f"the encoder {self.name} takes RGB values in [0, 1], got {low:g} to {high:g}; divide bytes by 255"
            )
        if self._network is None:
            self._network = make_network(self.architecture, self.weights).to(self.device)
        with torch.inference_mode():
            images_BHWC = torch.from_numpy(flat_BX).to(self.device).view(-1, *IMAGE_SHAPE)
            embeddings_BE: Float32Array = self._network(images_BHWC.permute(0, 3, 1, 2)).cpu().numpy()
        return embeddings_BE

    def write_weights(self, folder: Path) -> None:
        """Write the weights into a folder: as another name of `file`, or a file of its own where that cannot be."""
        target = folder / WEIGHTS_FILE
        if self.file is not None:
            try:
                os.link(self.file, target)
            except OSError:  # another disk, another machine, or a system without
                pass
            else:
                return
        save_file({name: np.ascontiguousarray(array) for name, array in self.weights.items()}, target)

    def keep_in(self, cache: Path) -> None:
        """Have a file of the weights in a folder, made if it is not there whole, that policy directories can share."""
        if self.file is not None:
            return
        directory = cache / self.sha256
        with locked(directory):
            try:
                self.file = read_encoder(directory).file
            except ArtifactError:
                write_encoder(self, directory)
                self.file = directory.resolve() / WEIGHTS_FILE

    @classmethod
    def read_weights(cls, folder: Path, description: Any) -> Encoder:
        """Read what `write_weights` wrote and `description` described.

        Raises:
            ArtifactError: they are missing, damaged or others.
        """
        try:
            source, architecture, facts = description["source"], description["architecture"], description["facts"]
            expected = str(description["sha256"])
            encoder = cls(str(source), str(architecture), read_tensors(folder / WEIGHTS_FILE), dict(facts))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{folder} does not say what its encoder is ({error!r}); make it again") from error
        if encoder.sha256 != expected:
            raise ArtifactError(
                f"{folder / WEIGHTS_FILE} holds other weights (sha256 {encoder.sha256[:12]}) than it states "
                f"({expected[:12]}); make it again"
            )
        encoder.file = folder.resolve() / WEIGHTS_FILE
        return encoder


def _check_weights(name: str, architecture: str, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    if architecture not in ARCHITECTURES:
        raise ArtifactError(f"unknown architecture '{architecture}' of an encoder; known: {', '.join(ARCHITECTURES)}")
    expected = weight_shapes(architecture)
    for key in sorted(expected.keys() | weights.keys()):
        found = tuple(weights[key].shape) if key in weights else None
        if found != expected.get(key):
            raise ArtifactError(f"the encoder {name} has {key} of shape {found}, expected {expected.get(key)}")
        if weights[key].dtype != np.float32 or not np.isfinite(weights[key]).all():
            raise ArtifactError(f"the encoder {name} has {key} that is not finite float32")


def random_encoder(architecture: str, seed: int = 0) -> Encoder:
    """Return an encoder of random weights, the lower baseline."""
    return Encoder("random", architecture, draw_weights(architecture, seed), {"seed": seed})


def write_encoder(encoder: Encoder, directory: Path) -> None:
    """Write an encoder's directory whole or not at all."""
    with write_directory(directory) as target:
        encoder.write_weights(target)
        write_json(target / _DESCRIPTION_FILE, {"format": FORMAT, **encoder.description()})


def read_encoder(directory: Path) -> Encoder:
    """Read an encoder's directory.

    Raises:
        ArtifactError: missing, damaged or of another format.
    """
    if not (directory / _DESCRIPTION_FILE).is_file():
        raise ArtifactError(f"{directory} is no encoder: it has no {_DESCRIPTION_FILE}; mcnn encoder --help makes one")
    verify_manifest(directory)
    description = read_json(directory / _DESCRIPTION_FILE)
    if description.get("format") != FORMAT:
        raise ArtifactError(
            f"{directory} has the encoder format {description.get('format')}, this version reads {FORMAT}; make it "
            "again"
        )
    return Encoder.read_weights(directory, description)


def find_encoder(name: str) -> Encoder:
    """Return an encoder by name, `random-resnet34` or `random-small`, or from its directory.

    Raises:
        ConfigError: there is none.
        ArtifactError: the directory is damaged.
    """
    if name in RANDOM_ENCODERS:
        return random_encoder(RANDOM_ENCODERS[name])
    if not Path(name).is_dir():
        raise ConfigError(
            f"no encoder '{name}': it is neither {' nor '.join(RANDOM_ENCODERS)}, nor a directory that mcnn encoder "
            "train or mcnn encoder import has made"
        )
    return read_encoder(Path(name))
