"""What a reproduction shows so far: rollouts, learning curves, and the rows that are missing with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from mcnn_ray.member import Member
from mcnn_ray.reproduction.budgets import Budget
from mcnn_ray.reproduction.definitions import REPRODUCTIONS, Rows
from mcnn_ray.reproduction.finished import FinishedSweep, read_finished
from mcnn_ray.reproduction.sources import Missing, Source, find_source
from mcnn_ray.reproduction.sweeps import make_sweep, methods_on, setting_of, shows
from mcnn_ray.rollout.episode import EpisodeRecord
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.terminal import DEFAULT_STORAGE

__all__ = ["Gathered", "gather"]

_EPISODES = (
    *("task", "method", "setting", "training_seed", "episode_seed", "steps", "return", "score", "success", "member"),
)
_POINT = ("step", "return", "return_low", "return_high", "score", "score_low", "score_high", "n")
_CURVES = ("task", "method", "setting", "training_seed", *_POINT)
_MISSING = ("task", "method", "setting", "reason", "command")
_ELSEWHERE = 10**9  # episodes of a dataset that is not here: all numbers of demonstrations get their row


@dataclass(slots=True, kw_only=True)
class Gathered:
    """What a table or figure shows so far.

    Attributes:
        episodes: a row a rollout: task, method, setting, training_seed, episode_seed, steps, return, score, success,
            member (hyperparameters in words), and p1, p2, ... where subtasks are counted.
        curves: a row a point: task, method, setting, training_seed, step, return and score with 95 % intervals, and n.
        missing: a row for each (task, method, setting) that is not run: reason, command.
        notes: by task, what was learned from, and which settings are the tuned ones.
        runs: MLflow's run of each sweep, by the sweep's name.
        simulators: that ran the rollouts.
    """

    episodes: pd.DataFrame
    curves: pd.DataFrame
    missing: pd.DataFrame
    notes: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    simulators: set[str] = field(default_factory=set)


def gather(
    name: str, budget: Budget, storage: Path, selected: Collection[str], failures: Mapping[tuple[str, str], str]
) -> Gathered:
    """Read from disk what a table or figure shows so far.

    Args:
        name: of the table or figure.
        budget: that it is run with.
        storage: with the sweeps' folders.
        selected: tasks whose rows stand there even if none is run; others are shown once something of them is run.
        failures: why sweeps failed, by task and part.
    """
    gatherer = _Gatherer(name, budget, storage, failures)
    for task in REPRODUCTIONS[name].tasks:
        gatherer.take(task, task in selected)
    return gatherer.gathered()


class _Gatherer:
    def __init__(self, name: str, budget: Budget, storage: Path, failures: Mapping[tuple[str, str], str]) -> None:
        self._name, self._definition, self._budget, self._storage = name, REPRODUCTIONS[name], budget, storage
        self._failures = failures
        self._episodes: list[dict[str, Any]] = []
        self._curves: list[dict[str, Any]] = []
        self._missing: list[dict[str, Any]] = []
        self._notes: dict[str, dict[str, None]] = {}  # by task, each once
        self._runs: dict[str, str] = {}
        self._simulators: set[str] = set()

    def gathered(self) -> Gathered:
        """Return all that was taken."""
        return Gathered(
            episodes=_frame(self._episodes, _EPISODES),
            curves=_frame(self._curves, _CURVES),
            missing=_frame(self._missing, _MISSING),
            notes={task: "; ".join(notes) for task, notes in self._notes.items()},
            runs=self._runs,
            simulators=self._simulators,
        )

    def take(self, task: str, selected: bool) -> None:
        """Take a task's rows; of one that is not selected only where something of it is run."""
        source = find_source(CATALOGUE[task], self._budget)
        lacking = source if isinstance(source, Missing) else None
        assumed = source if isinstance(source, Source) else Source(dataset="none/none-v0", episodes=_ELSEWHERE)
        run = len(self._episodes)
        rows: list[dict[str, Any]] = []
        for part in self._definition.parts:
            methods = methods_on(self._definition, part, task, None)
            config = make_sweep(self._definition, part, task, methods, self._budget, assumed)
            finished = read_finished(self._storage / config.sweep_name)
            if finished.facts:
                self._note_facts(task, config.sweep_name, finished)
            members = config.members()
            for shown in self._definition.rows:
                if shown.part == part:
                    named = {member: setting_of(shown, member) for member in members if shows(shown, member)}
                    self._take_rows(task, shown, named, finished)
                    rows += self._not_run(task, part, named, finished, lacking)
        if selected or len(self._episodes) > run:
            here = {(row["task"], row["method"], row["setting"]) for row in self._episodes[run:]}
            self._missing += [row for row in rows if (row["task"], row["method"], row["setting"]) not in here]

    def _take_rows(self, task: str, shown: Rows, named: Mapping[Member, str], finished: FinishedSweep) -> None:
        own = {identity: member for identity, member in finished.members.items() if member in named}
        if shown.tuned:
            own = self._chosen(task, named, own, finished)
        for identity, member in own.items():
            common = {"task": task, "method": member.method, "setting": named[member], "training_seed": member.seed}
            for record in finished.records(identity):
                self._simulators.add(record.simulator)
                words = f"{member.method_label} {member.memory_label}".strip()
                self._episodes.append({**common, "steps": member.steps, "member": words, **_values(record)})
            for point in finished.evaluations(identity):
                self._curves.append(common | {key: point.get(key) for key in _POINT})

    def _chosen(
        self, task: str, wanted: Collection[Member], own: Mapping[str, Member], finished: FinishedSweep
    ) -> dict[str, Member]:
        """Return the best setting's members of each method whose settings have all been run."""
        chosen: dict[str, Member] = {}
        for method in dict.fromkeys(member.method for member in own.values()):
            candidates = {identity: member for identity, member in own.items() if member.method == method}
            open_ = {member for member in wanted if member.method == method} - {*own.values(), *finished.failed}
            found = None if open_ else finished.best(candidates)
            if found is not None:
                setting, identities, count = found
                chosen |= {identity: own[identity] for identity in identities}
                words = f"{setting.method} lambda {setting.lambda_:g}, {setting.memory_label} memories"
                self._note(task, f"tuned {words} (best of {count} settings)")
        return chosen

    def _not_run(
        self,
        task: str,
        part: str,
        named: Mapping[Member, str],
        finished: FinishedSweep,
        lacking: Missing | None,
    ) -> Iterator[dict[str, Any]]:
        again = f"mcnn reproduce {self._name} --budget {self._budget.name} --tasks {task}"
        again += "" if self._storage == DEFAULT_STORAGE else f" --storage {self._storage}"
        for member, setting in named.items():
            reason, command = "not run yet", again
            if lacking is not None:
                reason, command = lacking.reason, lacking.command
            elif (task, part) in self._failures:
                reason = f"failed: {self._failures[task, part]}"
            elif member in finished.failed:
                reason = f"failed: {finished.failed[member]}"
            values = (task, member.method, setting, reason, command)
            yield dict(zip(_MISSING, values, strict=True))

    def _note_facts(self, task: str, sweep: str, finished: FinishedSweep) -> None:
        facts = finished.facts
        self._runs[sweep] = str(facts["run_id"])
        self._note(task, f"{facts['demonstrations']:,} demonstrations ({facts['dataset']}, {facts['steps']:,} steps)")

    def _note(self, task: str, text: str) -> None:
        self._notes.setdefault(task, {})[text] = None


def _values(record: EpisodeRecord) -> dict[str, Any]:
    done = sum((record.subtasks or {}).values())
    shares = {f"p{count}": float(done >= count) for count in range(1, len(record.subtasks or {}) + 1)}
    return {
        "episode_seed": record.episode_seed,
        "return": record.episode_return,
        "score": record.normalised_score,
        "success": record.success,
        **shares,
    }


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    found = pd.DataFrame(rows)
    frame = found.reindex(columns=list(dict.fromkeys([*columns, *found.columns])))
    for name in {"return", "score"} & set(frame.columns):
        frame[name] = frame[name].astype(float)
    return frame
