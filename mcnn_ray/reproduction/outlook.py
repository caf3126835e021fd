"""What a reproduction will take, without running anything of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mcnn_ray.member import Member
from mcnn_ray.reproduction.budgets import Budget
from mcnn_ray.reproduction.definitions import REPRODUCTIONS
from mcnn_ray.reproduction.runner import PlannedSweep, check_choice, plan_sweeps
from mcnn_ray.reproduction.sources import Missing
from mcnn_ray.reproduction.sweeps import shows
from mcnn_ray.sweep.capacity import step_cost, training_s
from mcnn_ray.sweep.outlook import duration, product_rate, step_seconds
from mcnn_ray.sweep.runner import Watcher
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment

__all__ = ["look_ahead", "overview"]

_HORIZON = 200  # of tasks that give none


def overview(budget: Budget, storage: Path) -> list[dict[str, Any]]:
    """Return what each table or figure is, what it takes, and for which tasks there is no data here, as JSON values."""
    rows = []
    for name, definition in REPRODUCTIONS.items():
        sweeps, missing = plan_sweeps(name, budget, storage, definition.tasks, None)
        rows.append(
            {
                "name": name,
                "shows": definition.shows,
                "tasks": len(definition.tasks),
                "members": sum(member.trained for planned in sweeps for member in planned.lacking),
                "rollouts": sum(_rollouts(name, planned, planned.lacking, budget) for planned in sweeps),
                "missing": {task: lacking.command for task, lacking in missing.items()},
            }
        )
    return rows


def look_ahead(
    names: Sequence[str],
    budget: Budget,
    storage: Path,
    tasks: Sequence[str] | None,
    methods: Sequence[str] | None,
    watch: Watcher,
) -> dict[str, Any]:
    """Return the sweeps that some names take, each once, what is missing, and roughly how long, as JSON values.

    Args:
        names: of tables and figures.
        budget: that they are run with.
        storage: in which some may be finished.
        tasks: to run; None takes all.
        methods: to run; None takes all.
        watch: told of progress: simulators are timed.
    """
    rows: list[dict[str, Any]] = []
    missing: dict[str, Missing] = {}
    counted: set[tuple[str, Member]] = set()
    planned = []
    for name in names:
        sweeps, lacking = plan_sweeps(name, budget, storage, check_choice(name, tasks, methods), methods)
        planned += [(name, sweep) for sweep in sweeps]
        missing |= lacking
    paces = _Paces()
    for done, (name, sweep) in enumerate(planned):
        watch("looking ahead, sweeps", done, len(planned))
        open_ = [member for member in sweep.lacking if (sweep.config.sweep_name, member) not in counted]
        counted |= {(sweep.config.sweep_name, member) for member in open_}
        rows.append(_row(name, sweep, open_, budget, paces))
    watch("looking ahead, sweeps", len(planned), len(planned))
    seconds = sum(row.pop("seconds") for row in rows)
    return {
        "sweeps": rows,
        "missing": {task: {"reason": found.reason, "command": found.command} for task, found in missing.items()},
        "seconds": seconds,
        "about": f"about {duration(seconds)} of training and rollouts on {_cpus()} CPUs, codebooks and start-up aside",
    }


def _row(name: str, sweep: PlannedSweep, open_: Sequence[Member], budget: Budget, paces: _Paces) -> dict[str, Any]:
    source, config = sweep.source, sweep.config
    steps = sorted({member.steps for member in open_ if member.trained})
    made = f", {source.made_by} first" if source.made_by else ""
    count = source.take or source.episodes
    rollouts = _rollouts(name, sweep, open_, budget)
    seconds = paces.seconds(sweep.task, open_, rollouts) if open_ else 0.0
    return {
        "name": name,
        "task": sweep.task,
        "sweep": sweep.part,
        "demonstrations": f"{count:,} of {source.dataset}{made}",
        "members": len(config.members()),
        "to_train": sum(member.trained for member in open_),
        "steps": f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}" if steps else "-",
        "rollouts": rollouts,
        "finished": sweep.finished,
        "about": duration(seconds) if open_ else "-",
        "seconds": seconds,
    }


def _rollouts(name: str, sweep: PlannedSweep, members: Sequence[Member], budget: Budget) -> int:
    """Return how many rollouts members take, with those of choosing and of learning curves."""
    tuned = [rows for rows in REPRODUCTIONS[name].rows if rows.tuned and rows.part == sweep.part]
    choosing = sum(any(shows(rows, member) for rows in tuned) for member in members)
    every = sweep.config.evaluate_every
    points = sum((member.steps - 1) // every for member in members if member.trained) if every else 0
    return len(members) * sweep.config.episodes + budget.choosing * (choosing + points)


def _cpus() -> int:
    return os.cpu_count() or 1


class _Paces:
    """How fast this machine multiplies, and steps each task's simulator; measured once each."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._tasks: dict[str, tuple[int, int, float]] = {}

    def seconds(self, task: str, members: Sequence[Member], rollouts: int) -> float:
        """Return roughly how long training the members and so many rollouts of them take."""
        if self._rate is None:
            self._rate = product_rate()
        dim, actions, step_s = self._task(task)
        acting = [step_cost(member, (dim, actions)).act_s(self._rate) for member in members if member.trained]
        acting_s = sum(acting) / max(1, len(members))
        stepping_s = rollouts * (CATALOGUE[task].horizon or _HORIZON) * (step_s + acting_s)
        return float((training_s(members, (dim, actions), self._rate) + stepping_s) / _cpus())

    def _task(self, task: str) -> tuple[int, int, float]:
        if task not in self._tasks:
            env = make_environment(CATALOGUE[task])
            dim, actions = (int(np.prod(space.shape or (1,))) for space in (env.observation_space, env.action_space))
            self._tasks[task] = (dim, actions, step_seconds(env) or 0.0)
            env.close()
        return self._tasks[task]
