"""`mcnn encoder`: networks that turn images into what policies and memories work on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.terminal import AsJson, StageProgress, output_console, print_json

if TYPE_CHECKING:
    from mcnn_ray.encoders.cloning import CloningSettings
    from mcnn_ray.encoders.encoder import Encoder

__all__ = ["encoder_app"]

encoder_app = typer.Typer(no_args_is_help=True, help="Networks that turn images into what policies and memories see.")

Target = Annotated[Path, typer.Argument(help="Directory to write, e.g. runs/encoders/bc.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


@encoder_app.command()
def train(
    task: Annotated[str, typer.Argument(help="Catalogue name (mcnn tasks), or ENVIRONMENT@DATASET.")],
    directory: Target,
    architecture: Annotated[str, typer.Option("--architecture", help="small or resnet34.")] = "small",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Gradient steps.")] = 3000,
    batch_size: Annotated[int, typer.Option("--batch-size", min=2, help="Images a step.")] = 64,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Adam's, at first.")] = 1e-3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the training.")] = 0,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Minari id instead of the task's own.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Clone a task's demonstrations and keep the network's lower part; one that is there already stays.

    Example: mcnn encoder train carla-lane-v0 runs/encoders/bc --architecture small
    """
    from mcnn_ray.data.minari_store import task_demonstrations
    from mcnn_ray.encoders.cloning import CloningSettings, clone_task_encoder
    from mcnn_ray.encoders.encoder import write_encoder
    from mcnn_ray.tasks.catalogue import find_task

    found = find_task(task).with_dataset(dataset)
    settings = CloningSettings(
        architecture=architecture, steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed
    )
    demonstrations = task_demonstrations(found)
    there = None if overwrite else _same(directory, settings, demonstrations.sha256)
    if there is not None:
        _show(there, directory, as_json)
        return
    with StageProgress() as progress:
        encoder = clone_task_encoder(
            found, demonstrations, settings, lambda step: progress("training, steps", step, steps)
        )
    write_encoder(encoder, directory)
    _show(encoder, directory, as_json)


@encoder_app.command(name="import")
def import_checkpoint(
    checkpoint: Annotated[Path, typer.Argument(help="coiltraine's resnet34imnet10S1/checkpoints/660000.pth.")],
    directory: Target,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Take the paper's encoder out of a coiltraine checkpoint.

    Example: mcnn encoder import 660000.pth runs/encoders/cilrs
    """
    from mcnn_ray.encoders.coiltraine import read_coiltraine
    from mcnn_ray.encoders.encoder import write_encoder

    encoder = read_coiltraine(checkpoint)
    if directory.exists() and not overwrite:
        raise ConfigError(f"{directory} exists already; name another directory or pass --overwrite")
    write_encoder(encoder, directory)
    _show(encoder, directory, as_json)


@encoder_app.command()
def info(
    encoder: Annotated[str, typer.Argument(help="random-resnet34, random-small, or a directory.")],
    as_json: AsJson = False,
) -> None:
    """Say what an encoder is: source, architecture, hash of its weights, and what is known of its making.

    Example: mcnn encoder info runs/encoders/bc
    """
    from mcnn_ray.encoders.encoder import find_encoder

    _show(find_encoder(encoder), Path(encoder), as_json)


def _same(directory: Path, settings: CloningSettings, dataset_sha256: str) -> Encoder | None:
    """Return the encoder of a directory, if it was cloned so from the same; None where the directory is not there."""
    from dataclasses import asdict

    from mcnn_ray.encoders.encoder import read_encoder

    if not directory.exists():
        return None
    try:
        there = read_encoder(directory)
        known = {key: there.facts.get(key) for key in asdict(settings)}
        same = known == asdict(settings) and there.facts.get("dataset", {}).get("sha256") == dataset_sha256
    except ArtifactError:
        same = False
    if not same:
        raise ConfigError(
            f"{directory} holds something else than this encoder would be; name another directory or pass --overwrite"
        )
    return there


def _show(encoder: Encoder, directory: Path, as_json: bool) -> None:
    if as_json:
        print_json(encoder.description())
        return
    output_console.print(f"{directory}: {encoder.name}, sha256 {encoder.sha256}", highlight=False, soft_wrap=True)
    for name, value in encoder.facts.items():
        output_console.print(f"  {name}: {value}", highlight=False, soft_wrap=True)
