"""`mcnn bench train`: gradient steps of packs a second against their limit."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from mcnn_ray.errors import ConfigError
from mcnn_ray.terminal import AsJson, StageProgress, output_console, print_json

__all__ = ["numbers", "train"]


def train(
    members: Annotated[str, typer.Option("--members", help="How many are trained together, a row each.")] = "1,4,36",
    steps: Annotated[int, typer.Option("--steps", help="Timed gradient steps of each member.")] = 2000,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", help="Of one thread each; all cores of a CPU, one process on a GPU.", show_default=False
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option("--precision", help="float32, or on cuda tf32.")] = "float32",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Rows of a step.")] = 256,
    hidden: Annotated[str, typer.Option("--hidden", help="Widths of the hidden layers.")] = "256,256",
    dim: Annotated[int, typer.Option("--dim", help="Numbers of an observation.")] = 39,
    actions: Annotated[int, typer.Option("--actions", help="Numbers of an action.")] = 28,
    rows: Annotated[int, typer.Option("--rows", help="Demonstration steps.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of data, initialisation and batches.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time the training of packs, as a sweep trains them, against the matrix products of their steps alone.

    Example: mcnn bench train --members 1,4,36 --steps 2000
    """
    from mcnn_ray.bench_train import TrainBench, bench_train
    from mcnn_ray.training.step_shape import StepShape

    asked = TrainBench(
        members=numbers("--members", members),
        steps=steps,
        shape=StepShape(dim=dim, hidden=numbers("--hidden", hidden), actions=actions, batch_size=batch_size),
        rows=rows,
        processes=processes,
        device=device,
        precision=precision,
        seed=seed,
    )
    with StageProgress() as progress:
        found = bench_train(asked, progress)
    if as_json:
        print_json(found)
    else:
        _show(found)


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """Return the numbers of a flag such as `256,256`.

    Raises:
        ConfigError: one is none.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} is '{text}'; give whole numbers with commas between them, e.g. 1,4") from None


def _show(found: dict[str, Any]) -> None:
    table = Table(
        title=f"{found['device']}: {found['dim']}-{'-'.join(map(str, found['hidden']))}-{found['actions']}, "
        f"batches of {found['batch_size']}, {found['steps']:,} steps of each member, {found['precision']}",
        caption=_caption(found),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for column in ("members", "processes", "member-steps/s", "of the limit", "times the eager loop"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in found["results"]:
        table.add_row(
            f"{row['members']:,}",
            str(row["processes"]),
            f"{row['member_steps_per_s']:,.0f}",
            f"{100 * row['fraction_of_limit']:.0f} %",
            f"{row['times_eager_loop']:.2f}",
        )
    output_console.print(table)


def _caption(found: dict[str, Any]) -> str:
    if found["device"] == "cpu":
        limit = (
            "limit: a step's matrix products alone on one thread, times the processes\n"
            f"       ({1e3 * found['step_gflop']:,.1f} MFLOP at {found['matmul_gflops']:,.0f} GFLOP/s: "
            f"{found['limit_steps_per_s']:,.0f} steps/s a process)"
        )
    else:
        limit = (
            "limit: the longer of the members' stacked matrix products alone and of the bytes that must move\n"
            f"       ({1e3 * found['step_gflop']:,.1f} MFLOP a member and step, at best "
            f"{found['matmul_gflops'] / 1e3:,.1f} TFLOP/s)"
        )
    return (
        f"{limit}\n"
        f"memory: a step moves at least {found['step_mb']:,.1f} MB, a copy {found['memory_gb_per_s']:,.0f} GB/s\n"
        f"eager loop, like that published with the paper: {found['eager_loop_steps_per_s']:,.0f} steps/s\n"
        "limit and eager loop are timed between the parts of each run"
    )
