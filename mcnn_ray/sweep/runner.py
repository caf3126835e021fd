"""Running a sweep: what is on disk already is kept, so the same command again continues."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mcnn_ray.artifacts import locked, read_json, remove_leftovers, write_json, write_text
from mcnn_ray.config import SweepConfig
from mcnn_ray.core.certificate import Certificate
from mcnn_ray.errors import McnnError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.report.figures import save_score_figure
from mcnn_ray.report.results import Row, rows_to_csv, summarise
from mcnn_ray.sweep.capacity import Capacity, measure_capacity
from mcnn_ray.sweep.certifying import certify_settings
from mcnn_ray.sweep.cluster import ray_session
from mcnn_ray.sweep.filing import SweepFiling, member_curves
from mcnn_ray.sweep.halving import halve, rung_steps
from mcnn_ray.sweep.interrupt import stop_in_order
from mcnn_ray.sweep.learning_curves import SnapshotEvaluator, read_evaluations, unreached
from mcnn_ray.sweep.member_rollouts import MemberRollouts, roll_out_members
from mcnn_ray.sweep.outlook import look_ahead
from mcnn_ray.sweep.plan import SweepPlan, earlier_start
from mcnn_ray.sweep.progress import PackProgress
from mcnn_ray.sweep.search import fixed_members, search
from mcnn_ray.sweep.selection import Rounds, Selection
from mcnn_ray.sweep.shared_storage import check_shared
from mcnn_ray.sweep.studies import Studies, open_studies
from mcnn_ray.sweep.training import train_plan
from mcnn_ray.sweep.workers import train_with_workers
from mcnn_ray.tracking import MemberResult, Tracker

__all__ = ["SweepResult", "Watcher", "run_sweep"]

logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """Sees how far a sweep is."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Take a stage's name, what is done of it and what there is in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A finished sweep.

    Attributes:
        name: of the sweep.
        folder: with its policies, records, table and figure.
        rows: the table.
        figure: of scores against lambda, PNG.
        certificates: by setting, of those with a codebook.
        failures: which members have no result, and why.
        selection: what a search or halving chose the rows from; None where every setting has its own.
        studies: what was learned from.
        run_id: MLflow's id of the parent run.
        unfiled: why results are not in MLflow, or None when they are.
    """

    name: str
    folder: Path
    rows: list[Row]
    figure: Path
    certificates: dict[str, Certificate]
    failures: list[str]
    selection: Selection | None
    studies: Studies
    run_id: str
    unfiled: str | None


def run_sweep(
    config: SweepConfig, storage: Path, watch: Watcher | None = None, say: Callable[[str], None] | None = None
) -> SweepResult:
    """Train, roll out, file and compare all members of a configuration.

    Args:
        config: of the sweep.
        storage: folder that holds sweeps, the codebook cache and the default MLflow store.
        watch: told of progress.
        say: told in words what the sweep will take, and the best setting so far.

    Returns:
        The results, also written into the sweep's folder and, unless its server is away at the end, to MLflow.

    Raises:
        McnnError: what a user can mend; finished work stays on disk.
    """
    tell: Watcher = watch or (lambda stage, done, total: None)
    say = say or (lambda text: None)
    rung_steps(config)  # faults are told before anything is made
    cache = storage / "cache"
    studies = open_studies(config, cache, lambda name, share: tell(name, share, 1.0))
    folder, codebooks = storage / config.sweep_name, cache / "codebooks"
    earlier_start(folder, studies, config.selection_key)
    members = config.members() if config.search == "grid" else fixed_members(config)
    with locked(folder, wait=False), ray_session(studies.task, config.backbone):
        check_shared(storage)
        remove_leftovers(folder, older_than_s=0)  # the lock says that whoever wrote there is dead
        remove_leftovers(storage)
        capacity = measure_capacity(config)
        rounds = Rounds(
            config=config,
            studies=studies,
            folder=folder.resolve(),
            codebooks=codebooks,
            capacity=capacity,
            train=lambda plan, until: _train(plan, studies, config, capacity, tell, until),
            tell=tell,
            say=say,
        )
        plan = rounds.plan(members, members)
        say(str(look_ahead(plan, studies, config, capacity)))
        tracker = Tracker(storage, studies.task.id)  # a wrong address is told before anything is learned
        studies.learn_codebooks(members, codebooks, lambda name, share: tell(f"memories {name}", share, 1.0))
        run_id = tracker.open_sweep(plan.id, config.sweep_name, _sweep_parameters(config, studies))
        with SweepFiling(tracker, run_id, plan, tell) as filing:
            plan, selection = _choose(plan, rounds)
            filing.follow(plan)
            rounds.train(plan, None)
            _write_untrained(plan, studies)
            failures = _failures(plan)
            trained = [i for i in plan.members if i not in failures and i not in plan.unreported]
            if not trained:
                raise McnnError(f"no member has a result; {next(iter(failures.values()))}")
            rolled_out = roll_out_members(plan, trained, studies.task, config, tell, say)
            records = rolled_out.records
            rows = summarise({i: plan.members[i] for i in trained}, records, rolled_out.run, rolled_out.stopped)
            figure = save_score_figure(rows, studies.task.id, folder / "scores.png")
            write_text(folder / "results.csv", rows_to_csv(rows))
            certificates = certify_settings(plan, studies, records, tell)
            write_json(folder / "certificates.json", {label: found.to_json() for label, found in certificates.items()})
            results = [_member_result(plan, identity, rolled_out) for identity in records]
            results += [_unreported_result(plan, identity) for identity in plan.unreported]
            files = [figure, folder / "certificates.json"]
            if selection is not None:
                write_text(folder / "selection.csv", selection.to_csv())
                files.append(folder / "selection.csv")
            unfiled = filing.finish(results, [row.record() for row in rows], files)
    return SweepResult(
        name=config.sweep_name,
        folder=folder,
        rows=rows,
        figure=figure,
        certificates=certificates,
        failures=list(failures.values()),
        selection=selection,
        studies=studies,
        run_id=run_id,
        unfiled=unfiled,
    )


def _sweep_parameters(config: SweepConfig, studies: Studies) -> dict[str, Any]:
    return {
        **config.model_dump(mode="json", by_alias=True, exclude_none=True),
        "dataset_source": studies.demonstrations.source,
        "dataset_sha256": studies.demonstrations.sha256,
        "dataset_episodes": studies.demonstrations.episodes,
        "dataset_steps": studies.demonstrations.steps,
    }


def _choose(plan: SweepPlan, rounds: Rounds) -> tuple[SweepPlan, Selection | None]:
    if rounds.config.search != "grid":
        return search(plan, rounds.config, rounds)
    return (plan, None) if rounds.config.halving is None else halve(plan, rounds.config, rounds)


def _train(
    plan: SweepPlan, studies: Studies, config: SweepConfig, capacity: Capacity, tell: Watcher, until: int | None
) -> None:
    """Train what is not trained yet, or not up to a step, and roll members out on their way if that is asked for."""
    packs = plan.open_packs() if until is None else unreached(plan, until)
    with contextlib.ExitStack() as stack:
        if config.evaluate_every:
            stack.enter_context(
                SnapshotEvaluator(
                    plan,
                    studies.task,
                    episodes=config.curve_episodes,
                    actors=capacity.snapshot_actors,
                    backbone=config.backbone,
                    tell=lambda done, total: tell("rollouts of snapshots", done, total),
                )
            )
        if not packs:
            return
        progress = PackProgress(
            packs, lambda done, total: tell("training, member-steps", done, total), plan.unreported, until
        )
        if config.workers > 1:
            train = functools.partial(train_with_workers, workers=config.workers)
        else:
            train = functools.partial(train_plan, at_once=capacity.packs_at_once)
        with stop_in_order(plan):
            train(
                plan,
                packs,
                studies,
                checkpoint_s=config.checkpoint_s,
                snapshot_steps=config.evaluate_every,
                until=until,
                progress=progress,
            )


def _failures(plan: SweepPlan) -> dict[str, str]:
    """Return why members have no policy, by identity."""
    return {
        identity: f"{member.label}: {read_json(plan.failure(identity))['reason']}"
        for identity, member in plan.members.items()
        if plan.failure(identity).is_file()
    }


def _write_untrained(plan: SweepPlan, studies: Studies) -> None:
    """Write the policies of methods that need no training."""
    for identity, member in plan.members.items():
        if not member.trained and not plan.trained(identity):
            save_policy(studies.of(member).policy(member), plan.policy(identity))
            write_json(plan.curve(identity), {"step": [], "train_loss": []})


def _member_result(plan: SweepPlan, identity: str, rolled_out: MemberRollouts) -> MemberResult:
    member = plan.members[identity]
    return MemberResult(
        identity=identity,
        label=member.label,
        parameters=member.parameters(),
        metrics=summarise({identity: member}, rolled_out.records, rolled_out.run)[0].metrics(),
        step=member.steps,
        curves=member_curves(plan, identity),
        episodes=[record.row() for record in rolled_out.records[identity]],
        policy=plan.policy(identity),
        records=plan.episodes(identity),
    )


def _unreported_result(plan: SweepPlan, identity: str) -> MemberResult:
    """Return what is filed of a member that was stopped or not chosen: what it was judged by."""
    member, last = plan.members[identity], read_evaluations(plan.evaluations(identity))[-1]
    step = int(last["step"])
    return MemberResult(
        identity=identity,
        label=member.label,
        parameters=member.parameters() | ({"stopped_at_step": step} if step < member.steps else {}),
        metrics={f"selection/{name}": value for name, value in last.items() if name not in ("step", "n")},
        step=step,
        curves=member_curves(plan, identity),
        policy=plan.policy(identity) if plan.trained(identity) else None,
        unreported=plan.unreported[identity],
    )
