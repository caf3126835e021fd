"""Training one pack of a sweep and writing what comes of it: policies, learning curves, failures, snapshots."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.artifacts import write_json
from mcnn_ray.member import DataKey, Member
from mcnn_ray.policies.base import save_policy
from mcnn_ray.sweep.plan import PlannedPack, SweepPlan
from mcnn_ray.sweep.studies import Studies
from mcnn_ray.training.data import Shard, TrainingData
from mcnn_ray.training.run import Reports, TrainedPack, curve_interval, train_pack

__all__ = ["curve_points", "default_device", "export_pack"]


def export_pack(
    plan: SweepPlan,
    pack: PlannedPack,
    studies: Studies,
    *,
    checkpoint_s: float,
    snapshot_steps: int,
    device: str,
    progress: Callable[[int], None] | None = None,
    shard: Shard | None = None,
    until: int | None = None,
) -> None:
    """Train a pack and write each member's policy directory and learning curve, or why it failed.

    Members that the plan does not report leave the pack. Where the sweep is asked to stop, only a checkpoint is
    written.

    Args:
        plan: of the sweep.
        pack: one of its packs.
        studies: what the members learn from.
        checkpoint_s: seconds between checkpoints.
        snapshot_steps: between the policies that are written on the way, to be evaluated; 0 for none.
        device: to train on.
        progress: called with the steps taken.
        shard: this worker's part, when several train the same members; the first writes.
        until: stop there with a checkpoint, and write snapshots to be evaluated instead of policies.
    """
    members, identities = list(pack.members.values()), list(pack.members)
    writes = shard is None or shard.rank == 0

    def snapshot(trained: TrainedPack) -> None:
        for place, position in enumerate(trained.positions):
            target = plan.snapshot(identities[position], trained.pack.step)
            if writes and not target.exists():
                save_policy(_policy(studies, trained, place), target)

    trained = train_pack(
        members,
        identities,
        _training_data(studies, members, device),
        plan.checkpoints(pack),
        checkpoint_s,
        Reports(progress=progress, stopping=plan.stopping, snapshot=snapshot, snapshot_steps=snapshot_steps),
        shard,
        until,
        {identity: reason for identity, reason in plan.unreported.items() if identity in pack.members},
    )
    if not writes or not (trained.finished or trained.pack.step == until):
        return
    if until is not None:
        snapshot(trained)
    for place, position in enumerate(trained.positions):
        identity = identities[position]
        if not plan.trained(identity):
            write_json(plan.curve(identity), curve_points(trained.curve_SP[:, position], members[position].steps))
            if until is None:
                save_policy(_policy(studies, trained, place), plan.policy(identity))
    for identity in trained.failures.keys() - plan.unreported.keys():
        loss_S = trained.curve_SP[:, identities.index(identity)]
        write_json(plan.curve(identity), curve_points(loss_S, pack.members[identity].steps))
        write_json(plan.failure(identity), {"reason": trained.failures[identity]})
        shutil.rmtree(plan.policy(identity), ignore_errors=True)


def _policy(studies: Studies, trained: TrainedPack, place: int) -> Any:
    member = trained.pack.members[place]
    return studies.of(member).policy(member, trained.pack.parameters(place))


def curve_points(loss_S: npt.NDArray[np.float32], steps: int) -> dict[str, list[Any]]:
    """Return the points of a member's learning curve, up to its end or its failure.

    Args:
        loss_S: (S,) float32 mean training losses over its intervals, NaN after it failed.
        steps: that it is to take in all.

    Returns:
        `step` and `train_loss`, lists of one length.
    """
    interval, finite = curve_interval(steps), np.flatnonzero(np.isfinite(loss_S))
    return {
        "step": [min((int(i) + 1) * interval, steps) for i in finite],
        "train_loss": [float(loss_S[i]) for i in finite],
    }


def _training_data(studies: Studies, members: list[Member], device: str) -> dict[DataKey, TrainingData]:
    parts = {member.data_key: studies.of(member) for member in members}
    memories = {member.memory_key for member in members if member.memory_key is not None}
    return {key: study.training_data(key, memories, device) for key, study in parts.items()}


def default_device() -> str:
    """Return `cuda` where this process sees a GPU, else `cpu`; a CPU worker computes on one thread."""
    if torch.cuda.is_available():
        return "cuda"
    torch.set_num_threads(1)
    return "cpu"
