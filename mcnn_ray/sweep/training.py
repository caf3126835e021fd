"""Packs as trials of Ray Tune. Our own folders say what is finished; Tune's state is thrown away."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from ray import tune

from mcnn_ray.artifacts import write_json
from mcnn_ray.errors import ConfigError, McnnError
from mcnn_ray.member import Member
from mcnn_ray.policies.base import save_policy
from mcnn_ray.sweep.plan import PlannedPack, SweepPlan
from mcnn_ray.sweep.study import Studies, Study
from mcnn_ray.training.data import TrainingData, make_training_data
from mcnn_ray.training.run import curve_interval, train_pack

__all__ = ["export_pack", "train_plan"]

Progress = Callable[[int, int], None]  # (member-steps done, member-steps in all)

_FAILURES = 3  # of a trial whose process dies; it continues from its checkpoint


def train_plan(plan: SweepPlan, studies: Studies, checkpoint_s: float, progress: Progress | None = None) -> None:
    """Train all packs that are not finished, each as a Tune trial on one CPU. Ray must be running.

    Args:
        plan: of the sweep.
        studies: what the members learn from, with their codebooks.
        checkpoint_s: seconds between the checkpoints of a pack.
        progress: called with member-steps done and in all.

    Raises:
        McnnError: a trial failed; the message is its own.
    """
    open_packs = [pack for pack in plan.packs if not all(plan.trained(identity) for identity in pack.members)]
    if not open_packs:
        return
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # our progress bar instead of Tune's
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C ends the sweep, not just Tune's part of it
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    scratch = plan.folder.resolve() / "tune"
    shutil.rmtree(scratch, ignore_errors=True)
    trainable = tune.with_parameters(_trial, plan=plan, studies=studies, checkpoint_s=checkpoint_s)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"pack": tune.grid_search([pack.id for pack in open_packs])},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(
            name=scratch.name,
            storage_path=str(scratch.parent),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=_FAILURES),
            callbacks=[_ProgressCallback(open_packs, progress)],
        ),
    )
    results = tuner.fit()
    for result in (results[i] for i in range(len(results))):
        if result.error is not None:
            raise _trial_error(result.error)
        if result.metrics is not None and "error" in result.metrics:
            raise McnnError(str(result.metrics["error"]))
    shutil.rmtree(scratch, ignore_errors=True)


def _trial_error(error: Exception) -> McnnError:
    last = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
    return McnnError(
        f"training failed {_FAILURES + 1} times: {last}; the same command continues from the last checkpoint"
    )


def _trial(config: dict[str, Any], plan: SweepPlan, studies: Studies, checkpoint_s: float) -> None:
    """Train one pack in a Tune worker and write its policies."""
    torch.set_num_threads(1)
    pack = next(pack for pack in plan.packs if pack.id == config["pack"])
    try:
        export_pack(plan, pack, studies, checkpoint_s, lambda step: tune.report({"pack": pack.id, "step": step}))
    except (McnnError, ConfigError) as error:
        # Trying again would not help, so the trial ends in order and its message is reported.
        tune.report({"pack": pack.id, "step": 0, "error": str(error)})


def export_pack(
    plan: SweepPlan,
    pack: PlannedPack,
    studies: Studies,
    checkpoint_s: float,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Train a pack and write each member's policy directory and learning curve.

    Args:
        plan: of the sweep.
        pack: one of its packs.
        studies: what the members learn from.
        checkpoint_s: seconds between checkpoints.
        on_progress: called with the steps taken.
    """
    members, identities = list(pack.members.values()), list(pack.members)
    data = {part: _training_data(studies.parts[part], members) for part in {m.demonstrations for m in members}}
    trained, curve_SP = train_pack(members, identities, data, plan.checkpoints(pack), checkpoint_s, on_progress)
    interval = curve_interval(members[0].steps)
    for position, (identity, member) in enumerate(pack.members.items()):
        if plan.trained(identity):
            continue
        save_policy(studies.of(member).policy(member, trained.layers(position)), plan.policy(identity))
        steps = [min((i + 1) * interval, member.steps) for i in range(len(curve_SP))]
        write_json(plan.curve(identity), {"step": steps, "train_loss": [float(v) for v in curve_SP[:, position]]})


def _training_data(study: Study, members: list[Member]) -> TrainingData:
    keys = {member.memory_key for member in members if member.memory_key is not None}
    return make_training_data(
        study.obs_ND, study.units, {key: study.nearest_memories(key) for key in keys if key[:3] in study.codebooks}
    )


class _ProgressCallback(tune.Callback):
    """Adds up the packs' steps in the driver."""

    def __init__(self, packs: list[PlannedPack], progress: Progress | None) -> None:
        self._sizes = {pack.id: len(pack.members) for pack in packs}
        self._total = sum(len(pack.members) * next(iter(pack.members.values())).steps for pack in packs)
        self._steps: dict[str, int] = {}
        self._progress = progress

    def __getstate__(self) -> dict[str, Any]:
        # Tune saves its callbacks to restore them; we start it anew instead, and a terminal cannot be saved.
        return {**self.__dict__, "_progress": None}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Take a trial's report."""
        self._steps[result["pack"]] = int(result["step"])
        if self._progress is not None:
            done = sum(self._sizes[pack] * step for pack, step in self._steps.items())
            self._progress(done, self._total)
