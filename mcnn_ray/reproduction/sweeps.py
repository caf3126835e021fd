"""From a definition and a budget to the sweeps of a task, and from their members to rows of a report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mcnn_ray.config import SweepConfig
from mcnn_ray.member import Member
from mcnn_ray.reproduction.budgets import Budget
from mcnn_ray.reproduction.definitions import PARTS, Reproduction, Rows
from mcnn_ray.reproduction.sources import PAPER_ENCODER, Source
from mcnn_ray.tasks.catalogue import CATALOGUE

__all__ = ["make_sweep", "methods_on", "setting_of", "shows"]

_KITCHEN = "kitchen"
_GRID = {"lambda": "lambda_", "memory_fraction": "memory_fraction"}  # keys of a sweep, and fields of its members


def methods_on(definition: Reproduction, part: str, task: str, methods: Collection[str] | None) -> tuple[str, ...]:
    """Return the methods of a sweep that a definition needs on a task; those among `methods`, unless that is None."""
    needed = definition.methods_of(part)
    return tuple(
        method
        for method in needed
        if (methods is None or method in methods) and task not in PARTS[part].not_on.get(method, ())
    )


def make_sweep(
    definition: Reproduction,
    part: str,
    task: str,
    methods: Collection[str],
    budget: Budget,
    source: Source,
) -> SweepConfig:
    """Return one sweep of a task.

    Args:
        definition: what is reproduced; of grids it needs only the values that its rows show.
        part: key of `PARTS`.
        task: its name.
        methods: to compare, at least one.
        budget: steps, seeds, sizes.
        source: what is learned from.

    Raises:
        ConfigError: the values do not go together.
    """
    own = PARTS[part]
    values: dict[str, Any] = {
        "evaluate_every": budget.evaluate_every,
        "steps": budget.steps,
        "episodes": budget.episodes,
        **(budget.kitchen if part == _KITCHEN else budget.keys),
        **own.keys,
        "name": f"reproduce-{budget.name}-{task}-{part}",
        "task": task,
        "dataset": source.dataset,
        "method": tuple(methods),
        "seed": budget.seeds,
        "curve_episodes": budget.choosing,
        "clip_actions": True,
        "constant_columns": "ignore",
    }
    if CATALOGUE[task].images:
        values["encoder"] = str(PAPER_ENCODER)
    if own.counts:
        counts = budget.human_counts if "-human-" in task else budget.counts
        values["demonstrations"] = tuple(count for count in counts if count <= source.episodes)
    elif source.take is not None:
        values["demonstrations"] = (source.take,)
    given = values.pop("for_method", {}) if part == _KITCHEN else budget.for_method
    for_method = {}
    for method in methods:
        sizes = {**given.get(method, {})}
        if method not in own.for_method:  # the part has a grid of its own, or none
            sizes = {key: value for key, value in sizes.items() if key not in _GRID}
        for_method[method] = _needed({**own.for_method.get(method, {}), **sizes}, definition, part, method)
    values["for_method"] = {method: keys for method, keys in for_method.items() if keys}
    return SweepConfig.parse(values, f"reproduce {task}")


def _needed(keys: Mapping[str, Any], definition: Reproduction, part: str, method: str) -> dict[str, Any]:
    """Return keys without those values of a grid that no row of the definition shows."""
    wheres = [
        rows.where for rows in definition.rows if rows.part == part and method in (rows.methods or PARTS[part].methods)
    ]
    thinned = dict(keys)
    for key, field in _GRID.items():
        if key in thinned:
            thinned[key] = tuple(v for v in thinned[key] if any(where.get(field, v) == v for where in wheres))
    return thinned


def shows(rows: Rows, member: Member) -> bool:
    """Tell whether rows of a definition show a member of their sweep."""
    if rows.methods and member.method not in rows.methods:
        return False
    has = member.parameters()
    return all(has.get(name, value) == value for name, value in rows.where.items())


def setting_of(rows: Rows, member: Member) -> str:
    """Return what a definition calls a member, its method aside."""
    fraction = "" if member.memory_fraction is None else f"{100 * member.memory_fraction:g}%"
    named = {"lambda_": member.lambda_, "demonstrations": member.demonstrations, "way": member.memories}
    return rows.setting.format(**named, memories=fraction, **dict(member.options))
