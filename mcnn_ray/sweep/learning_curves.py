"""Evaluating members while they train: a thread that takes the snapshots which the packs leave to the rollout pool.

It uses the seeds for choosing, not those for reporting. Snapshots are files, so none is lost with a process, and a
member's device never waits for its rollouts.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mcnn_ray.artifacts import read_json, write_json
from mcnn_ray.errors import ArtifactError
from mcnn_ray.report.results import summarise
from mcnn_ray.rollout.episode import SELECTION_SEED, EpisodeRecord
from mcnn_ray.rollout.pool import evaluate
from mcnn_ray.sweep.plan import PlannedPack, SweepPlan
from mcnn_ray.tasks.catalogue import Task

__all__ = ["SnapshotEvaluator", "evaluate_on_selection_seeds", "read_evaluations", "unreached"]

_POLL_S = 1.0


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Return a member's evaluations on its way, by rising step: `step`, and means with interval ends by name."""
    try:
        points: list[dict[str, Any]] = read_json(path)["evaluations"]
    except (ArtifactError, KeyError):
        return []
    return points


def evaluate_on_selection_seeds(
    plan: SweepPlan,
    task: Task,
    policies: Mapping[tuple[str, int], Path],
    *,
    episodes: int,
    actors: int,
    backbone: str | None,
    cancelled: Callable[[], bool] | None = None,
    filed: Callable[[tuple[str, int]], None],
) -> None:
    """Roll policies out on the seeds for choosing and file what comes of it with their members.

    Args:
        plan: of the sweep.
        task: to roll out in.
        policies: directories by identity and training step.
        episodes: of each.
        actors: that roll out at the same time.
        backbone: of the members, a class of a user's own.
        cancelled: asked now and then; once it says yes, no more is rolled out.
        filed: called when a policy's evaluation is on disk; one whose episodes were all lost has none.
    """
    names = {f"{identity}@{step}": (identity, step) for identity, step in policies}

    def file(name: str, records: Sequence[EpisodeRecord]) -> None:
        identity, step = names[name]
        if records:
            (row,) = summarise({identity: plan.members[identity]}, {identity: records}, {identity: episodes})
            points = [point for point in read_evaluations(plan.evaluations(identity)) if point["step"] != step]
            points.append({"step": step, **row.metrics(), "n": row.episode_return.n})
            points.sort(key=lambda point: int(point["step"]))
            write_json(plan.evaluations(identity), {"evaluations": points})
        filed((identity, step))

    evaluate(
        task,
        {name: policies[place] for name, place in names.items()},
        range(SELECTION_SEED, SELECTION_SEED + episodes),
        actors=actors,
        backbone=backbone,
        cancelled=cancelled,
        finished=lambda name, rollouts: file(name, [rollout.record for rollout in rollouts]),
    )


def unreached(plan: SweepPlan, step: int) -> list[PlannedPack]:
    """Return the packs with a member that has neither been evaluated at a step nor left a snapshot there."""

    def reached(identity: str) -> bool:
        return plan.snapshot(identity, step).is_dir() or any(
            point["step"] == step for point in read_evaluations(plan.evaluations(identity))
        )

    return [pack for pack in plan.open_packs() if not all(plan.ended(i) or reached(i) for i in pack.members)]


class SnapshotEvaluator:
    """Rolls out each snapshot once, files what came of it with the member, and deletes it.

    Args:
        plan: of the sweep.
        task: to roll out in.
        episodes: of each snapshot.
        actors: that roll out at the same time.
        backbone: of the members, a class of a user's own.
        tell: called with the snapshots evaluated and known of.
    """

    def __init__(
        self,
        plan: SweepPlan,
        task: Task,
        *,
        episodes: int,
        actors: int,
        backbone: str | None,
        tell: Callable[[int, int], None],
    ) -> None:
        self._plan, self._task, self._backbone = plan, task, backbone
        self._episodes, self._actors, self._tell = episodes, actors, tell
        self._ended, self._cancelled = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._done, self._known = 0, 0
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def __enter__(self) -> SnapshotEvaluator:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._cancelled.set()  # the snapshots stay for the next start
        self._ended.set()
        self._thread.join()  # before Ray is shut down under it
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while True:
                last = self._ended.wait(_POLL_S)
                if self._cancelled.is_set():
                    return
                self._evaluate(self._snapshots())
                if last:
                    return
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits for the end
            self._error = error

    def _snapshots(self) -> dict[tuple[str, int], Path]:
        """Return the snapshots by identity and step."""
        return {
            (identity, int(path.name.removeprefix("step-"))): path
            for identity in self._plan.members
            for path in sorted(self._plan.snapshot(identity, 0).parent.glob("step-*"))
        }

    def _evaluate(self, snapshots: Mapping[tuple[str, int], Path]) -> None:
        if not snapshots:
            return
        self._known = self._done + len(snapshots)
        self._tell(self._done, self._known)
        evaluate_on_selection_seeds(
            self._plan,
            self._task,
            snapshots,
            episodes=self._episodes,
            actors=self._actors,
            backbone=self._backbone,
            cancelled=self._cancelled.is_set,
            filed=self._filed,
        )

    def _filed(self, snapshot: tuple[str, int]) -> None:
        shutil.rmtree(self._plan.snapshot(*snapshot))
        self._done += 1
        self._tell(self._done, self._known)
