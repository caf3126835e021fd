"""`mcnn explain`: which memories drove each action of an episode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcnn_ray.errors import ConfigError, SimulationError
from mcnn_ray.terminal import (
    DEFAULT_STORAGE,
    AsJson,
    StageProgress,
    Storage,
    TrustedBackbone,
    TrustedModule,
    output_console,
    print_facts,
    print_json,
)

if TYPE_CHECKING:
    from mcnn_ray.explain import EpisodeExplained, Nearest
    from mcnn_ray.explain_frames import Frames

__all__ = ["explain"]

_SHOWN = 5  # of the memories used most, and of the observation numbers that differ most


def explain(
    policy: Annotated[
        str,
        typer.Argument(
            help="Policy directory, id of an MLflow run, registered model: models:/NAME@ALIAS; or Parquet file of "
            "episodes, e.g. members/ID/episodes.parquet."
        ),
    ],
    episode_seed: Annotated[
        int | None, typer.Option("--episode-seed", min=0, help="Of the episode [default: the first reported].")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Page to write; it opens offline.")] = None,
    frames: Annotated[
        int, typer.Option("--frames", min=0, max=80, help="Pictures of the episode in the page; 0 draws none.")
    ] = 40,
    acted: Annotated[
        Path | None, typer.Option("--policy", help="Of a file: the policy that acted [default: beside the file].")
    ] = None,
    backbone: TrustedBackbone = None,
    trust_module: TrustedModule = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Tell which memories drove each action of an episode, how near they were and how much they weighed.

    A policy is rolled out, as mcnn evaluate does; of a file the recorded actions are given again.

    Example: mcnn explain runs/quickstart/members/0123456789ab/policy --episode-seed 1000003 --html episode.html
    """
    from mcnn_ray.artifacts import write_text
    from mcnn_ray.explain import explain_rollout, run_as_evaluated
    from mcnn_ray.policies.loading import load_policy
    from mcnn_ray.registry import find_policy
    from mcnn_ray.report.explain_page import explanation_json, explanation_page
    from mcnn_ray.rollout.episode import EVALUATION_SEED
    from mcnn_ray.rollout.origin import check_origin, policy_beside
    from mcnn_ray.rollout.records import read_rollout
    from mcnn_ray.tasks.catalogue import find_recorded_task

    named = Path(policy)
    episodes = named if named.is_file() or named.suffix == ".parquet" else None
    rollout = None if episodes is None else read_rollout(episodes, episode_seed)
    directory = find_policy(policy, storage) if episodes is None else acted or policy_beside(episodes)
    if directory is None:
        raise ConfigError(f"no policy lies beside {policy}; name the one that acted with --policy")
    loaded = load_policy(directory, backbone)
    task = find_recorded_task(loaded.card.get("task"), trust_module, directory)
    with StageProgress() as progress:
        if rollout is None:
            rollout = run_as_evaluated(loaded, task, EVALUATION_SEED if episode_seed is None else episode_seed)
        check_origin([rollout], loaded.card.get("identity"), directory, episodes or directory)
        shown = explain_rollout(loaded, rollout, task)
        if html is not None:
            write_text(html, explanation_page(shown, _frames(shown, frames, progress)))
    if as_json:
        print_json({**explanation_json(shown), **({} if html is None else {"html": str(html)})})
        return
    _show(shown)
    if html is not None:
        output_console.print(f"page: {html}", highlight=False, markup=False, soft_wrap=True)


def _frames(shown: EpisodeExplained, count: int, progress: StageProgress) -> Frames | None:
    from mcnn_ray.explain_frames import frames_of

    if not count:
        return None
    try:
        return frames_of(shown, count, lambda done, total: progress("pictures", done, total))
    except SimulationError as error:
        progress.say(f"the page has no pictures: {error}")  # the rest of it says as much as ever
        return None


def _show(shown: EpisodeExplained) -> None:
    record, nearest = shown.rollout.record, shown.nearest
    facts = {
        "task": record.task,
        "method": shown.method,
        "episode_seed": record.episode_seed,
        "return": record.episode_return,
        **({} if record.normalised_score is None else {"score": record.normalised_score}),
        "success": record.success,
        "length": record.length,
        **({} if nearest is None else _nearest_facts(nearest)),
    }
    print_facts(facts)
    for line in [*shown.notes, *([] if nearest is None else _lines(shown, nearest))]:
        output_console.print(line, highlight=False, markup=False, soft_wrap=True)


def _nearest_facts(nearest: Nearest) -> dict[str, object]:
    distances = nearest.distance_T
    plural = "memories" if nearest.what == "memory" else "demonstrated steps"
    facts: dict[str, object] = {
        plural: f"{len(set(nearest.index_T.tolist()))} of {nearest.known} used",
        "distance, mean": float(distances.mean()),
        "distance, largest": f"{distances.max():.4g} at step {distances.argmax()}",
    }
    if nearest.weight_T is not None:
        facts["weight, mean"] = float(nearest.weight_T.mean())
        facts["weight, least"] = f"{nearest.weight_T.min():.4g} at step {nearest.weight_T.argmin()}"
    facts["action's departure, mean"] = float(nearest.departure_T.mean())
    return facts


def _lines(shown: EpisodeExplained, nearest: Nearest) -> list[str]:
    from mcnn_ray.report.explain_page import compare, most_used

    lines = []
    spread, steps = nearest.spread, len(nearest.distance_T)
    if spread is not None:
        beyond = 100 * float((spread.percentiles(nearest.distance_T) >= 95).mean())
        lines.append(
            f"{beyond:.0f} % of the steps are farther than 95 % of the steps of {spread.episodes} {spread.name}"
        )
        if spread.threshold is not None:
            outside = (nearest.distance_T > spread.threshold).nonzero()[0]
            flag = f"first at step {outside[0]}" if len(outside) else "never"
            lines.append(
                f"beyond {spread.threshold:.4g}, where one held-out demonstration in ten goes at any step: {flag}"
            )
    lines.append(f"{nearest.what} used most:")
    for index, count in most_used(nearest, _SHOWN):
        first = int((nearest.index_T == index).argmax())
        where = "" if nearest.places_T is None else ", demonstration {} step {}".format(*nearest.places_T[first])
        lines.append(f"  {index}: {count} of {steps} steps, first at {first}{where}")
    at = int(nearest.distance_T.argmax())
    apart = compare(shown, nearest, at)[:_SHOWN]
    told = ", ".join(f"{name} {now:g} (there {then:g})" for name, now, then, _ in apart)
    lines.append(f"what differs most at step {at}, the farthest: {told}")
    return lines
