"""Codebooks in a folder, each whole or not at all, read again by whoever learns the same."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from mcnn_ray.artifacts import read_json, read_tensors, verify_manifest, write_directory, write_json
from mcnn_ray.core.codebook import Codebook
from mcnn_ray.errors import ArtifactError

__all__ = ["read_codebook", "write_codebook"]

_BOOK_ARRAYS = ("rows_M", "edges_E2", "nearest_N", "distances_N")


def write_codebook(entry: Path, book: Codebook) -> None:
    """Write a codebook into a directory."""
    fields = asdict(book)
    with write_directory(entry) as target:
        save_file(
            {name: np.ascontiguousarray(fields.pop(name)) for name in _BOOK_ARRAYS}, target / "codebook.safetensors"
        )
        write_json(target / "codebook.json", fields)


def read_codebook(entry: Path, steps: int) -> Codebook | None:
    """Return a cached codebook, or None when there is none or it is damaged and has to be learned again."""
    try:
        verify_manifest(entry)
        book = Codebook(**read_json(entry / "codebook.json"), **read_tensors(entry / "codebook.safetensors"))
        memories = len(book.rows_M)
        for index, end in ((book.rows_M, steps), (book.edges_E2, memories), (book.nearest_N, memories)):
            if index.dtype != np.int64 or index.min(initial=0) < 0 or index.max(initial=0) >= end:
                return None
    except (ArtifactError, TypeError):
        return None
    shapes = (book.rows_M.shape, book.edges_E2.shape[1:], book.nearest_N.shape, book.distances_N.shape)
    return book if shapes == ((memories,), (2,), (steps,), (steps,)) else None
