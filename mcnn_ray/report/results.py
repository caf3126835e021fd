"""A sweep's results: one row per setting, over its seeds and episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from mcnn_ray.member import Member, settings_of
from mcnn_ray.rollout.episode import EpisodeRecord
from mcnn_ray.stats import Interval, mean_interval, rate_interval, share_interval

__all__ = ["Row", "rows_to_csv", "summarise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting of a sweep: a method with its hyperparameters, over all its seeds.

    Attributes:
        member: the setting, with the seed of its first member.
        seeds: training seeds.
        episodes: rollouts of each seed, with those lost.
        episode_seeds: first and last episode seed.
        episode_return: mean return, raw units.
        score: mean normalised score, or None where no reference fits.
        success: success rate in [0, 1], or None where the environment does not report it.
        stopped_early: whether its rollouts ended before the others', since it was separated from the best setting.
        subtasks: share of episodes in which each was done, by its name; empty where the environment names none.
        at_least: share of episodes with at least 1, 2, ... subtasks done, up to all of them.
        simulators: that ran its rollouts.
    """

    member: Member
    seeds: tuple[int, ...]
    episodes: int
    episode_seeds: tuple[int, int]
    episode_return: Interval
    score: Interval | None
    success: Interval | None
    stopped_early: bool = False
    subtasks: Mapping[str, Interval] = field(default_factory=dict)
    at_least: tuple[Interval, ...] = ()
    simulators: tuple[str, ...] = ()

    @property
    def lost(self) -> int:
        """Return how many episodes could not be run, and are not scored."""
        return self.episodes * len(self.seeds) - self.episode_return.n

    def record(self) -> dict[str, Any]:
        """Return the row as JSON values, one per column."""
        values: dict[str, Any] = {
            "method": self.member.method,
            "lambda": self.member.lambda_,
            "memory_fraction": self.member.memory_fraction,
        }
        known = self.metrics()
        for name in ("score", "return", "success", *self._shares()):
            values |= {f"{name}{suffix}": known.get(f"{name}{suffix}") for suffix in ("", "_low", "_high")}
        return {
            **values,
            "n": self.episode_return.n,
            "seeds": list(self.seeds),
            "episodes_per_seed": self.episodes,
            "episodes_lost": self.lost,
            "stopped_early": self.stopped_early,
            "first_episode_seed": self.episode_seeds[0],
            "last_episode_seed": self.episode_seeds[1],
            "L": self.member.L,
            "memories": self.member.memories,
            "memory_action": self.member.memory_action,
            "learning_rate": self.member.learning_rate,
            "beta_schedule": self.member.beta_schedule,
            "backbone": self.member.backbone,
            "demonstrations": self.member.demonstrations,
            "steps": self.member.steps,
            "simulators": list(self.simulators),
        }

    def metrics(self) -> dict[str, float]:
        """Return means and interval ends by name, without those that do not apply."""
        intervals = {"return": self.episode_return, "score": self.score, "success": self.success, **self._shares()}
        return {
            f"{name}{suffix}": value
            for name, interval in intervals.items()
            if interval is not None
            for suffix, value in (("", interval.mean), ("_low", interval.low), ("_high", interval.high))
            if value is not None
        }

    def _shares(self) -> dict[str, Interval]:
        """Return p1, p2, ... and `done_` with each subtask's name in what MLflow takes in names."""
        at_least = {f"p{count}": interval for count, interval in enumerate(self.at_least, 1)}
        return at_least | {"done_" + re.sub(r"[^\w.-]+", "_", name): share for name, share in self.subtasks.items()}


def summarise(
    members: Mapping[str, Member],
    records: Mapping[str, Sequence[EpisodeRecord]],
    run: Mapping[str, int],
    stopped: Collection[str] = (),
) -> list[Row]:
    """Gather members that differ in the seed alone into rows.

    Args:
        members: identity to member.
        records: identity to its episodes, for every member, at least one each.
        run: identity to the number of its episodes, with those lost.
        stopped: identities whose rollouts were stopped early.

    Returns:
        Rows in the order of the members.
    """
    return [
        _row(
            [members[i] for i in group],
            [records[i] for i in group],
            episodes=run[group[0]],
            stopped_early=any(i in stopped for i in group),
        )
        for group in settings_of(members).values()
    ]


def rows_to_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV with a header; numbers in full precision."""
    return str(pd.DataFrame([row.record() for row in rows]).to_csv(index=False))


def _row(members: list[Member], records: list[Sequence[EpisodeRecord]], episodes: int, stopped_early: bool) -> Row:
    columns = ("episode_seed", "episode_return", "normalised_score", "success")
    table = pd.DataFrame(
        [
            {"place": place, **{column: getattr(record, column) for column in columns}}
            for place, group in enumerate(records)
            for record in group
        ]
    )

    def over_starts(values: pd.Series[Any], interval: Callable[..., Interval] = mean_interval) -> Interval:
        # nan where an episode was lost
        cells = table.assign(value=values).pivot(index="place", columns="episode_seed", values="value")
        return interval(cells.to_numpy(dtype=float))

    told = [record.subtasks for group in records for record in group]
    done = pd.DataFrame(told if all(told) else [], dtype=float).fillna(0.0)
    successes = table["success"].dropna()
    return Row(
        member=members[0],
        seeds=tuple(member.seed for member in members),
        episodes=episodes,
        episode_seeds=(int(table["episode_seed"].min()), int(table["episode_seed"].max())),
        episode_return=over_starts(table["episode_return"]),
        score=over_starts(table["normalised_score"]) if table["normalised_score"].notna().all() else None,
        success=rate_interval(int(successes.sum()), len(successes)) if len(successes) else None,
        stopped_early=stopped_early,
        subtasks={str(name): over_starts(done[name], share_interval) for name in done},
        at_least=tuple(
            over_starts(done.sum(axis=1) >= count, share_interval) for count in range(1, len(done.columns) + 1)
        ),
        simulators=tuple(sorted({record.simulator for group in records for record in group})),
    )
