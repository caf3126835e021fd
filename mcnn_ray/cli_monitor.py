"""`mcnn monitor`: a threshold for a policy's distance from what it knows, and what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

from mcnn_ray.errors import ConfigError
from mcnn_ray.terminal import (
    DEFAULT_STORAGE,
    AsJson,
    StageProgress,
    Storage,
    TrustedBackbone,
    TrustedModule,
    output_console,
    print_json,
)

if TYPE_CHECKING:
    from mcnn_ray.monitor import Per
    from mcnn_ray.rollout.episode import Rollout
    from mcnn_ray.stats import Interval
    from mcnn_ray.watching import Watch

__all__ = ["monitor"]


def monitor(
    policy: Annotated[
        str, typer.Argument(help="Policy directory, id of an MLflow run, or a registered model: models:/NAME@ALIAS.")
    ],
    alpha: Annotated[float, typer.Option("--alpha", help="False-alarm rate on demonstrations, in (0, 1).")] = 0.1,
    calibration: Annotated[
        int | None,
        typer.Option(
            "--calibration",
            min=1,
            help="Held-out demonstrations to calibrate on [default: half, and as many as alpha takes].",
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option("--held-out", help="Minari id of further demonstrations [default: what was not learned from]."),
    ] = None,
    per_step: Annotated[
        bool, typer.Option("--per-step", help="Bound the share of flagged steps, not of episodes with a flag.")
    ] = False,
    to_demonstrations: Annotated[
        bool,
        typer.Option("--to-demonstrations", help="Measure distances to all that was learned from, not to memories."),
    ] = False,
    rollouts: Annotated[
        Path | None, typer.Option("--rollouts", help="Parquet file of its episodes [default: those beside it].")
    ] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", min=1, help="Roll out so many anew instead.")] = None,
    least_return: Annotated[
        float | None, typer.Option("--least-return", help="Less is a failure [default: what the environment tells].")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which demonstrations are calibrated on.")] = 0,
    backbone: TrustedBackbone = None,
    trust_module: TrustedModule = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Calibrate a monitor; measure its false alarms on other demonstrations and its flags on the policy's rollouts.

    Example: mcnn monitor runs/quickstart/members/0123456789ab/policy --held-out me/door/held-out-v0 --alpha 0.1
    """
    from mcnn_ray.learned import learned_from
    from mcnn_ray.monitor import Monitor
    from mcnn_ray.policies.loading import load_policy
    from mcnn_ray.registry import find_policy
    from mcnn_ray.tasks.catalogue import find_recorded_task
    from mcnn_ray.watching import (
        default_calibration,
        held_out_demonstrations,
        measure_watch,
        reference_of,
        watch_rollouts,
    )

    directory = find_policy(policy, storage)
    loaded = load_policy(directory, backbone)
    task = find_recorded_task(loaded.card.get("task"), trust_module, directory)
    learned = learned_from(loaded)
    data = held_out_demonstrations(loaded, learned, held_out, task.observation_key)
    count = default_calibration(data.episodes, alpha) if calibration is None else calibration
    if not 1 <= count <= data.episodes:
        raise ConfigError(
            f"{count} demonstrations to calibrate on, of {data.episodes} held out; use 1 to {data.episodes}"
        )
    order = np.random.default_rng(seed).permutation(data.episodes)
    watch_on = data.take(order[count:]) if count < data.episodes else None
    reference_ND = reference_of(loaded, learned, to_demonstrations)
    per: Per = "step" if per_step else "episode"
    watched = Monitor.calibrate(loaded, data.take(order[:count]), alpha=alpha, per=per, reference_ND=reference_ND)
    with StageProgress() as progress:
        recorded = _rollouts(directory, loaded, rollouts, episodes, progress, backbone, trust_module)
        seen = watch_rollouts(
            watched, recorded, task, least_return, lambda done: progress("watching, episodes", done, len(recorded))
        )
    found = measure_watch(
        watched,
        alpha,
        per,
        count,
        [] if watch_on is None else [watched.distances(watch_on.observations_of(e)) for e in range(watch_on.episodes)],
        [(rollout.record.episode_seed, good, d_T) for rollout, (good, d_T) in zip(recorded, seen, strict=True)],
    )
    to = "memories" if reference_ND is None else "demonstrations"
    if as_json:
        print_json({"policy": policy, "held_out": data.source, "against": to, **found.to_json()})
    else:
        _show(found, f"{task.id}, {loaded.card.get('identity')}: distance to {to}; held out: {data.source}")


def _rollouts(
    directory: Path,
    policy: Any,
    records: Path | None,
    episodes: int | None,
    progress: StageProgress,
    backbone: str | None,
    trust_module: str | None,
) -> list[Rollout]:
    from mcnn_ray.rollout.origin import EPISODES, check_origin
    from mcnn_ray.rollout.records import read_rollouts

    if records is not None and episodes is not None:
        raise ConfigError("--rollouts names recorded episodes and --episodes asks for new ones; give one of them")
    if episodes is not None:
        from mcnn_ray.sweep.evaluation import new_rollouts  # with Ray, which takes seconds

        return new_rollouts(directory, episodes, progress, backbone, trust_module)
    beside = directory.parent / EPISODES
    if records is None and not beside.is_file():
        raise ConfigError(f"no {EPISODES} lies beside {directory}; roll it out with --episodes 50")
    path = records or beside
    found = read_rollouts(path)
    check_origin(found, policy.card.get("identity"), directory, path)
    return found


def _show(found: Watch, title: str) -> None:
    what = "episodes with a flag" if found.per == "episode" else "steps outside"
    table = Table(
        title=title,
        caption=f"\\[low, high]: 95 % intervals ({'Wilson' if found.per == 'episode' else 'bootstrap over episodes'})",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for column in ("n", f"{what}, %"):
        table.add_column(column, justify="right")
    for name, interval in (
        ("held-out demonstrations", found.false_alarms),
        ("rollouts that failed", found.failures),
        ("rollouts that succeeded", found.successes),
    ):
        table.add_row(name, *_cells(interval))
    output_console.print(table)
    for line in _lines(found):
        output_console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(interval: Interval | None) -> tuple[str, str]:
    return ("0", "") if interval is None else (str(interval.n), interval.text(1, 100.0))


def _lines(found: Watch) -> list[str]:
    lines = [
        f"threshold: distance {found.threshold:.4g}, from {found.calibration} held-out demonstrations, for a rate of "
        f"false alarms of at most {found.alpha:g} per {found.per}"
    ]
    if found.likely_rates is not None:
        low, high = found.likely_rates
        lines.append(
            f"it is kept on average over calibrations: 90 % of those of this size have {low:.3f} to {high:.3f}"
        )
    if found.lead_steps is not None and found.lead_quartiles is not None:
        low, middle, high = found.lead_quartiles
        lines.append(
            f"flagged failures: the first flag is {found.lead_steps.text(0)} steps before the end (quartiles "
            f"{low:.0f}, {middle:.0f}, {high:.0f}; n {found.lead_steps.n})"
        )
    return lines
