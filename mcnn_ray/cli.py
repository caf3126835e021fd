"""The command line: thin commands over the package, errors in a sentence, results as tables or JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mcnn_ray import __version__
from mcnn_ray.cli_data import data_app
from mcnn_ray.errors import ArtifactError, ConfigError, McnnError
from mcnn_ray.terminal import StageProgress, error_console, output_console

__all__ = ["app", "main"]

app = typer.Typer(
    name="mcnn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Imitation learning with Memory-Consistent Neural Networks: demonstrations in, compared policies out.",
)
app.add_typer(data_app, name="data")

Storage = Annotated[Path, typer.Option("--storage", help="Folder for sweeps, caches and the MLflow store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
STORAGE = Path("runs")


def _version(wanted: bool) -> None:
    if wanted:
        output_console.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command; `main` looks for --debug itself, since errors reach it alone."""


@app.command()
def quickstart(storage: Storage = STORAGE) -> None:
    """The whole path, offline, on a small real task: demonstrations, memories, a sweep, rollouts, a table.

    Example: mcnn quickstart
    """
    from mcnn_ray.quickstart import run_quickstart

    run_quickstart(storage)


@app.command()
def doctor(storage: Storage = STORAGE, as_json: AsJson = False) -> None:
    """What works on this machine, what does not, and the one command that mends it.

    Example: mcnn doctor
    """
    from dataclasses import asdict

    from mcnn_ray.doctor import examine

    findings = examine(storage)
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    else:
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("", "what", "found", "mend with"):
            table.add_column(column)
        for finding in findings:
            table.add_row("ok" if finding.works else "--", finding.what, finding.detail, finding.mend)
        output_console.print(table)
    # Demonstrations that are not here yet are a step to take, no fault of the machine.
    if not all(finding.works for finding in findings if finding.what != "demonstrations"):
        raise typer.Exit(1)


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """The catalogue: id, environment, demonstrations available here, reference scores.

    Example: mcnn tasks
    """
    from mcnn_ray.data.minari_store import dataset_exists
    from mcnn_ray.tasks.catalogue import CATALOGUE
    from mcnn_ray.tasks.environments import environment_id

    rows = [
        {
            "task": task.id,
            "environment": environment_id(task),
            "horizon": task.horizon,
            "demonstrations": next(filter(dataset_exists, task.datasets), None),
            "reference_min": task.reference_min,
            "reference_max": task.reference_max,
        }
        for task in CATALOGUE.values()
    ]
    if as_json:
        _print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD, caption="score = 100 (return - min) / (max - min), D4RL's references")
    for column in ("task", "environment", "steps", "demonstrations here", "min", "max"):
        table.add_column(
            column, justify="right" if column in ("steps", "min", "max") else "left", no_wrap=column != "environment"
        )
    for row in rows:
        table.add_row(
            str(row["task"]),
            str(row["environment"]),
            str(row["horizon"]),
            str(row["demonstrations"] or "none"),
            f"{row['reference_min']:.1f}",
            f"{row['reference_max']:.1f}",
        )
    output_console.print(table)


Method = Annotated[str | None, typer.Option("--method", help="bc, mcnn+mlp, 1nn; a list makes several.")]
Lambda = Annotated[str | None, typer.Option("--lambda", help="Rate at which a memory loses weight with distance.")]
LBound = Annotated[str | None, typer.Option("--L", help="Bound of the network's part.")]
Fraction = Annotated[str | None, typer.Option("--memory-fraction", help="Memories over demonstration steps.")]
Ways = Annotated[str | None, typer.Option("--memories", help="neural-gas or random.")]
Seeds = Annotated[str | None, typer.Option("--seed", help="Training seed.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Gradient steps [default: 20000; the paper: 1000000].")]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="Adam's [default: 0.0003].")]
Batch = Annotated[int | None, typer.Option("--batch-size", help="Transitions a step [default: 256].")]
Hidden = Annotated[str | None, typer.Option("--hidden", help="Widths of the hidden layers [default: 256,256].")]
Episodes = Annotated[int | None, typer.Option("--episodes", help="Rollouts of each member [default: 20].")]
Demonstrations = Annotated[int | None, typer.Option("--demonstrations", help="Learn from so many episodes only.")]
Dataset = Annotated[str | None, typer.Option("--dataset", help="Minari id to take instead of the task's own.")]
Clip = Annotated[bool | None, typer.Option("--clip-actions", help="Clip demonstrated actions to the bounds.")]
Constant = Annotated[str | None, typer.Option("--constant-columns", help="refuse or ignore.")]
MinEpisodes = Annotated[int | None, typer.Option("--min-episodes", help="Refuse datasets with fewer [default: 2].")]
Name = Annotated[str | None, typer.Option("--name", help="Of the sweep and its folder.")]


