"""Running a sweep: what is on disk already is kept, so the same command again continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mcnn_ray.artifacts import locked, read_json, write_json, write_text
from mcnn_ray.certify import certificate_of
from mcnn_ray.config import SweepConfig
from mcnn_ray.core.certificate import Certificate
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.report.figures import save_score_figure
from mcnn_ray.report.results import Row, rows_to_csv, summarise
from mcnn_ray.rollout.episode import EVALUATION_SEED, EpisodeRecord
from mcnn_ray.rollout.pool import evaluate
from mcnn_ray.sweep.cluster import cluster_cpus, ray_session
from mcnn_ray.sweep.plan import SweepPlan, earlier_start, make_plan
from mcnn_ray.sweep.study import Studies, open_studies
from mcnn_ray.sweep.training import train_plan
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import simulator_versions
from mcnn_ray.tracking import MemberResult, Tracker

__all__ = ["SweepResult", "Watcher", "run_sweep"]

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
        studies: what was learned from.
        run_id: MLflow's id of the parent run.
    """

    name: str
    folder: Path
    rows: list[Row]
    figure: Path
    certificates: dict[str, Certificate]
    studies: Studies
    run_id: str


def run_sweep(config: SweepConfig, storage: Path, watch: Watcher | None = None) -> SweepResult:
    """Train, roll out, file and compare all members of a configuration.

    Args:
        config: of the sweep.
        storage: folder that holds sweeps, the codebook cache and the default MLflow store.
        watch: told of progress.

    Returns:
        The results, also written into the sweep's folder and to MLflow.

    Raises:
        McnnError: what a user can mend; finished work stays on disk.
    """
    tell: Watcher = watch or (lambda stage, done, total: None)
    studies = open_studies(config)
    folder = storage / config.sweep_name
    earlier = earlier_start(folder, studies)
    members = config.members()
    studies.learn_codebooks(
        members, storage / "cache" / "codebooks", lambda name, share: tell(f"memories {name}", share, 1.0)
    )
    with locked(folder, wait=False), ray_session():
        plan = make_plan(
            folder.resolve(), members, studies, earlier, cluster_cpus()
        )  # workers run in folders of their own
        tracker = Tracker(storage, studies.task.id)
        run_id = tracker.open_sweep(plan.id, config.sweep_name, _sweep_parameters(config, studies))
        try:
            train_plan(
                plan, studies, config.checkpoint_s, lambda done, total: tell("training, member-steps", done, total)
            )
            _write_untrained(plan, studies)
            records = _evaluate_members(plan, studies.task, config, tell)
            rows = summarise(plan.members, records)
            figure = save_score_figure(rows, studies.task.id, folder / "scores.png")
            write_text(folder / "results.csv", rows_to_csv(rows))
            certificates = _certify(plan, studies, tell)
            write_json(folder / "certificates.json", {label: found.to_json() for label, found in certificates.items()})
            _file_members(tracker, run_id, plan, records, tell)
            tracker.close_sweep(run_id, [row.record() for row in rows], [figure, folder / "certificates.json"])
        except BaseException as error:
            tracker.stop_sweep(run_id, interrupted=isinstance(error, KeyboardInterrupt))
            raise
    return SweepResult(
        name=config.sweep_name,
        folder=folder,
        rows=rows,
        figure=figure,
        certificates=certificates,
        studies=studies,
        run_id=run_id,
    )


def _sweep_parameters(config: SweepConfig, studies: Studies) -> dict[str, Any]:
    return {
        **config.model_dump(mode="json", by_alias=True, exclude_none=True),
        "dataset_source": studies.demonstrations.source,
        "dataset_sha256": studies.demonstrations.sha256,
        "dataset_episodes": studies.demonstrations.episodes,
        "dataset_steps": studies.demonstrations.steps,
    }


def _write_untrained(plan: SweepPlan, studies: Studies) -> None:
    """Write the policies of methods that need no training."""
    for identity, member in plan.members.items():
        if not member.trained and not plan.trained(identity):
            save_policy(studies.of(member).policy(member), plan.policy(identity))
            write_json(plan.curve(identity), {"step": [], "train_loss": []})


def _evaluate_members(
    plan: SweepPlan, task: Task, config: SweepConfig, tell: Watcher
) -> dict[str, list[EpisodeRecord]]:
    """Roll out the members that have no records of these episode seeds yet; each one's are written as it ends."""
    seeds = range(EVALUATION_SEED, EVALUATION_SEED + config.episodes)
    records = {identity: _read_records(plan.episodes(identity)) for identity in plan.members}
    missing = {
        identity: plan.policy(identity)
        for identity, found in records.items()
        if [record.episode_seed for record in found] != list(seeds)
        or any(record.versions != simulator_versions() for record in found)
    }

    def keep(identity: str, episodes: list[EpisodeRecord]) -> None:
        write_json(plan.episodes(identity), {"records": [record.row() for record in episodes]})
        records[identity] = episodes

    if missing:
        evaluate(
            task,
            missing,
            seeds,
            actors=cluster_cpus(),
            progress=lambda done, total: tell("rollouts, episodes", done, total),
            finished=keep,
        )
    return records


def _read_records(path: Path) -> list[EpisodeRecord]:
    if not path.exists():
        return []
    try:
        return [EpisodeRecord(**row) for row in read_json(path)["records"]]
    except (KeyError, TypeError):
        return []  # of another version: the episodes run again


def _file_members(
    tracker: Tracker, run_id: str, plan: SweepPlan, records: Mapping[str, Sequence[EpisodeRecord]], tell: Watcher
) -> None:
    for done, (identity, member) in enumerate(plan.members.items()):
        row = summarise({identity: member}, records)[0]
        tracker.log_member(
            run_id,
            MemberResult(
                identity=identity,
                label=member.label,
                parameters=member.parameters(),
                metrics=row.metrics(),
                step=member.steps,
                curve=read_json(plan.curve(identity)),
                episodes=[record.row() for record in records[identity]],
                policy=plan.policy(identity),
            ),
        )
        tell("MLflow, runs", done + 1, len(plan.members))


def _certify(plan: SweepPlan, studies: Studies, tell: Watcher) -> dict[str, Certificate]:
    """Certify each setting with a codebook, over its memories and a sample of the demonstrations."""
    settings: dict[str, list[str]] = {}
    for identity, member in plan.members.items():
        if member.memory_key is not None:
            settings.setdefault(member.setting_label, []).append(identity)
    certificates = {}
    for done, (label, identities) in enumerate(settings.items()):
        policies = [load_policy(plan.policy(identity)) for identity in identities]
        obs_ND = studies.of(plan.members[identities[0]]).demonstrations.observations_ND
        certificates[label] = certificate_of(policies, obs_ND[:: -(-len(obs_ND) // _CERTIFIED_STATES)])
        tell("certificates", done + 1, len(settings))
    return certificates
