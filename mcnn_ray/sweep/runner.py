"""Running a sweep: what is on disk already is kept, so the same command again continues."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mcnn_ray.artifacts import locked, read_json, write_json, write_text
from mcnn_ray.certified_states import ALL_DEMONSTRATED, held_out_states, rollout_isolation
from mcnn_ray.certify import certificate_of
from mcnn_ray.config import SweepConfig
from mcnn_ray.core.certificate import Certificate, Isolation
from mcnn_ray.errors import McnnError
from mcnn_ray.member import CodebookKey
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.report.figures import save_score_figure
from mcnn_ray.report.results import Row, rows_to_csv, summarise
from mcnn_ray.rollout.episode import EpisodeRecord
from mcnn_ray.sweep.capacity import Capacity, measure_capacity, split_by_memory
from mcnn_ray.sweep.cluster import own_modules, ray_session
from mcnn_ray.sweep.filing import SweepFiling, member_curves
from mcnn_ray.sweep.interrupt import stop_in_order
from mcnn_ray.sweep.learning_curves import SnapshotEvaluator
from mcnn_ray.sweep.member_rollouts import MemberRollouts, roll_out_members
from mcnn_ray.sweep.outlook import look_ahead
from mcnn_ray.sweep.plan import SweepPlan, earlier_start, make_plan
from mcnn_ray.sweep.progress import PackProgress
from mcnn_ray.sweep.shared_storage import check_shared
from mcnn_ray.sweep.study import Studies, open_studies
from mcnn_ray.sweep.training import train_plan
from mcnn_ray.sweep.workers import train_with_workers
from mcnn_ray.tracking import MemberResult, Tracker

__all__ = ["SweepResult", "Watcher", "run_sweep"]

logger = logging.getLogger(__name__)

_CERTIFIED_STATES = 2000  # demonstrations, evenly spaced; `mcnn certify` checks all and more


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
    studies = open_studies(config)
    folder = storage / config.sweep_name
    earlier = earlier_start(folder, studies)
    members = config.members()
    with locked(folder, wait=False), ray_session(own_modules(studies.task, config.backbone)):
        check_shared(storage)
        capacity = measure_capacity(config)
        packs = split_by_memory(members, studies, capacity)
        if config.workers > sum(member.trained for member in members):
            packs = 1  # whose batches the workers share
        plan = make_plan(folder.resolve(), members, studies, earlier, packs)  # workers run in folders of their own
        say(str(look_ahead(plan, studies, config, capacity)))
        tracker = Tracker(storage, studies.task.id)  # a wrong address is told before anything is learned
        studies.learn_codebooks(
            members, storage / "cache" / "codebooks", lambda name, share: tell(f"memories {name}", share, 1.0)
        )
        run_id = tracker.open_sweep(plan.id, config.sweep_name, _sweep_parameters(config, studies))
        with SweepFiling(tracker, run_id, plan, tell) as filing:
            _train(plan, studies, config, capacity, tell)
            _write_untrained(plan, studies)
            failures = _failures(plan)
            if len(failures) == len(plan.members):
                raise McnnError(f"no member has a result; {next(iter(failures.values()))}")
            trained = [identity for identity in plan.members if identity not in failures]
            rolled_out = roll_out_members(plan, trained, studies.task, config, tell, say)
            records = rolled_out.records
            rows = summarise({i: plan.members[i] for i in trained}, records, rolled_out.run, rolled_out.stopped)
            figure = save_score_figure(rows, studies.task.id, folder / "scores.png")
            write_text(folder / "results.csv", rows_to_csv(rows))
            certificates = _certify(plan, studies, records, tell)
            write_json(folder / "certificates.json", {label: found.to_json() for label, found in certificates.items()})
            results = [_member_result(plan, identity, rolled_out) for identity in records]
            files = [figure, folder / "certificates.json"]
            unfiled = filing.finish(results, [row.record() for row in rows], files)
    return SweepResult(
        name=config.sweep_name,
        folder=folder,
        rows=rows,
        figure=figure,
        certificates=certificates,
        failures=list(failures.values()),
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


def _train(plan: SweepPlan, studies: Studies, config: SweepConfig, capacity: Capacity, tell: Watcher) -> None:
    """Train what is not trained yet, and roll the members out on their way if that is asked for."""
    packs = plan.open_packs()
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
        progress = PackProgress(packs, lambda done, total: tell("training, member-steps", done, total))
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


def _certify(
    plan: SweepPlan, studies: Studies, records: Mapping[str, Sequence[EpisodeRecord]], tell: Watcher
) -> dict[str, Certificate]:
    """Certify each setting with a codebook.

    Actions are checked at its memories and over a sample of the demonstrations, and of those held out where members
    learn from a part. How far the states lie from the memories is also told over all demonstrations and all rollouts.
    """
    settings: dict[tuple[str, CodebookKey], list[str]] = {}
    for identity in records:
        member = plan.members[identity]
        if member.codebook_key is not None:
            settings.setdefault((member.setting_label, member.codebook_key), []).append(identity)
    certificates = {}
    for done, ((label, codebook_key), identities) in enumerate(settings.items()):
        policies = [load_policy(plan.policy(identity), plan.members[identity].backbone) for identity in identities]
        member = plan.members[identities[0]]
        learned = studies.of(member).demonstrations
        demonstrated = Isolation(
            name=ALL_DEMONSTRATED,
            episodes=learned.episodes,
            states=learned.steps,
            most_isolated_distance=studies.of(member).codebooks[codebook_key].most_isolated_distance,
        )
        certificates[label] = certificate_of(
            policies,
            learned.observations_ND,
            held_out_ND=held_out_states(studies.demonstrations, learned) if member.demonstrations is not None else None,
            sample=_CERTIFIED_STATES,
            isolation=[demonstrated, *rollout_isolation([r for identity in identities for r in records[identity]])],
        )
        tell("certificates", done + 1, len(settings))
    return certificates
