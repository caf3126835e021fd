"""`mcnn train`, `mcnn sweep` and `mcnn evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcnn_ray import cli_flags as flags
from mcnn_ray.errors import ConfigError, SimulationError, TrackingError
from mcnn_ray.terminal import (
    DEFAULT_STORAGE,
    AsJson,
    StageProgress,
    Storage,
    TrustedBackbone,
    TrustedModule,
    error_console,
    output_console,
    print_json,
)

if TYPE_CHECKING:
    from mcnn_ray.sweep.runner import SweepResult

__all__ = ["SweepScript", "check_filed", "evaluate", "print_result", "sweep", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepScript:
    """What a script in `sweeps/` gives to `mcnn sweep`.

    Attributes:
        keys: of `SweepConfig`; flags override them.
        prepare: called before a sweep of the script's own task, e.g. to record demonstrations.
    """

    keys: dict[str, Any]
    prepare: Callable[[StageProgress], None] | None = None


def train(
    task: Annotated[str, typer.Argument(help="Catalogue name (mcnn tasks), or ENVIRONMENT@DATASET.")],
    method: flags.Method = "mcnn+mlp",
    lambda_: flags.Lambda = None,
    L: flags.LBound = None,
    memory_fraction: flags.Fraction = None,
    memories: flags.Ways = None,
    memory_action: flags.MemoryAction = None,
    distance: flags.Distance = None,
    preset: flags.Preset = None,
    option: flags.Options = None,
    seed: flags.Seeds = None,
    steps: flags.Steps = None,
    learning_rate: flags.Rate = None,
    beta_schedule: flags.Beta = None,
    batch_size: flags.Batch = None,
    hidden: flags.Hidden = None,
    backbone: flags.Backbone = None,
    episodes: flags.Episodes = None,
    demonstrations: flags.Demonstrations = None,
    dataset: flags.Dataset = None,
    encoder: flags.Encoder = None,
    clip_actions: flags.Clip = None,
    constant_columns: flags.Constant = None,
    min_episodes: flags.MinEpisodes = None,
    evaluate_every: flags.Every = None,
    curve_episodes: flags.CurveEpisodes = None,
    workers: flags.Workers = None,
    name: flags.Name = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Train one policy, roll it out and file it: a sweep of one member.

    Example: mcnn train door-expert-v1 --method mcnn+mlp --lambda 1 --memory-fraction 0.1 --steps 5000
    """
    values = _given(locals())
    result = _sweep(values, "flags", storage, one=True)
    identity = result.studies.of(result.rows[0].member).identity(result.rows[0].member)
    policy = result.folder / "members" / identity / "policy"
    if as_json:
        print_json({**result.rows[0].record(), "policy": str(policy)})
    else:
        print_result(result)
        output_console.print(f"policy: {policy}", highlight=False, soft_wrap=True)
    check_filed(result)


def sweep(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="YAML file; flags override its keys.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Catalogue name, or ENVIRONMENT@DATASET.")] = None,
    method: flags.Method = None,
    lambda_: flags.Lambda = None,
    L: flags.LBound = None,
    memory_fraction: flags.Fraction = None,
    memories: flags.Ways = None,
    memory_action: flags.MemoryAction = None,
    distance: flags.Distance = None,
    preset: flags.Preset = None,
    option: flags.Options = None,
    seed: flags.Seeds = None,
    steps: flags.Steps = None,
    learning_rate: flags.Rate = None,
    beta_schedule: flags.Beta = None,
    batch_size: flags.Batch = None,
    hidden: flags.Hidden = None,
    backbone: flags.Backbone = None,
    episodes: flags.Episodes = None,
    stop_early: flags.StopEarly = None,
    demonstrations: flags.Demonstrations = None,
    dataset: flags.Dataset = None,
    encoder: flags.Encoder = None,
    clip_actions: flags.Clip = None,
    constant_columns: flags.Constant = None,
    min_episodes: flags.MinEpisodes = None,
    evaluate_every: flags.Every = None,
    curve_episodes: flags.CurveEpisodes = None,
    search: flags.Search = None,
    trials: flags.Trials = None,
    trials_at_once: flags.AtOnce = None,
    halving: flags.Halving = None,
    workers: flags.Workers = None,
    name: flags.Name = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Train and compare every combination of lists; the same command again continues.

    With --search optuna, --lambda, --L, --memory-fraction and --learning-rate also take ranges, LOW..HIGH or
    LOW..HIGH:log.

    Example: mcnn sweep --task door-expert-v1 --lambda 0.1,1,10 --memory-fraction 0.05,0.1 --seed 0,1 --steps 5000
    """
    given = _given(locals())
    from mcnn_ray.config_file import read_sweep_file

    script: SweepScript | None = context.obj
    given = {**(read_sweep_file(file) if file is not None else {}), **given}
    keys = dict(script.keys) if script is not None else {}
    if given:
        keys.pop("name", None)  # another sweep than the script's own
    if "task" in given:
        keys.pop("dataset", None)
    elif script is not None and script.prepare is not None and "dataset" not in given:
        with StageProgress() as progress:
            script.prepare(progress)
    values = {**keys, **given}
    if "task" not in values:
        raise ConfigError("no task is given; name a YAML file, or pass --task (mcnn tasks lists them)")
    result = _sweep(values, "flags" if file is None else str(file), storage)
    if as_json:
        print_json([row.record() for row in result.rows])
        for failure in result.failures:
            error_console.print(f"failed: {failure}", highlight=False, soft_wrap=True)
        check_filed(result)
        return
    print_result(result)
    files = {"table": result.folder / "results.csv", "figure": result.figure}
    if result.selection is not None:
        files["settings that were compared"] = result.folder / "selection.csv"
    for what, path in files.items():
        output_console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
    check_filed(result)
    output_console.print(f"compare the runs: mcnn ui --storage {storage}", highlight=False, soft_wrap=True)


def evaluate(
    policy: Annotated[
        str, typer.Argument(help="Policy directory, id of an MLflow run, or a registered model: models:/NAME@ALIAS.")
    ],
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="How many.")] = 20,
    actors: Annotated[
        int | None, typer.Option("--actors", min=1, help="Rolling out at once [default: all CPUs].")
    ] = None,
    first_seed: Annotated[int | None, typer.Option("--first-seed", min=0, help="Seed of the first episode.")] = None,
    video: Annotated[bool, typer.Option("--video", help="Write the best, median and worst episode as MP4.")] = False,
    video_dir: Annotated[
        Path | None, typer.Option("--video-dir", help="Folder for them [default: STORAGE/videos/MEMBER].")
    ] = None,
    backbone: TrustedBackbone = None,
    trust_module: TrustedModule = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Roll a policy out in its task; the result does not depend on the number of actors.

    Example: mcnn evaluate runs/quickstart/members/0123456789ab/policy --episodes 20 --video
    """
    from mcnn_ray.registry import find_policy
    from mcnn_ray.report.tables import results_table
    from mcnn_ray.rollout.video import save_telling_videos
    from mcnn_ray.sweep.evaluation import evaluate_policy

    with StageProgress() as progress:
        directory = find_policy(policy, storage)
        row, evaluation, fault = evaluate_policy(
            directory, episodes, actors, first_seed, progress, backbone, trust_module
        )
        failed: SimulationError | None = fault
        rollouts, videos = evaluation.rollouts, {}
        if video or video_dir is not None:
            folder = video_dir or storage / "videos" / rollouts[0].record.member
            try:
                videos = save_telling_videos(rollouts, folder, progress)
            except SimulationError as error:
                failed = failed or error  # the rollouts are done and are shown all the same
    if as_json:
        shown = {"videos": {name: str(path) for name, path in videos.items()}} if videos else {}
        print_json({**row.record(), "episodes": [rollout.record.row() for rollout in rollouts], **shown})
    else:
        output_console.print(results_table([row], f"{policy}"))
        for name, path in videos.items():
            output_console.print(f"video of the {name} episode: {path}", highlight=False, soft_wrap=True)
    if failed is not None:
        raise failed


