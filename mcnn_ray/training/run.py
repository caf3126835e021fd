"""Training a pack to its end, from wherever an earlier run left it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcnn_ray.errors import McnnError
from mcnn_ray.member import Member
from mcnn_ray.training.checkpoint import load_checkpoint, save_checkpoint
from mcnn_ray.training.data import TrainingData
from mcnn_ray.training.pack import CHUNK_STEPS, Pack

__all__ = ["curve_interval", "train_pack"]

_CURVE_POINTS = 200  # about as many points has a learning curve


def curve_interval(steps: int) -> int:
    """Return over how many steps each point of a learning curve averages: a multiple of `CHUNK_STEPS`."""
    return max(1, round(steps / _CURVE_POINTS / CHUNK_STEPS)) * CHUNK_STEPS


def train_pack(
    members: Sequence[Member],
    identities: list[str],
    data: TrainingData | Mapping[int | None, TrainingData],
    checkpoints: Path,
    checkpoint_s: float,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Pack, npt.NDArray[np.float32]]:
    """Train members to their number of steps, saving checkpoints on the way; start from the newest one there is.

    Args:
        members: of one shape and number of steps.
        identities: (P,) their identities.
        data: what they learn from, by number of demonstrations where that differs.
        checkpoints: directory of this pack's checkpoints.
        checkpoint_s: seconds between them, at least; one is always written at the end.
        on_progress: called with the steps taken.

    Returns:
        The trained pack; (S, P) float32 mean training loss of each interval of `curve_interval` steps.

    Raises:
        McnnError: a member's loss is not finite.
    """
    steps = members[0].steps
    interval = curve_interval(steps)
    pack = Pack(members, data)
    curve = load_checkpoint(checkpoints, pack, identities)
    rows = [] if curve is None else list(curve)
    saved = time.monotonic()
    while pack.step < steps:
        losses_SP = pack.train(min(interval, steps - pack.step))
        rows.append(losses_SP.mean(0))
        _check_finite(rows[-1], members, pack.step)
        if on_progress is not None:
            on_progress(pack.step)
        if pack.step == steps or time.monotonic() - saved > checkpoint_s:
            save_checkpoint(checkpoints, pack, identities, np.stack(rows))
            saved = time.monotonic()
    return pack, np.stack(rows)


def _check_finite(loss_P: npt.NDArray[np.float32], members: Sequence[Member], step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(loss_P))
    if len(bad):
        raise McnnError(
            f"{members[bad[0]].label}: the loss was no longer finite by step {step}; lower the learning rate "
            f"({members[bad[0]].learning_rate:g})"
        )
