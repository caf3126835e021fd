"""Running a reproduction: sweep by sweep, with a report after each, so that the same command again continues."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from mcnn_ray.artifacts import locked, read_json, write_json
from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import ConfigError, McnnError, TrackingError, did_you_mean
from mcnn_ray.member import Member
from mcnn_ray.methods import METHODS
from mcnn_ray.reproduction.budgets import Budget
from mcnn_ray.reproduction.definitions import REPRODUCTIONS, Reproduction
from mcnn_ray.reproduction.finished import evaluate_for_choice, read_finished, write_finished
from mcnn_ray.reproduction.rendering import Rendered, render
from mcnn_ray.reproduction.sources import Missing, Source, find_source, make_source
from mcnn_ray.reproduction.sweeps import make_sweep, methods_on, shows
from mcnn_ray.sweep.cluster import ray_session
from mcnn_ray.sweep.runner import Watcher, run_sweep
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tracking import Tracker

__all__ = ["PlannedSweep", "Reproduced", "check_choice", "plan_sweeps", "report_folder", "reproduce"]

_EXPERIMENT = "reproduction"
_FOLDER = "reproduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSweep:
    """One sweep of a reproduction.

    Attributes:
        task: its name.
        part: key of `PARTS`.
        source: what it learns from.
        config: of the sweep.
        finished: whether all of it is on disk.
        lacking: members that are not.
    """

    task: str
    part: str
    source: Source
    config: SweepConfig
    finished: bool
    lacking: list[Member]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """A report that was written.

    Attributes:
        name: of the table or figure.
        comparison: ours beside the paper's, a row for each (task, method, setting, metric).
        page: the HTML file; it opens offline.
        run_id: MLflow's id of the run that holds the report.
        failures: why sweeps failed, by task and part.
        unfiled: why not all is in MLflow; empty when it is.
    """

    name: str
    comparison: pd.DataFrame
    page: Path
    run_id: str
    failures: dict[tuple[str, str], str]
    unfiled: list[str]


def check_choice(name: str, tasks: Sequence[str] | None, methods: Sequence[str] | None) -> tuple[str, ...]:
    """Return the tasks that are asked for, in the definition's order.

    Args:
        name: of the table or figure.
        tasks: of the catalogue; None takes all of the definition's.
        methods: None takes all.

    Raises:
        ConfigError: no such name, task or method, or the definition has none of them.
    """
    if name not in REPRODUCTIONS:
        raise ConfigError(f"nothing of the paper is called '{name}'; {did_you_mean(name, REPRODUCTIONS)}")
    definition = REPRODUCTIONS[name]
    for task in tasks or ():
        if task not in CATALOGUE:
            raise ConfigError(f"--tasks: unknown task '{task}'; {did_you_mean(task, CATALOGUE)}")
    for method in methods or ():
        if method not in METHODS:
            raise ConfigError(f"--methods: unknown method '{method}'; {did_you_mean(method, METHODS)}")
    chosen = tuple(task for task in definition.tasks if tasks is None or task in tasks)
    if definition.tasks and not chosen:
        raise ConfigError(
            f"{name} has none of the tasks {', '.join(tasks or ())}; its own: {', '.join(definition.tasks)}"
        )
    if methods is not None and definition.tasks and not definition.methods & set(methods):
        own = ", ".join(sorted(definition.methods))
        raise ConfigError(f"{name} has none of the methods {', '.join(methods)}; its own: {own}")
    return chosen


def plan_sweeps(
    name: str, budget: Budget, storage: Path, tasks: Sequence[str], methods: Sequence[str] | None
) -> tuple[list[PlannedSweep], dict[str, Missing]]:
    """Return the sweeps of a table or figure, in order, and what is missing, by task."""
    sweeps: list[PlannedSweep] = []
    missing: dict[str, Missing] = {}
    definition = REPRODUCTIONS[name]
    for task in tasks:
        source = find_source(CATALOGUE[task], budget)
        if isinstance(source, Missing):
            missing[task] = source
            continue
        for part in definition.parts:
            if own := methods_on(definition, part, task, methods):
                config = make_sweep(definition, part, task, own, budget, source)
                found = read_finished(storage / config.sweep_name)
                sweeps.append(
                    PlannedSweep(
                        task=task,
                        part=part,
                        source=source,
                        config=config,
                        finished=not found.lacks(config),
                        lacking=found.lacking(config),
                    )
                )
    return sweeps, missing


def report_folder(storage: Path, name: str, budget: Budget) -> Path:
    """Return the folder of a report."""
    return storage / _FOLDER / f"{name}-{budget.name}"


def reproduce(
    name: str,
    budget: Budget,
    storage: Path,
    *,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    watch: Watcher | None = None,
    say: Callable[[str], None] | None = None,
) -> Reproduced:
    """Run what is missing of a table or figure, and write its report after each sweep.

    A sweep that fails is a row that says why; the others go on.

    Args:
        name: as `REPRODUCTIONS` has it.
        budget: what is spent.
        storage: folder of sweeps, reports and the default MLflow store.
        tasks: to run; None takes all of the definition's.
        methods: to run; None takes all.
        watch: told of progress.
        say: told in words what is run next.

    Raises:
        ConfigError: no such name, task or method.
        TrackingError: MLflow's store or server cannot be used; told before anything is run.
    """
    chosen = check_choice(name, tasks, methods)
    tell: Watcher = watch or (lambda stage, done, total: None)
    run = _Run(name=name, budget=budget, storage=storage, chosen=chosen, tell=tell, say=say or (lambda text: None))
    with locked(report_folder(storage, name, budget), wait=False), run.filed() as tracked:
        try:
            for planned in plan_sweeps(name, budget, storage, chosen, methods)[0]:
                run.take(planned)
        except KeyboardInterrupt:
            run.render()  # with what was finished
            raise
        rendered = run.rendered or run.render()
        run.close(tracked, rendered)
    return Reproduced(
        name=name,
        comparison=rendered.comparison,
        page=rendered.page,
        run_id=tracked[1],
        failures=run.failures,
        unfiled=run.unfiled,
    )


@dataclass(kw_only=True)
class _Run:
    name: str
    budget: Budget
    storage: Path
    chosen: Sequence[str]
    tell: Watcher
    say: Callable[[str], None]
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    unfiled: list[str] = field(default_factory=list)
    rendered: Rendered | None = None  # with all that was run
    _sessions: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def definition(self) -> Reproduction:
        return REPRODUCTIONS[self.name]

    @contextlib.contextmanager
    def filed(self) -> Iterator[tuple[Tracker, str]]:
        """Have a run in MLflow inside the block, that is marked when the block raises, and Ray once it is needed."""
        tracker = Tracker(self.storage, _EXPERIMENT)
        run_id = tracker.open_sweep(self._id(), f"{self.name} {self.budget.name}", self._parameters())
        try:
            with self._sessions:
                yield tracker, run_id
        except BaseException as error:
            tracker.stop_sweep(run_id, isinstance(error, KeyboardInterrupt))
            raise

    def _id(self) -> str:
        record = report_folder(self.storage, self.name, self.budget).with_suffix(".json")
        if not record.exists():
            write_json(record, {"id": uuid.uuid4().hex})
        return str(read_json(record).get("id"))

    def _parameters(self) -> Mapping[str, object]:
        budget = self.budget
        return {
            "name": self.name,
            "budget": budget.name,
            "steps": budget.steps,
            "seeds": list(budget.seeds),
            "episodes": budget.episodes,
            "demonstrations": budget.demonstrations,
            "tasks": list(self.definition.tasks),
        }

    def take(self, planned: PlannedSweep) -> None:
        """Run a sweep unless it is finished, choose what is tuned, and write the report anew."""
        place = (planned.task, planned.part)
        try:
            changed = self._sweep(planned)
            changed = self._choose(planned) or changed
        except TrackingError:
            raise  # nothing that comes after could be filed either
        except McnnError as error:
            self.failures[place], changed = str(error), True
            self.say(f"{planned.task}, {planned.part}: {error}")
        if changed:
            self.render()

    def _sweep(self, planned: PlannedSweep) -> bool:
        config = planned.config
        if not read_finished(self.storage / config.sweep_name).lacks(config):
            return False  # this start may have finished it under another name
        make_source(CATALOGUE[planned.task], planned.source, self.budget, self.tell)
        self.say(f"{planned.task}, {planned.part}: {', '.join(config.method)}")
        self._sessions.enter_context(ray_session())
        # Each task's bars begin anew.
        result = run_sweep(config, self.storage, self._named(planned), self.say)
        write_finished(result, config)
        if result.unfiled is not None:
            self.unfiled.append(result.unfiled)
        return True

    def _named(self, planned: PlannedSweep) -> Watcher:
        return lambda stage, done, total: self.tell(f"{planned.task}: {stage}", done, total)

    def _choose(self, planned: PlannedSweep) -> bool:
        """Evaluate the candidates of tuned rows on the seeds for choosing."""
        finished = read_finished(self.storage / planned.config.sweep_name)
        tuned = [rows for rows in self.definition.rows if rows.tuned and rows.part == planned.part]
        identities = [
            identity
            for identity, member in finished.members.items()
            if any(shows(rows, member) for rows in tuned)
            and all(point["step"] != member.steps for point in finished.evaluations(identity))
        ]
        if not identities:
            return False
        self._sessions.enter_context(ray_session())
        task = CATALOGUE[planned.task].with_dataset(planned.source.dataset)
        evaluate_for_choice(finished, task, identities, self.budget.choosing, self._named(planned))
        return True

    def render(self) -> Rendered:
        """Write the report of what there is."""
        self.rendered = render(
            self.name,
            self.budget,
            self.storage,
            report_folder(self.storage, self.name, self.budget),
            self.chosen,
            self.failures,
        )
        return self.rendered

    def close(self, tracked: tuple[Tracker, str], rendered: Rendered) -> None:
        """File the report."""
        tracker, run_id = tracked
        files = sorted(path for path in rendered.page.parent.rglob("*") if path.is_file())
        tracker.close_sweep(run_id, json.loads(rendered.comparison.to_json(orient="records")), files)