@app.command()
def train(
    task: Annotated[str, typer.Argument(help="Catalogue name (mcnn tasks), or ENVIRONMENT@DATASET.")],
    method: Method = "mcnn+mlp",
    lambda_: Lambda = None,
    L: LBound = None,
    memory_fraction: Fraction = None,
    memories: Ways = None,
    seed: Seeds = None,
    steps: Steps = None,
    learning_rate: Rate = None,
    batch_size: Batch = None,
    hidden: Hidden = None,
    episodes: Episodes = None,
    demonstrations: Demonstrations = None,
    dataset: Dataset = None,
    clip_actions: Clip = None,
    constant_columns: Constant = None,
    min_episodes: MinEpisodes = None,
    name: Name = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Train one policy, roll it out and file it: a sweep of one member.

    Example: mcnn train door-expert-v1 --method mcnn+mlp --lambda 1 --memory-fraction 0.1 --steps 5000
    """
    values = _given(locals())
    result = _sweep(values, "flags", storage, one=True)
    identity = result.study.identity(result.rows[0].member)
    policy = result.folder / "members" / identity / "policy"
    if as_json:
        _print_json({**result.rows[0].record(), "policy": str(policy)})
        return
    _print_rows(result)
    output_console.print(f"policy: {policy}", highlight=False, soft_wrap=True)


@app.command()
def sweep(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="YAML file; flags override its keys.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Catalogue name, or ENVIRONMENT@DATASET.")] = None,
    method: Method = None,
    lambda_: Lambda = None,
    L: LBound = None,
    memory_fraction: Fraction = None,
    memories: Ways = None,
    seed: Seeds = None,
    steps: Steps = None,
    learning_rate: Rate = None,
    batch_size: Batch = None,
    hidden: Hidden = None,
    episodes: Episodes = None,
    demonstrations: Demonstrations = None,
    dataset: Dataset = None,
    clip_actions: Clip = None,
    constant_columns: Constant = None,
    min_episodes: MinEpisodes = None,
    name: Name = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Train and compare every combination of lists; the same command again continues.

    Example: mcnn sweep --task door-expert-v1 --lambda 0.1,1,10 --memory-fraction 0.05,0.1 --seed 0,1 --steps 5000
    """
    given = _given(locals())
    from mcnn_ray.config import read_sweep_file

    values = {**(context.obj or {}), **(read_sweep_file(file) if file is not None else {}), **given}
    if "task" not in values:
        raise ConfigError("no task is given; name a YAML file, or pass --task (mcnn tasks lists them)")
    result = _sweep(values, "flags" if file is None else str(file), storage)
    if as_json:
        _print_json([row.record() for row in result.rows])
        return
    _print_rows(result)
    for what, path in (("table", result.folder / "results.csv"), ("figure", result.figure)):
        output_console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
    output_console.print(f"compare the runs: mcnn ui --storage {storage}", highlight=False, soft_wrap=True)


@app.command()
def evaluate(
    policy: Annotated[str, typer.Argument(help="Policy directory, or the id of an MLflow run.")],
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="How many.")] = 20,
    actors: Annotated[
        int | None, typer.Option("--actors", min=1, help="Rolling out at once [default: all CPUs].")
    ] = None,
    first_seed: Annotated[int | None, typer.Option("--first-seed", min=0, help="Seed of the first episode.")] = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Roll a policy out in its task; the result does not depend on the number of actors.

    Example: mcnn evaluate runs/quickstart/members/0123456789ab/policy --episodes 20
    """
    from mcnn_ray.report.tables import results_table
    from mcnn_ray.sweep.evaluation import evaluate_policy

    with StageProgress() as progress:
        row, records = evaluate_policy(_policy_directory(policy, storage), episodes, actors, first_seed, progress)
    if as_json:
        _print_json({**row.record(), "episodes": [record.row() for record in records]})
        return
    output_console.print(results_table([row], f"{policy}"))


@app.command()
def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="On 127.0.0.1.")] = 5000,
    storage: Storage = STORAGE,
) -> None:
    """Open MLflow's UI on 127.0.0.1 over the results.

    Example: mcnn ui --port 5000
    """
    from mcnn_ray.tracking import tracking_uri

    uri = tracking_uri(storage)
    if uri.startswith("sqlite:") and not (storage / "mlflow.db").exists():
        raise ArtifactError(f"{storage} holds no results yet; run mcnn quickstart, or name the folder with --storage")
    if not uri.startswith("sqlite:"):
        raise ConfigError("MLFLOW_TRACKING_URI names a server of its own; open that in the browser, or unset it")
    error_console.print(f"MLflow shows {storage} on http://127.0.0.1:{port} (end with Ctrl-C)", highlight=False)
    # In this process's place, so that what ends `mcnn ui` ends the server.
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    os.execv(sys.executable, [*command, "--port", str(port)])


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that were given under the keys of `SweepConfig`, with `a,b` as lists."""
    lists = ("method", "lambda_", "L", "memory_fraction", "memories", "seed", "hidden")
    values = {}
    for key, value in flags.items():
        if value is None or key in ("context", "storage", "as_json", "file"):
            continue
        values["lambda" if key == "lambda_" else key] = value.split(",") if key in lists else value
    return values


