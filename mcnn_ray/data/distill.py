"""Distils the packaged experts from the public ones: `python -m mcnn_ray.data.distill`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from safetensors.numpy import save

from mcnn_ray.artifacts import write_bytes
from mcnn_ray.data.distillation import CHECKING_SEED, Agreement, Settings, check, distil, work
from mcnn_ray.data.experts import Expert, expert_names
from mcnn_ray.errors import ConfigError, DatasetError, McnnError, did_you_mean
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["main"]

_REPOSITORY = Path(__file__).resolve().parents[2]
_ASSETS = _REPOSITORY / "mcnn_ray" / "assets" / "experts"
_FORMULA = (
    "action_scale*net((obs-obs_shift)/(obs_scale+1e-8))+action_shift, plus exp(log_std)*N(0,1) for the stochastic "
    "expert, then clip to [-1,1]; net: layers.i with tanh between them"
)


def _metadata(teacher: Expert, settings: Settings, agreement: Agreement) -> dict[str, str]:
    return {
        "task": f"{teacher.name}-expert-v1",
        "source": f"distilled by mcnn-ray from {teacher.metadata.get('source', 'aravindr93/hand_dapg (Apache-2.0)')}",
        "licence": "Apache-2.0 (original policies: aravindr93/hand_dapg)",
        "formula": _FORMULA,
        "settings": json.dumps(asdict(settings)),
        "figures": json.dumps(asdict(agreement)),
    }


def _table(results: Mapping[str, Agreement]) -> Table:
    table = Table(title=f"stochastic experts, episode seeds from {CHECKING_SEED}, 95 % intervals")
    for heading in ("task", "policy", "n", "return", "success, any step", "success, last step", "reached"):
        table.add_column(heading)
    for name, agreement in results.items():
        for policy, standing in (("original", agreement.original), ("student", agreement.student)):
            table.add_row(
                name,
                policy,
                str(agreement.episodes),
                escape(standing.episode_return.text(0)),
                escape(standing.success.text(3)),
                escape(standing.success_last.text(3)),
                "" if policy == "original" else str(agreement.reached).lower(),
            )
    return table


def _read_teacher(source: Path, name: str) -> Expert:
    path = source / f"adroit_{name}_expert.safetensors"
    if not path.is_file():
        raise DatasetError(
            f"no public expert at {path}; give the folder of adroit_*_expert.safetensors with --source or "
            "MCNN_SHARED_DATA (they are converted from github.com/aravindr93/hand_dapg)"
        )
    return Expert.read(path, name)


def main(
    task: Annotated[list[str] | None, typer.Option(help="Expert to distil; repeatable. Without it all are.")] = None,
    source: Annotated[
        Path, typer.Option(envvar="MCNN_SHARED_DATA", help="Folder of the public experts.")
    ] = _REPOSITORY.parent / "shared" / "data",
    out: Annotated[Path, typer.Option(help="Folder of the distilled experts.")] = _ASSETS,
) -> None:
    """Distil the packaged experts, check each on 200 episodes and write those that match their original.

    Example: python -m mcnn_ray.data.distill --task door --out /tmp/experts
    """
    console = Console(stderr=True)
    torch.set_num_threads(1)  # faster for networks this small
    try:
        results = _distil_all(task or list(expert_names()), source, out, console)
    except McnnError as error:
        console.print(f"[red]{error}")
        raise typer.Exit(error.exit_code) from error
    console.print(_table(results))
    if missed := [name for name, agreement in results.items() if not agreement.reached]:
        console.print(f"[red]not written, since outside the original's interval: {', '.join(missed)}; train longer")
        raise typer.Exit(1)


def _distil_all(names: list[str], source: Path, out: Path, console: Console) -> dict[str, Agreement]:
    if unknown := [name for name in names if name not in expert_names()]:
        raise ConfigError(f"no expert '{unknown[0]}' to distil: {did_you_mean(unknown[0], expert_names())}")
    settings = Settings()
    teachers = {name: _read_teacher(source, name) for name in names}
    results = {}
    with Progress(console=console) as progress:
        for name, teacher in teachers.items():
            bar = progress.add_task(name, total=work(settings))

            def tick(doing: str, bar: Any = bar, name: str = name) -> None:
                progress.update(bar, advance=1, description=f"{name}: {doing}")

            env = make_environment(find_task(f"{name}-expert-v1"))
            tensors = distil(teacher, env, settings, tick)
            results[name] = agreement = check(teacher, Expert(name, tensors, {}), env, settings, tick)
            env.close()
            if agreement.reached:
                write_bytes(out / f"{name}.safetensors", save(tensors, _metadata(teacher, settings, agreement)))
    return results


if __name__ == "__main__":
    typer.run(main)
