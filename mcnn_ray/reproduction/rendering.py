"""The report of a reproduction: what was gathered beside the paper's numbers, as a page, CSV and figures."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mcnn_ray.artifacts import write_json
from mcnn_ray.report.comparison import compare
from mcnn_ray.report.function_class import function_class_figures
from mcnn_ray.report.page import write_report
from mcnn_ray.report.paper_figures import figures_of
from mcnn_ray.report.published import published
from mcnn_ray.reproduction.budgets import Budget
from mcnn_ray.reproduction.definitions import REPRODUCTIONS
from mcnn_ray.reproduction.gathering import Gathered, gather
from mcnn_ray.rollout.episode import EVALUATION_SEED, SELECTION_SEED
from mcnn_ray.tasks.environments import simulator_versions

__all__ = ["Rendered", "render"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A report on disk.

    Attributes:
        comparison: ours beside the paper's.
        page: the HTML file.
    """

    comparison: pd.DataFrame
    page: Path


def render(
    name: str,
    budget: Budget,
    storage: Path,
    folder: Path,
    selected: Collection[str],
    failures: Mapping[tuple[str, str], str],
) -> Rendered:
    """Write the report of what is on disk of a table or figure.

    Args:
        name: of the table or figure.
        budget: that it is run with.
        storage: with the sweeps' folders.
        folder: to write into.
        selected: tasks whose rows stand there even if none is run.
        failures: why sweeps failed, by task and part.
    """
    definition = REPRODUCTIONS[name]
    found = gather(name, budget, storage, selected, failures)
    theirs = published(name)
    shown = {*selected, *found.episodes["task"], *found.missing["task"]}
    comparison = compare(found.episodes, theirs[theirs["task"].isin(shown)], found.missing)
    if definition.tasks:
        note = f"{budget.name.upper()} budget, {budget.steps:,} training steps"
        figures = figures_of(name, comparison, found.episodes, found.curves, note)
    else:
        figures = dict(function_class_figures())
    title = f"{definition.title}: {definition.shows}"
    labels = _labels(name, budget, found)
    page = write_report(folder, title, comparison, found.episodes, found.curves, figures, labels)
    write_json(folder / "sweeps.json", dict(found.runs))
    return Rendered(comparison=comparison, page=page)


def _labels(name: str, budget: Budget, found: Gathered) -> dict[str, str]:
    """Return what the page says of how it was made."""
    machine = {"machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"}
    versions = {"versions": ", ".join(f"{key} {value}" for key, value in simulator_versions().items())}
    if not REPRODUCTIONS[name].tasks:
        return {"made by": "mcnn reproduce function-class", **machine, **versions}
    seeds = ", ".join(map(str, budget.seeds))
    first, last = EVALUATION_SEED, EVALUATION_SEED + budget.episodes - 1
    chosen = f"{SELECTION_SEED} to {SELECTION_SEED + budget.choosing - 1}"
    labels = {
        "budget": budget.meaning,
        "training": f"{budget.steps:,} steps, training seeds {seeds}",
        "sizes": budget.sizes,
        "rollouts": f"{budget.episodes} episodes of each training seed, episode seeds {first} to {last}",
        "choosing": f"the best mean return on other episode seeds, {chosen}, is tuned; learning curves are on them too",
        "simulators": "; ".join(sorted(found.simulators)),
        **found.notes,
    }
    made = {"made by": f"mcnn reproduce {name} --budget {budget.name}"}
    return {key: value for key, value in {**labels, **made, **machine, **versions}.items() if value}