def _sweep(values: dict[str, Any], source: str, storage: Path, one: bool = False) -> Any:
    from mcnn_ray.config import SweepConfig
    from mcnn_ray.sweep.runner import run_sweep

    config = SweepConfig.parse(values, source)
    members = len(config.members())
    if one and members != 1:
        raise ConfigError(f"these flags ask for {members} members; mcnn train takes one, mcnn sweep takes lists")
    with StageProgress() as progress:
        return run_sweep(config, storage, progress)


def _print_rows(result: Any) -> None:
    from mcnn_ray.report.tables import results_table

    data = result.study.demonstrations
    title = f"{result.study.task.id}: {data.episodes} demonstrations ({data.source}, {data.steps:,} steps)"
    output_console.print(results_table(result.rows, title))


def _policy_directory(policy: str, storage: Path) -> Path:
    from mcnn_ray.tracking import download_policy

    directory = Path(policy)
    if directory.is_dir():
        return directory
    if len(policy) == 32 and all(character in "0123456789abcdef" for character in policy):
        return download_policy(storage, policy)
    raise ArtifactError(f"{policy} is neither a policy directory nor the id of an MLflow run")


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def main(arguments: list[str] | None = None, defaults: dict[str, Any] | None = None) -> None:
    """Run the command line; end with status 0, 1 (it failed) or 2 (it was asked wrongly).

    Args:
        arguments: None takes the program's own.
        defaults: keys of `SweepConfig` that `mcnn sweep` starts from; what scripts in `sweeps/` set.
    """
    sys.path.insert(0, str(Path.cwd()))  # environments of a user's own module, named module:id
    try:
        app(arguments, obj=defaults)
    except McnnError as error:
        if "--debug" in sys.argv[1:]:
            raise
        error_console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if "--debug" in sys.argv[1:]:
            raise
        where = f" ({error.filename})" if error.filename else ""
        error_console.print(f"error: {error.strerror or error}{where}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)