def _given(given: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were given under the keys of `SweepConfig`, with `a,b` as lists."""
    from mcnn_ray.config import SweepConfig

    values: dict[str, Any] = {}
    for key, value in given.items():
        if key == "option":
            values |= {"options": _options(value)} if value else {}
            continue
        if value is None or key in ("context", "storage", "as_json", "file"):
            continue
        values["lambda" if key == "lambda_" else key] = (
            value.split(",") if isinstance(value, str) and SweepConfig.takes_list(key) else value
        )
    return values


def _options(given: list[str]) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"--option {text} is not NAME=VALUE, e.g. --option neighbours=5")
        options[name] = options.get(name, []) + value.split(",")
    return options


def _sweep(values: dict[str, Any], source: str, storage: Path, one: bool = False) -> SweepResult:
    from mcnn_ray.config import SweepConfig
    from mcnn_ray.sweep.runner import run_sweep

    config = SweepConfig.parse(values, source)
    members = len(config.members())
    if one and members != 1:
        raise ConfigError(f"these flags ask for {members} members; mcnn train takes one, mcnn sweep takes lists")
    try:
        with StageProgress() as progress:
            return run_sweep(config, storage, progress, progress.say)
    except KeyboardInterrupt:
        error_console.print("interrupted; the same command continues from the last checkpoints")
        raise typer.Exit(130) from None


def print_result(result: SweepResult) -> None:
    """Print a sweep's table and whether its certificates hold."""
    from mcnn_ray.report.tables import results_table

    data = result.studies.demonstrations
    steps = sorted({row.member.steps for row in result.rows if row.member.trained})
    trained = f", {' or '.join(f'{count:,}' for count in steps)} training steps" if steps else ""
    counts = [count for count in result.studies.parts if count is not None]
    used = f"{' or '.join(map(str, counts))} of {data.episodes}" if counts else str(data.episodes)
    title = f"{result.studies.task.id}: {used} demonstrations ({data.source}, {data.steps:,} steps){trained}"
    notes = result.selection.notes if result.selection is not None else []
    output_console.print(results_table(result.rows, title, notes))
    for failure in result.failures:
        output_console.print(f"failed, and not in the table: {failure}", highlight=False, soft_wrap=True)
    _print_certificates(result)


def check_filed(result: SweepResult) -> None:
    """Fail, once the table is shown, when MLflow was away at the sweep's end.

    Raises:
        TrackingError: it was; the sentence says what to do.
    """
    if result.unfiled is not None:
        raise TrackingError(f"results are in {result.folder}, but not all are filed: {result.unfiled}")


def _print_certificates(result: SweepResult) -> None:
    from mcnn_ray.cli_certify import sweep_lines

    if result.certificates:
        for line in sweep_lines(result.certificates):
            output_console.print(line, highlight=False, markup=False, soft_wrap=not output_console.is_terminal)
