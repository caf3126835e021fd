"""The command line: thin commands over the package, errors in a sentence, results as tables or JSON."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from mcnn_ray import __version__
from mcnn_ray.cli_bench import bench_app
from mcnn_ray.cli_carla import carla_app
from mcnn_ray.cli_certify import certify
from mcnn_ray.cli_data import data_app
from mcnn_ray.cli_encoder import encoder_app
from mcnn_ray.cli_explain import explain
from mcnn_ray.cli_memories import memories
from mcnn_ray.cli_models import export, promote
from mcnn_ray.cli_monitor import monitor
from mcnn_ray.cli_replay import replay
from mcnn_ray.cli_reproduce import reproduce
from mcnn_ray.cli_sweep import SweepScript, evaluate, sweep, train
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.terminal import DEFAULT_STORAGE, AsJson, Storage, error_console, output_console, print_json, run_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="mcnn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Imitation learning with Memory-Consistent Neural Networks: demonstrations in, compared policies out.",
)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(carla_app, name="carla")
app.add_typer(encoder_app, name="encoder")


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
    """Options of every command; `main` takes --debug out, wherever it stands, since errors reach it alone."""


@app.command()
def quickstart(storage: Storage = DEFAULT_STORAGE) -> None:
    """The whole path, offline, on a small real task: demonstrations, memories, a sweep, rollouts, a table.

    Example: mcnn quickstart
    """
    from mcnn_ray.quickstart import run_quickstart

    run_quickstart(storage)


@app.command()
def doctor(
    security: Annotated[
        bool, typer.Option("--security", help="Look at servers, passwords, secrets and pickles instead.")
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """What works on this machine, what does not, and the one command that mends it.

    Example: mcnn doctor --security
    """
    from dataclasses import asdict

    from mcnn_ray.doctor import examine
    from mcnn_ray.security import examine_security

    findings = (examine_security if security else examine)(storage)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("", "what", "found", "mend with"):
            table.add_column(column)
        for finding in findings:
            table.add_row("ok" if finding.works else "--", finding.what, finding.detail, finding.mend)
        output_console.print(table)
    # Demonstrations that are not here yet are a step to take, and the client an extra: no fault of the machine.
    if not all(finding.works for finding in findings if finding.what not in ("demonstrations", "carla client")):
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
        print_json(rows)
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
            *("" if value is None else f"{value:.1f}" for value in (row["reference_min"], row["reference_max"])),
        )
    output_console.print(table)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """The methods: what each is, its values in the presets, and options of its own.

    Example: mcnn methods
    """
    from mcnn_ray.methods import METHODS, preset_names

    rows = [
        {
            "method": name,
            "meaning": method.meaning,
            "presets": {preset: method.preset(preset) for preset in preset_names(name)},
            "options": {
                key: {"default": option.default, "meaning": option.meaning} for key, option in method.options.items()
            },
        }
        for name, method in METHODS.items()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("method", "what it is", "option", "paper", "meaning"):
        table.add_column(column, no_wrap=column in ("method", "option"))
    for name, method in METHODS.items():
        paper = method.preset("paper")
        lines = [(key, str(paper.get(key, option.default)), option.meaning) for key, option in method.options.items()]
        for i, line in enumerate(lines or [("", "", "")]):
            table.add_row(*((name, method.meaning) if i == 0 else ("", "")), *line)
    output_console.print(table)


app.command()(memories)
app.command()(train)
app.command()(sweep)
app.command()(evaluate)
app.command()(replay)
app.command()(explain)
app.command()(certify)
app.command()(monitor)
app.command()(reproduce)
app.command()(promote)
app.command()(export)


@app.command()
def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Of the server.")] = 5000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; others than 127.0.0.1 expose it.")] = (
        "127.0.0.1"
    ),
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Open MLflow's UI over the results, on 127.0.0.1 unless told otherwise.

    Example: mcnn ui --port 5000
    """
    from mcnn_ray.security import is_loopback
    from mcnn_ray.tracking import tracking_uri, ui_pages

    uri = tracking_uri(storage)
    if uri.startswith("sqlite:") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise ArtifactError(f"{storage} holds no results yet; run mcnn quickstart, or name the folder with --storage")
    if not uri.startswith("sqlite:"):
        raise ConfigError("MLFLOW_TRACKING_URI names a server of its own; open that in the browser, or unset it")
    if not is_loopback(host):
        error_console.print(
            f"warning: on {host} MLflow asks for no password: whoever reaches port {port} of this machine can read, "
            f"change and delete all runs, and read and write files in {storage / 'artifacts'}; an SSH tunnel to "
            "127.0.0.1 exposes nothing",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    error_console.print(f"MLflow shows {storage} on {address} (end with Ctrl-C)", highlight=False)
    for task, page in ui_pages(storage).items():
        error_console.print(f"{task}: {address}/{page}", highlight=False, soft_wrap=True)
    # In this process's place, so that what ends `mcnn ui` ends the server.
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", host]
    os.execv(sys.executable, [*command, "--port", str(port)])


def main(arguments: list[str] | None = None, script: SweepScript | None = None) -> None:
    """Run the command line; end with status 0, 1 (it failed) or 2 (it was asked wrongly).

    Args:
        arguments: None takes the program's own.
        script: what `mcnn sweep` starts from when a script in `sweeps/` calls it.
    """
    sys.path.insert(0, str(Path.cwd()))  # environments of a user's own module, named module:id
    run_app(app, sys.argv[1:] if arguments is None else arguments, obj=script)
