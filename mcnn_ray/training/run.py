"""Training a pack to its end, from wherever an earlier run left it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.codebook import Codebook
from mcnn_ray.errors import McnnError
from mcnn_ray.member import Member
from mcnn_ray.training.checkpoint import load_checkpoint, save_checkpoint
from mcnn_ray.training.pack import CHUNK_STEPS, CodebookKey, Pack, TrainingData

__all__ = ["curve_interval", "make_training_data", "train_pack"]

_CHECKPOINT_S = 20.0  # at most this much work is lost
_CURVE_POINTS = 200  # about as many points has a learning curve


def make_training_data(
    obs_ND: npt.NDArray[np.float32],
    units_NA: npt.NDArray[np.float32],
    codebooks: dict[CodebookKey, Codebook],
    device: str = "cpu",
) -> TrainingData:
    """Put demonstrations and each codebook's nearest actions and distances on a device.

    Args:
        obs_ND: (N, D) float32, standardised.
        units_NA: (N, A) float32, in [-1, 1].
        codebooks: by key; learned from the same rows.
        device: `cpu` or `cuda`.
    """
    actions = torch.tensor(units_NA, device=device)
    return TrainingData(
        obs_ND=torch.tensor(obs_ND, device=device),
        actions_NA=actions,
        memory_actions={
            key: actions[torch.tensor(book.rows_M[book.nearest_N], device=device)] for key, book in codebooks.items()
        },
        distances={key: torch.tensor(book.distances_N, device=device) for key, book in codebooks.items()},
    )


def curve_interval(steps: int) -> int:
    """Return over how many steps each point of a learning curve averages: a multiple of `CHUNK_STEPS`."""
    return max(1, round(steps / _CURVE_POINTS / CHUNK_STEPS)) * CHUNK_STEPS


def train_pack(
    members: Sequence[Member],
    identities: list[str],
    data: TrainingData,
    checkpoints: Path,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Pack, npt.NDArray[np.float32]]:
    """Train members to their number of steps, saving checkpoints on the way; start from the newest one there is.

    Args:
        members: of one shape and number of steps.
        identities: (P,) their identities.
        data: what they learn from.
        checkpoints: directory of this pack's checkpoints.
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
        if pack.step == steps or time.monotonic() - saved > _CHECKPOINT_S:
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
