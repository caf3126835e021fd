"""Checkpoints of packs: whole or not at all, tied to their members, the newest sound one wins."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mcnn_ray.artifacts import read_json, read_tensors, verify_manifest, write_directory, write_json
from mcnn_ray.errors import ArtifactError
from mcnn_ray.training.pack import Pack

__all__ = ["load_checkpoint", "save_checkpoint"]

FORMAT = 1
_KEPT = 2  # the newest and, should that be damaged, one before

logger = logging.getLogger(__name__)


def save_checkpoint(directory: Path, pack: Pack, identities: list[str], curve_SP: npt.NDArray[np.float32]) -> None:
    """Write `step-N` into a directory and drop all but the newest two.

    Args:
        directory: of this pack's checkpoints.
        pack: to be saved.
        identities: (P,) the members' identities, in the pack's order.
        curve_SP: (S, P) float32 training losses so far, one row per reported interval.

    Raises:
        OSError: the disk is full or not writable; earlier checkpoints stay.
    """
    with write_directory(directory / f"step-{pack.step:09d}") as target:
        save_file({**pack.state(), "curve": np.ascontiguousarray(curve_SP)}, target / "state.safetensors")
        write_json(target / "checkpoint.json", {"format": FORMAT, "step": pack.step, "members": identities})
    for old in _newest_first(directory)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(directory: Path, pack: Pack, identities: list[str]) -> npt.NDArray[np.float32] | None:
    """Put a pack where its newest sound checkpoint left it.

    A damaged checkpoint, or one of other members, is reported in the log and the one before it is taken.

    Args:
        directory: of this pack's checkpoints; need not exist.
        pack: freshly made from the same members and data.
        identities: (P,) the members' identities.

    Returns:
        (S, P) float32 training losses up to the checkpoint, or None when there is no sound one and the pack is as new.
    """
    for path in _newest_first(directory):
        try:
            verify_manifest(path)
            description = read_json(path / "checkpoint.json")
            if description.get("format") != FORMAT or description.get("members") != identities:
                raise ArtifactError(f"{path} belongs to other members or another version; it is left alone")
            state = read_tensors(path / "state.safetensors")
            curve: npt.NDArray[np.float32] = state.pop("curve")
            pack.load_state(state)
        except (ArtifactError, KeyError, ValueError, RuntimeError) as error:
            logger.warning("checkpoint %s is not used: %s; looking for the one before", path, error)
            continue
        return curve
    return None


def _newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-*"), reverse=True)
