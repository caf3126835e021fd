"""`mcnn promote` and `mcnn export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.terminal import (
    DEFAULT_STORAGE,
    AsJson,
    Storage,
    TrustedBackbone,
    error_console,
    output_console,
    print_json,
)

if TYPE_CHECKING:
    from mcnn_ray.promotion import Promotion

__all__ = ["export", "promote"]


def promote(
    what: Annotated[str, typer.Argument(help="A sweep's name, folder or MLflow run; or the run of one member.")],
    name: Annotated[str | None, typer.Option("--name", help="Of the registered model [default: the task's].")] = None,
    alias: Annotated[str, typer.Option("--alias", help="That shall point to it.")] = "champion",
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Register the best member of a sweep in MLflow under an alias.

    Example: mcnn promote quickstart --alias champion
    """
    from mcnn_ray.promotion import promote as register

    promotion = register(what, storage, name, alias)
    if as_json:
        print_json(promotion.to_json())
    else:
        _show(promotion)
    for note in promotion.notes:
        error_console.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _show(promotion: Promotion) -> None:
    replaced = f", before version {promotion.replaces}" if promotion.replaces else ""
    results = [f"{name} {text}" for name, text in promotion.intervals().items()]
    for line in (
        f"{promotion.model}: version {promotion.version}{replaced}",
        f"member: {promotion.member}, run {promotion.run_id}",
        f"chosen: {promotion.chosen}",
        f"results: {', '.join(results)} (mean and 95 % interval, on the seeds that are reported)",
    ):
        output_console.print(line, markup=False, highlight=False, soft_wrap=True)


def export(
    policy: Annotated[
        str, typer.Argument(help="Policy directory, id of an MLflow run, or a registered model: models:/NAME@ALIAS.")
    ],
    file: Annotated[Path, typer.Argument(help="To write, with the ending .onnx.")],
    backbone: TrustedBackbone = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Write a policy as an ONNX file, and compare what it answers with the policy.

    Example: mcnn export models:/door-expert-v1@champion door.onnx
    """
    from mcnn_ray.export import TOLERANCE, compare_exported, export_policy
    from mcnn_ray.policies.loading import load_policy
    from mcnn_ray.registry import find_policy

    if file.suffix != ".onnx":
        raise ConfigError(f"{file} does not end in .onnx, the one format that policies are exported to")
    loaded = load_policy(find_policy(policy, storage), backbone)
    export_policy(loaded, file)
    difference = compare_exported(loaded, file)
    if as_json:
        print_json({"file": str(file), "bytes": file.stat().st_size, "largest_difference": difference})
    else:
        checked = (
            "not compared with the policy: onnxruntime is not installed"
            if difference is None
            else f"largest difference from the policy: {difference:.1e} of half an action's range"
        )
        output_console.print(f"{file}: {file.stat().st_size:,} bytes, {checked}", highlight=False, soft_wrap=True)
    if difference is not None and not difference <= TOLERANCE:
        raise ArtifactError(f"{file} answers otherwise than the policy, by {difference:.1e} of half an action's range")
