"""`mcnn bench`: this machine's figures against its limits."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from mcnn_ray.cli_bench_rollout import inference, rollout, sweep
from mcnn_ray.cli_bench_train import train
from mcnn_ray.errors import ConfigError
from mcnn_ray.terminal import AsJson, StageProgress, output_console, print_facts, print_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["bench_app"]

_TOY = "toy-2d"  # episodes of `made_toy`, always of the same seed
_TOY_EPISODES = 50

bench_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="This machine's figures against its limits.",
    pretty_exceptions_enable=False,
)

Seed = Annotated[int, typer.Option("--seed", min=0, help="Of data and method.")]

bench_app.command()(train)
bench_app.command()(rollout)
bench_app.command()(inference)
bench_app.command()(sweep)


@bench_app.command()
def memories(
    points: Annotated[str, typer.Option("--points", help="Made observations; a list times every pair.")] = "100000",
    dim: Annotated[int, typer.Option("--dim", min=1, help="Numbers of an observation.")] = 46,
    memories: Annotated[str, typer.Option("--memories", help="Codebook size, or a list.")] = "10000",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of neural gas.")] = 10,
    task: Annotated[
        str | None,
        typer.Option("--task", help=f"Compare all methods on a task's demonstrations, or on {_TOY}, made here."),
    ] = None,
    fraction: Annotated[float, typer.Option("--fraction", help="With --task: memories over steps.")] = 0.1,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Time neural gas and the look-up of a memory, or with --task compare the ways to pick memories.

    Example: mcnn bench memories --points 25000,100000 --memories 2500,10000
    """
    from mcnn_ray.bench import bench_memories, check_device

    check_device(device)
    if task is not None:
        _compare(task, fraction, seed, as_json)
        return
    pairs = list(itertools.product(_counts("points", points), _counts("memories", memories)))
    for rows, wanted in pairs:
        if wanted > rows:
            raise ConfigError(f"{wanted} memories asked of {rows} points; ask for at most {rows}")
    with StageProgress() as progress:
        found = [
            bench_memories(
                rows,
                dim,
                wanted,
                epochs,
                device=device,
                seed=seed,
                progress=functools.partial(_tell, progress, f"neural gas, {rows:,} to {wanted:,}"),
            )
            for rows, wanted in pairs
        ]
    if as_json:
        print_json(found[0] if len(found) == 1 else {"results": found})
    elif len(found) == 1:
        print_facts(found[0])
    else:
        _show_costs(found)


def _tell(progress: StageProgress, stage: str, share: float) -> None:
    progress(stage, share, 1.0)


def _counts(name: str, text: str) -> list[int]:
    """Return the counts of a flag such as `25000,50000`.

    Raises:
        ConfigError: one is no count above 0.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isascii() or not part.isdigit() or int(part) < 1:
            raise ConfigError(f"--{name} has '{part}'; give a whole number above 0, or several as 25000,50000")
    return [int(part) for part in dict.fromkeys(parts)]


def _show_costs(found: list[dict[str, Any]]) -> None:
    """Show what an epoch costs against rows and memories, beside its products alone."""
    table = Table(
        title=(
            f"neural gas of {found[0]['dim']} numbers, {found[0]['epochs']} epochs, {found[0]['device']}, "
            f"{found[0]['threads']} threads"
        ),
        caption=(
            "products: of all rows with all memories, once, at this machine's measured rate; processor: time of all "
            "threads; look-up: the nearest memory of one observation, median, one thread"
        ),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for name in ("rows", "memories", "s an epoch", "processor s", "products s", "ratio", "GFLOP/s", "look-up us"):
        table.add_column(name, justify="right")
    for row in found:
        table.add_row(
            f"{row['points']:,}",
            f"{row['memories']:,}",
            f"{row['seconds_per_epoch']:.3f}",
            f"{row['cpu_seconds_per_epoch']:.3f}",
            f"{row['limit_seconds_per_epoch']:.3f}",
            f"{row['ratio']:.2f}",
            f"{row['product_gflops']:.1f}",
            f"{row['search_median_us']:.1f}",
        )
    output_console.print(table)


def _compare(task: str, fraction: float, seed: int, as_json: bool) -> None:
    """Compare all methods on four fifths of a task's episodes, and on the last fifth, held out."""
    from mcnn_ray.bench import compare_methods
    from mcnn_ray.core.normalise import Standardiser

    source, obs_ND, offsets = _demonstrations(task)
    steps, episodes = len(obs_ND), len(offsets) - 1
    stop = offsets[max(1, episodes - episodes // 5)]
    standardise = Standardiser.fit(obs_ND[:stop])
    held_out = standardise(obs_ND[stop:]) if stop < steps else None
    rows = compare_methods(standardise(obs_ND[:stop]), held_out, fraction, seed=seed)
    if as_json:
        print_json({"task": task, "source": source, "steps": stop, "held_out_steps": steps - stop, "results": rows})
        return
    table = Table(
        title=f"{source}: {rows[0]['memories']:,} of {stop:,} steps are memories; {steps - stop:,} held out",
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


def _demonstrations(task: str) -> tuple[str, npt.NDArray[np.float32], list[int]]:
    """Return the source, the (N, D) raw observations and the episode offsets of a task, or of the toy."""
    if task == _TOY:
        from mcnn_ray.bench import made_toy

        obs_ND = made_toy(_TOY_EPISODES, 0)
        return task, obs_ND, list(range(0, len(obs_ND) + 1, len(obs_ND) // _TOY_EPISODES))
    from mcnn_ray.data.minari_store import task_demonstrations
    from mcnn_ray.tasks.catalogue import find_task

    data = task_demonstrations(find_task(task))
    return data.source, data.observations_ND, data.offsets.tolist()
