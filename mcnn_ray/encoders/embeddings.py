"""Demonstrations seen through an encoder, computed once and kept by content.

Shapes: N steps, X numbers of an image, E embedding numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file

from mcnn_ray.artifacts import content_hash, locked, read_tensors, verify_manifest, write_directory, write_json
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.encoders.encoder import Encoder
from mcnn_ray.errors import ArtifactError, DatasetError

__all__ = ["cached_embeddings", "embed", "embed_images"]

_BATCH = 64  # on a CPU, where larger ones are no faster
_GPU_BATCH = 1024
_FORMAT = 1  # raised whenever the same images and weights give other embeddings
_FILE = "embeddings.safetensors"

Float32Array = npt.NDArray[np.float32]
Progress = Callable[[float], None]


def embed_images(images_NX: Float32Array, encoder: Encoder, progress: Progress | None = None) -> Float32Array:
    """Return (N, E) embeddings of (N, X) images, on the encoder's device.

    Raises:
        DatasetError: they are no images that the encoder takes.
    """
    batch = _BATCH if encoder.device == "cpu" else _GPU_BATCH
    embeddings_NE = np.empty((len(images_NX), encoder.outputs), np.float32)
    for start in range(0, len(images_NX), batch):
        embeddings_NE[start : start + batch] = encoder(images_NX[start : start + batch])
        if progress is not None:
            progress(min(1.0, (start + batch) / len(images_NX)))
    return embeddings_NE


def embed(demonstrations: Demonstrations, encoder: Encoder, progress: Progress | None = None) -> Demonstrations:
    """Return demonstrations whose observations are embeddings, computed on a GPU where there is one.

    Their hash follows from those of the images and of the weights, so it is the same on machines that round otherwise.

    Raises:
        DatasetError: the observations are no images that the encoder takes.
    """
    return _seen(demonstrations, encoder, _compute(demonstrations, encoder, progress))


def cached_embeddings(
    demonstrations: Demonstrations, encoder: Encoder, cache: Path, progress: Progress | None = None
) -> Demonstrations:
    """Return what `embed` does, computed only where the cache does not hold it whole.

    Args:
        demonstrations: images.
        encoder: that sees them.
        cache: folder of embeddings by content hash.
        progress: called with the share done.
    """
    entry = cache / _key(demonstrations, encoder)
    with locked(entry):  # whoever comes second finds them computed
        arrays = _read(entry, demonstrations, encoder)
        if arrays is None:
            arrays = _compute(demonstrations, encoder, progress)
            with write_directory(entry) as target:
                save_file(arrays, target / _FILE)
                write_json(
                    target / "embeddings.json", {"source": demonstrations.source, "encoder": encoder.description()}
                )
    return _seen(demonstrations, encoder, arrays)


def _key(demonstrations: Demonstrations, encoder: Encoder) -> str:
    finals = demonstrations.final_observations_ED
    seen = [demonstrations.sha256, None if finals is None else sha256(np.ascontiguousarray(finals).data).hexdigest()]
    return content_hash({"images": seen, "encoder": encoder.sha256, "format": _FORMAT})


def _compute(
    demonstrations: Demonstrations, encoder: Encoder, progress: Progress | None
) -> dict[str, npt.NDArray[np.float32]]:
    finals = demonstrations.final_observations_ED
    if torch.cuda.is_available():
        encoder.to("cuda")
    try:
        arrays = {"observations": embed_images(demonstrations.observations_ND, encoder, progress)}
        if finals is not None:
            arrays["final_observations"] = embed_images(finals, encoder)
    except DatasetError as error:
        raise DatasetError(f"{demonstrations.source}: {error}") from error
    finally:
        encoder.to("cpu")
    return arrays


def _read(entry: Path, demonstrations: Demonstrations, encoder: Encoder) -> dict[str, Float32Array] | None:
    """Return cached embeddings, or None when there are none or they are damaged and have to be computed again."""
    expected = {"observations": (demonstrations.steps, encoder.outputs)}
    if demonstrations.final_observations_ED is not None:
        expected["final_observations"] = (demonstrations.episodes, encoder.outputs)
    try:
        verify_manifest(entry)
        arrays = read_tensors(entry / _FILE)
    except ArtifactError:
        return None
    shapes = {name: array.shape for name, array in arrays.items() if array.dtype == np.float32}
    return arrays if expected.items() <= shapes.items() else None


def _seen(demonstrations: Demonstrations, encoder: Encoder, arrays: dict[str, Float32Array]) -> Demonstrations:
    finals = demonstrations.final_observations_ED
    return replace(
        demonstrations,
        observations_ND=arrays["observations"],
        final_observations_ED=None if finals is None else arrays["final_observations"],
        observations_hash=_key(demonstrations, encoder),
        provenance={**demonstrations.provenance, "encoder": encoder.description()},
    )
