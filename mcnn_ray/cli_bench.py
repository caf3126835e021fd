"""`mcnn bench`: this machine's figures against its limits."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mcnn_ray.errors import ConfigError
from mcnn_ray.terminal import AsJson, StageProgress, output_console, print_json

__all__ = ["bench_app"]

bench_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="This machine's figures against its limits.",
    pretty_exceptions_enable=False,
)

Seed = Annotated[int, typer.Option("--seed", min=0, help="Of data and method.")]


@bench_app.callback()
def _bench() -> None:
    """Keep `memories` a subcommand while it is the only one."""


@bench_app.command()
def memories(
    points: Annotated[int, typer.Option("--points", min=2, help="Made observations.")] = 100_000,
    dim: Annotated[int, typer.Option("--dim", min=1, help="Numbers of an observation.")] = 46,
    memories: Annotated[int, typer.Option("--memories", min=1, help="Codebook size.")] = 10_000,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of neural gas.")] = 10,
    task: Annotated[str | None, typer.Option("--task", help="Compare all methods on a task's demonstrations.")] = None,
    fraction: Annotated[float, typer.Option("--fraction", help="With --task: memories over steps.")] = 0.1,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Time neural gas and the look-up of a memory, or with --task compare the ways to pick memories.

    Example: mcnn bench memories --points 100000 --memories 10000
    """
    import torch

    from mcnn_ray.bench import bench_memories

    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"device '{device}' is not here; use cpu{' or cuda' if torch.cuda.is_available() else ''}")
    if task is not None:
        _compare(task, fraction, seed, as_json)
        return
    if memories > points:
        raise ConfigError(f"{memories} memories asked of {points} points; ask for at most {points}")
    with StageProgress() as progress:
        found = bench_memories(
            points,
            dim,
            memories,
            epochs,
            device=device,
            seed=seed,
            progress=lambda share: progress("neural gas", share, 1.0),
        )
    if as_json:
        print_json(found)
    else:
        _show_facts(found)


def _show_facts(found: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    for key, value in found.items():
        table.add_row(key.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else str(value))
    output_console.print(table)


def _compare(task: str, fraction: float, seed: int, as_json: bool) -> None:
    """Compare all methods on four fifths of a task's episodes, and on the last fifth, held out."""
    from mcnn_ray.bench import compare_methods
    from mcnn_ray.core.normalise import Standardiser
    from mcnn_ray.data.minari_store import task_demonstrations
    from mcnn_ray.tasks.catalogue import find_task

    data = task_demonstrations(find_task(task))
    kept = max(1, data.episodes - data.episodes // 5)
    stop = int(data.offsets[kept])
    standardise = Standardiser.fit(data.observations_ND[:stop])
    held_out = standardise(data.observations_ND[stop:]) if stop < data.steps else None
    rows = compare_methods(standardise(data.observations_ND[:stop]), held_out, fraction, seed=seed)
    if as_json:
        print_json(
            {"task": task, "source": data.source, "steps": stop, "held_out_steps": data.steps - stop, "results": rows}
        )
        return
    table = Table(
        title=f"{data.source}: {rows[0]['memories']:,} of {stop:,} steps are memories; {data.steps - stop:,} held out",
        caption="distances to the nearest memory, standardised units; every method snapped to distinct rows",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    columns = [key for key in rows[0] if key not in ("method", "memories")]
    table.add_column("method", no_wrap=True)
    for key in columns:
        table.add_column(key.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(row["method"], *(f"{row[key]:.3f}" for key in columns))
    output_console.print(table)
