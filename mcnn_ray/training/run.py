"""Training a pack to its end, from wherever an earlier run left it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.member import DataKey, Member
from mcnn_ray.training.checkpoint import CheckpointWriter, load_checkpoint
from mcnn_ray.training.data import Shard, TrainingData
from mcnn_ray.training.learners import AnyPack, make_pack
from mcnn_ray.training.pack import CHUNK_STEPS

__all__ = ["Reports", "TrainedPack", "curve_interval", "train_pack"]

_CURVE_POINTS = 200  # about as many points has a learning curve
_PAUSE = 50.0  # between checkpoints, over what one costs: 2 % of the time at most


@dataclass(slots=True, kw_only=True)
class TrainedPack:
    """A pack on its way or at its end.

    Attributes:
        pack: of the members that have not failed; all of them when every member has.
        positions: where these stand among all members that it began with; empty when all have failed.
        losses: (P,) float32 rows, one per `curve_interval`: the mean training loss of each member, in the last row over
            what has been trained of it; NaN after a member failed.
        failures: why members left the pack, by identity.
    """

    pack: AnyPack
    positions: list[int]
    losses: list[npt.NDArray[np.float32]]
    failures: dict[str, str]

    @property
    def curve_SP(self) -> npt.NDArray[np.float32]:
        """(S, P) float32 learning curves of all members."""
        return np.stack(self.losses)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train."""
        return not self.positions or self.pack.step >= self.pack.members[0].steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Who is told of a pack's progress.

    Attributes:
        progress: called with the steps taken.
        stopping: asked now and then; once it says yes, a checkpoint is written and the pack left unfinished.
        snapshot: called with the pack on its way, at least `snapshot_steps` after the last time.
        snapshot_steps: 0 for never.
    """

    progress: Callable[[int], None] | None = None
    stopping: Callable[[], bool] | None = None
    snapshot: Callable[[TrainedPack], None] | None = None
    snapshot_steps: int = 0


def curve_interval(steps: int) -> int:
    """Return over how many steps each point of a learning curve averages: a multiple of `CHUNK_STEPS`."""
    return max(1, round(steps / _CURVE_POINTS / CHUNK_STEPS)) * CHUNK_STEPS


def train_pack(
    members: Sequence[Member],
    identities: Sequence[str],
    data: TrainingData | Mapping[DataKey, TrainingData],
    checkpoints: Path,
    checkpoint_s: float,
    reports: Reports | None = None,
    shard: Shard | None = None,
    until: int | None = None,
    left_out: Mapping[str, str] | None = None,
) -> TrainedPack:
    """Train members to their number of steps, saving checkpoints on the way; start from the newest one there is.

    A member whose loss is no longer finite leaves the pack, and the others go on.

    Args:
        members: of one shape and number of steps.
        identities: (P,) their identities.
        data: what they learn from, by `data_key` where that differs.
        checkpoints: directory of this pack's checkpoints.
        checkpoint_s: seconds between them, at least, and more where they would take over 2 % of the time; 0 writes one
            every `chunk_steps` of the pack. One is always written at the end.
        reports: who is told of progress.
        shard: this worker's part, when several train the same members; the first of them writes the checkpoints.
        until: stop there with a checkpoint instead of at the end; a multiple of `curve_interval`.
        left_out: identity to why a member leaves the pack before it goes on.

    Raises:
        ArtifactError: a checkpoint cannot be written.
    """
    steps, interval, reports = members[0].steps, curve_interval(members[0].steps), reports or Reports()
    trained = _start(members, identities, data, checkpoints, shard)
    _leave_out(trained, identities, left_out or {})
    pack, end = trained.pack, steps if until is None else min(until, steps)
    next_snapshot = (pack.step // reports.snapshot_steps + 1) * reports.snapshot_steps if reports.snapshot_steps else 0
    with CheckpointWriter(checkpoints, identities) as writer:
        saved = time.monotonic()
        stop = False
        while not (trained.finished or pack.step >= end or stop):
            _train_chunk(trained, len(members), interval)
            _drop_failed(trained, identities)
            stop = reports.stopping is not None and _any_worker(reports.stopping(), pack, shard)
            if reports.progress is not None:
                reports.progress(pack.step)
            if reports.snapshot is not None and 0 < next_snapshot <= pack.step and trained.positions:
                next_snapshot += reports.snapshot_steps
                reports.snapshot(trained)
            pause = max(checkpoint_s, _PAUSE * writer.cost_s) if checkpoint_s else 0.0
            due = stop or pack.step == end or time.monotonic() - saved > pause
            if due and trained.positions and (shard is None or shard.rank == 0):
                writer.save(pack, trained.curve_SP, trained.failures)
                saved = time.monotonic()
    return trained


def _train_chunk(trained: TrainedPack, member_count: int, interval: int) -> None:
    """Train to the next multiple of `chunk_steps`; chunks are the same whoever stops where, and so are their means."""
    pack = trained.pack
    behind = pack.step % interval
    steps = min(pack.chunk_steps - pack.step % pack.chunk_steps, pack.members[0].steps - pack.step)
    loss_P = np.full(member_count, np.nan, dtype=np.float32)
    loss_P[trained.positions] = pack.train(steps).mean(0)
    if behind:
        trained.losses[-1] = trained.losses[-1] + (loss_P - trained.losses[-1]) * np.float32(steps / (behind + steps))
    else:
        trained.losses.append(loss_P)


def _any_worker(stop: bool, pack: AnyPack, shard: Shard | None) -> bool:
    """Tell whether one of the workers that share batches stops, which all have to do at the same step."""
    if shard is None:
        return stop
    stops = torch.tensor([float(stop)], device=pack.device)
    shard.sum(stops)
    return bool(stops.item())


def _start(
    members: Sequence[Member],
    identities: Sequence[str],
    data: TrainingData | Mapping[DataKey, TrainingData],
    checkpoints: Path,
    shard: Shard | None,
) -> TrainedPack:
    pack = make_pack(members, data, shard)
    resumed = load_checkpoint(checkpoints, pack, identities)
    if shard is not None:
        steps = torch.tensor([float(pack.step)], device=pack.device)
        shard.sum(steps)
        if steps.item() != pack.step * shard.workers:
            raise RuntimeError("the workers found different checkpoints")  # the group starts again
    failures = {} if resumed is None else resumed.failures
    return TrainedPack(
        pack=pack,
        positions=[i for i, identity in enumerate(identities) if identity not in failures],
        losses=[] if resumed is None else list(resumed.curve_SP),
        failures=failures,
    )


def _drop_failed(trained: TrainedPack, identities: Sequence[str]) -> None:
    """Take members out whose mean loss over the last interval is not finite."""
    loss_P = trained.losses[-1]
    failed = {
        identities[position]: f"the loss was no longer finite by step {trained.pack.step}; "
        f"lower the learning rate ({trained.pack.members[place].learning_rate:g})"
        for place, position in enumerate(trained.positions)
        if not np.isfinite(loss_P[position])
    }
    _leave_out(trained, identities, failed)


def _leave_out(trained: TrainedPack, identities: Sequence[str], reasons: Mapping[str, str]) -> None:
    """Take members out, those of them that are still in the pack, and keep the reasons."""
    stay = [place for place, position in enumerate(trained.positions) if identities[position] not in reasons]
    if len(stay) == len(trained.positions):
        return
    left = [identities[position] for position in trained.positions if identities[position] in reasons]
    trained.failures |= {identity: reasons[identity] for identity in left}
    trained.positions = [trained.positions[place] for place in stay]
    if stay:
        trained.pack.keep(stay)
