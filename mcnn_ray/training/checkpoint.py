"""Checkpoints of packs: whole or not at all, tied to their members, the newest sound one wins; written in a thread."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mcnn_ray.artifacts import read_json, read_tensors, verify_manifest, write_directory, write_json
from mcnn_ray.errors import ArtifactError
from mcnn_ray.training.learners import AnyPack

__all__ = ["CheckpointWriter", "Resumed", "load_checkpoint", "newest_step", "read_curve"]

FORMAT = 3  # raised whenever what a checkpoint holds is laid out otherwise
_KEPT = 2  # the newest and, should that be damaged, one before

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a checkpoint says beside the pack's own state.

    Attributes:
        curve_SP: (S, P) float32 training losses up to the checkpoint, NaN where a member had stopped.
        failures: why members stopped, by identity.
    """

    curve_SP: npt.NDArray[np.float32]
    failures: dict[str, str]


class CheckpointWriter:
    """Writes `step-N` directories while training goes on, and drops all but the newest two.

    Args:
        directory: of this pack's checkpoints.
        identities: (P,) of all members that the pack began with, in its order.

    Attributes:
        cost_s: seconds that the last checkpoint took, copying and writing.
    """

    def __init__(self, directory: Path, identities: Sequence[str]) -> None:
        self._directory = directory
        self._identities = list(identities)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[float] | None = None
        self.cost_s = 0.0

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except ArtifactError as failed:
            if kind is None:
                raise
            logger.warning("%s", failed)  # what ended the training is on its way and matters more
        finally:
            self._thread.shutdown()

    def save(self, pack: AnyPack, curve_SP: npt.NDArray[np.float32], failures: Mapping[str, str]) -> None:
        """Copy a pack's state and have it written; waits only if the last one is still being written.

        Args:
            pack: of the members that have not failed.
            curve_SP: (S, P) float32 training losses so far, of all members.
            failures: why members stopped, by identity.

        Raises:
            ArtifactError: the last one could not be written; earlier ones stay.
        """
        self.wait()
        started = time.monotonic()
        description = {"format": FORMAT, "step": pack.step, "members": self._identities, "failures": dict(failures)}
        tensors = {**pack.state(), "curve": np.ascontiguousarray(curve_SP)}
        self._pending = self._thread.submit(self._write, pack.step, tensors, description, started)

    def wait(self) -> None:
        """Wait for what is being written.

        Raises:
            ArtifactError: it could not be written; earlier checkpoints stay.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self.cost_s = pending.result()
        except OSError as error:
            raise ArtifactError(
                f"no checkpoint could be written to {self._directory}: {error.strerror or error}; earlier ones stay, "
                "make room and give the same command again"
            ) from error

    def _write(
        self, step: int, tensors: dict[str, npt.NDArray[Any]], description: dict[str, Any], started: float
    ) -> float:
        with write_directory(self._directory / f"step-{step:09d}") as target:
            save_file(tensors, target / "state.safetensors")
            write_json(target / "checkpoint.json", description)
        for old in _newest_first(self._directory)[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        return time.monotonic() - started


def load_checkpoint(directory: Path, pack: AnyPack, identities: Sequence[str]) -> Resumed | None:
    """Put a pack where its newest sound checkpoint left it; members that had failed leave the pack.

    A damaged checkpoint, or one of other members or another version, is reported in the log and the one before it is
    taken.

    Args:
        directory: of this pack's checkpoints; need not exist.
        pack: freshly made from the same members and data.
        identities: (P,) the members' identities.

    Returns:
        What the checkpoint says, or None when there is no sound one and the pack is as new.
    """
    for path in _newest_first(directory):
        try:
            verify_manifest(path)
            description = read_json(path / "checkpoint.json")
            _check_belongs(path, description, identities)
            failures = {str(key): str(reason) for key, reason in description["failures"].items()}
            state = read_tensors(path / "state.safetensors")
            curve_SP: npt.NDArray[np.float32] = state.pop("curve")
            if curve_SP.shape[1:] != (len(identities),):
                raise ValueError(f"its curve has the shape {curve_SP.shape}, expected {len(identities)} columns")
            pack.load_state(state, [i for i, identity in enumerate(identities) if identity not in failures])
        except (ArtifactError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            logger.warning("checkpoint %s is not used: %s; looking for the one before", path, error)
            continue
        return Resumed(curve_SP=curve_SP, failures=failures)
    return None


def read_curve(directory: Path, interval: int) -> npt.NDArray[np.float32] | None:
    """Return (S, P) training losses in the newest whole checkpoint of a pack; None where there is none.

    They are those of whole intervals of so many steps, which change no more. Nothing else is read of the checkpoint, so
    another process may do so while training goes on.
    """
    for path in _newest_first(directory):
        try:
            with safe_open(path / "state.safetensors", framework="numpy") as state:
                curve_SP: npt.NDArray[np.float32] = state.get_tensor("curve")
        except (OSError, SafetensorError):
            continue  # damaged, or dropped since for newer ones
        return curve_SP[: _step(path) // interval]
    return None


def _check_belongs(path: Path, description: dict[str, Any], identities: Sequence[str]) -> None:
    if description.get("format") != FORMAT:
        raise ArtifactError(f"it has the format {description.get('format')}, this version reads {FORMAT}")
    members = description.get("members")
    if members != list(identities):
        found = ", ".join(map(str, members)) if isinstance(members, list) else str(members)
        raise ArtifactError(f"it belongs to other members ({found}), not to {', '.join(identities)}")


def newest_step(directory: Path) -> int:
    """Return the step of a pack's newest checkpoint, 0 where it has none."""
    newest = _newest_first(directory)
    return _step(newest[0]) if newest else 0


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _newest_first(directory: Path) -> list[Path]:
    return sorted((path for path in directory.glob("step-*") if path.name[5:].isdecimal()), reverse=True)
