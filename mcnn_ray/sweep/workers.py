"""Packs on several workers of Ray Train: whole packs spread over them, or one pack whose batches they share.

Workers continue from our own checkpoints, so whoever dies, the group starts again where these stand; with fewer workers
if the cluster has shrunk.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from typing import Any

import ray
import ray.train
import torch.distributed
from ray.train.torch import TorchTrainer, get_device

from mcnn_ray.errors import McnnError
from mcnn_ray.sweep.cluster import cluster_gpus
from mcnn_ray.sweep.packs import default_device, export_pack
from mcnn_ray.sweep.plan import PlannedPack, SweepPlan
from mcnn_ray.sweep.progress import PackProgress, PackSteps
from mcnn_ray.sweep.studies import Studies
from mcnn_ray.training.data import Shard

__all__ = ["train_with_workers"]

_FAILURES = 3  # of the group, each time from the last checkpoints
_POLL_S = 0.5


_REMOTE_STEPS: Any = ray.remote(num_cpus=0)(PackSteps)


def train_with_workers(
    plan: SweepPlan,
    packs: Sequence[PlannedPack],
    studies: Studies,
    *,
    workers: int,
    checkpoint_s: float,
    snapshot_steps: int = 0,
    until: int | None = None,
    progress: PackProgress,
) -> None:
    """Train packs on a group of Ray Train workers. Ray must be running.

    Args:
        plan: of the sweep.
        packs: of it, that are not finished.
        studies: what the members learn from, with their codebooks.
        workers: at most; one GPU each where the cluster has GPUs, else one CPU.
        checkpoint_s: seconds between the checkpoints of a pack.
        snapshot_steps: between policies written on the way; 0 for none.
        until: step at which to stop for a comparison; None is the end.
        progress: told of the packs' steps.

    Raises:
        McnnError: the workers failed again and again.
    """
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    steps = _REMOTE_STEPS.remote()
    scratch = plan.folder.resolve() / "train"
    shutil.rmtree(scratch, ignore_errors=True)
    trainer = TorchTrainer(
        _work,
        train_loop_config={
            "inputs": ray.put((plan, studies)),
            "options": {"checkpoint_s": checkpoint_s, "snapshot_steps": snapshot_steps, "until": until},
            "steps": steps,
            "packs": list(packs),
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=(1, workers),  # type: ignore[arg-type]  # elastic; the annotation is that of Train v1
            use_gpu=cluster_gpus() > 0,
            resources_per_worker={"CPU": 1},
        ),
        run_config=ray.train.RunConfig(
            name=scratch.name,
            storage_path=str(scratch.parent),
            failure_config=ray.train.FailureConfig(max_failures=_FAILURES),
        ),
    )
    ended = threading.Event()
    watch = threading.Thread(target=_poll, args=(steps, progress, ended), daemon=True)
    watch.start()
    try:
        trainer.fit()
    except ray.train.TrainingFailedError as error:
        raise _group_error(error) from error
    finally:
        ended.set()
        watch.join()
        ray.kill(steps)
    shutil.rmtree(scratch, ignore_errors=True)


def _group_error(error: Exception) -> McnnError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else repr(error)
    return McnnError(
        f"the training workers failed {_FAILURES + 1} times: {last}; the same command continues from the last "
        "checkpoints"
    )


def _poll(steps: Any, progress: PackProgress, ended: threading.Event) -> None:
    while True:
        last = ended.wait(_POLL_S)
        progress.update(ray.get(steps.all.remote()))
        if last:
            return


def _work(config: dict[str, Any]) -> None:
    """Train this worker's packs, or its part of every batch where there are fewer packs than workers."""
    plan, studies = ray.get(config["inputs"])
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    device = str(get_device()) if default_device() == "cuda" else "cpu"
    packs, shard = config["packs"], None  # as they were at the start: whoever looks later would find fewer
    if len(packs) >= world:
        packs = [pack for pack in packs[rank::world] if not all(map(plan.ended, pack.members))]
    elif world > 1:
        shard = Shard(rank=rank, workers=world, sum=torch.distributed.all_reduce)
    for pack in packs:
        report = functools.partial(config["steps"].update.remote, pack.id)
        export_pack(plan, pack, studies, **config["options"], device=device, progress=report, shard=shard)
