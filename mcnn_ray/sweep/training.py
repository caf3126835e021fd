"""Packs as trials of Ray Tune. Our own folders say what is finished; Tune's state is thrown away."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from typing import Any

import ray
from ray import tune

from mcnn_ray.errors import McnnError
from mcnn_ray.sweep.cluster import cluster_gpus
from mcnn_ray.sweep.packs import default_device, export_pack
from mcnn_ray.sweep.plan import PlannedPack, SweepPlan
from mcnn_ray.sweep.progress import PackProgress
from mcnn_ray.sweep.studies import Studies
from mcnn_ray.training.checkpoint import newest_step

__all__ = ["train_plan"]

logger = logging.getLogger(__name__)

_FAILURES = 3  # of a trial whose process dies, before Tune gives it up; it continues from its checkpoint
_STARTS = 5  # of Tune in a row that bring no pack further: it gives up at once when a process dies before it runs


def train_plan(
    plan: SweepPlan,
    packs: Sequence[PlannedPack],
    studies: Studies,
    *,
    checkpoint_s: float,
    snapshot_steps: int = 0,
    until: int | None = None,
    at_once: int,
    progress: PackProgress,
) -> None:
    """Train packs, each as a Tune trial on one GPU or CPU. Ray must be running.

    Args:
        plan: of the sweep.
        packs: of it, that are not finished.
        studies: what the members learn from, with their codebooks.
        checkpoint_s: seconds between the checkpoints of a pack.
        snapshot_steps: between policies written on the way; 0 for none.
        until: step at which to stop for a comparison; None is the end.
        at_once: trials that run at the same time.
        progress: told of the packs' steps.

    Raises:
        McnnError: a trial failed; the message is its own.
    """
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # our progress bar instead of Tune's
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C ends the sweep, not just Tune's part of it
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what it tells of a death is told by us, in a sentence
    options = {"checkpoint_s": checkpoint_s, "snapshot_steps": snapshot_steps, "until": until}
    trainable = tune.with_parameters(_trial, plan=plan, studies=studies, options=options)
    starts, left, reached = 0, list(packs), _reached(plan, packs)
    while (death := _run_trials(trainable, plan, left, at_once, progress)) is not None:
        before, reached = reached, _reached(plan, packs)
        starts = 0 if reached > before else starts + 1
        if starts == _STARTS:
            raise _trial_error(death)
        left = [pack for pack in left if not all(map(plan.ended, pack.members))]
        logger.warning("a training process died; it goes on from its last checkpoint")


def _reached(plan: SweepPlan, packs: Sequence[PlannedPack]) -> tuple[int, int]:
    """Return how many packs have ended, and the steps of all newest checkpoints."""
    ended = sum(all(map(plan.ended, pack.members)) for pack in packs)
    return ended, sum(newest_step(plan.checkpoints(pack)) for pack in packs)


def _run_trials(
    trainable: Any, plan: SweepPlan, packs: Sequence[PlannedPack], at_once: int, progress: PackProgress
) -> Exception | None:
    """Have Tune train packs; return the death of a process that it gave up for, or None when all have ended.

    Raises:
        McnnError: a trial failed of itself.
    """
    scratch = plan.folder.resolve() / "tune"
    shutil.rmtree(scratch, ignore_errors=True)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1, "gpu": 1} if cluster_gpus() else {"cpu": 1}),
        param_space={"pack": tune.grid_search([pack.id for pack in packs])},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=at_once),
        run_config=tune.RunConfig(
            name=scratch.name,
            storage_path=str(scratch.parent),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=_FAILURES),
            callbacks=[_ProgressCallback(progress)],
        ),
    )
    results = tuner.fit()
    death = None
    for result in (results[i] for i in range(len(results))):
        if isinstance(result.error, ray.exceptions.RayActorError):
            death = result.error
        elif result.error is not None:
            raise _trial_error(result.error)
        elif result.metrics is not None and "error" in result.metrics:
            raise McnnError(str(result.metrics["error"]))
    shutil.rmtree(scratch, ignore_errors=True)
    return death


def _trial_error(error: Exception) -> McnnError:
    last = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
    return McnnError(f"training failed again and again: {last}; the same command continues from the last checkpoint")


def _trial(config: dict[str, Any], plan: SweepPlan, studies: Studies, options: dict[str, Any]) -> None:
    """Train one pack in a Tune worker and write its policies."""
    pack: PlannedPack = next(pack for pack in plan.packs if pack.id == config["pack"])
    try:
        export_pack(
            plan,
            pack,
            studies,
            **options,
            device=default_device(),
            progress=lambda step: tune.report({"pack": pack.id, "step": step}),
        )
    except McnnError as error:
        # Trying again would not help, so the trial ends in order and its message is reported.
        tune.report({"pack": pack.id, "step": 0, "error": str(error)})


class _ProgressCallback(tune.Callback):
    """Hands the trials' reports on."""

    def __init__(self, progress: PackProgress) -> None:
        self._progress: PackProgress | None = progress

    def __getstate__(self) -> dict[str, Any]:
        # Tune saves its callbacks to restore them; we start it anew instead, and a terminal cannot be saved.
        return {**self.__dict__, "_progress": None}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Take a trial's report."""
        if self._progress is not None:
            self._progress.update({result["pack"]: int(result["step"])})
