"""`mcnn certify`: the guarantee of trained policies, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from mcnn_ray.core.certificate import GAP_ASSUMPTIONS, Certificate, StatesChecked
from mcnn_ray.terminal import AsJson, StageProgress, output_console, print_json

__all__ = ["certify"]


def certify(
    policy: Annotated[
        list[Path], typer.Argument(help="Policy directory; several of other seeds also give the measured width.")
    ],
    states: Annotated[
        int, typer.Option("--states", min=1, max=1_000_000, help="Random states of each distribution.")
    ] = 10_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random states.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check the guarantee of a policy: exact at its memories, inside their cones; status 1 when it does not hold.

    Example: mcnn certify runs/quickstart/members/0123456789ab/policy
    """
    from mcnn_ray.certify import certify_directories

    with StageProgress() as progress:
        certificate = certify_directories(policy, states=states, seed=seed, watch=progress)
    if as_json:
        print_json({"policies": [str(path) for path in policy], **certificate.to_json()})
    else:
        _show(certificate)
    if not certificate.holds:
        raise typer.Exit(1)


def _show(certificate: Certificate) -> None:
    several = certificate.functions > 1
    table = Table(
        title=f"The certificate {'holds' if certificate.holds else 'DOES NOT HOLD'}",
        caption=(
            "distances in standardised units; the rest in units of half an action's range; outside: largest departure "
            "from the cones beyond float32 rounding; width bound: 2 L (1 - exp(-lambda d)) at the most isolated state"
        ),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("states")
    for name in ("n", "most isolated", "outside", "rounding", "width bound", *(["width"] if several else []), "holds"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in certificate.checked:
        table.add_row(*_cells(found, several))
    output_console.print(table)
    for line in _lines(certificate):
        output_console.print(line, highlight=False, markup=False)


def _cells(found: StatesChecked, several: bool) -> list[str]:
    return [
        found.name,
        f"{found.states:,}",
        f"{found.most_isolated_distance:.4g}",
        f"{found.cone_violation:.3g}",
        f"{found.cone_tolerance:.1e}",
        f"{found.width_bound:.4g}",
        *([f"{found.width:.4g}"] if several else []),
        "yes" if found.holds else f"no: {found.not_finite:,} not finite" if found.not_finite else "no",
    ]


def _lines(certificate: Certificate) -> list[str]:
    policies = "the policy" if certificate.functions == 1 else f"{certificate.functions} policies"
    reached = certificate.functions * (certificate.memories - certificate.repeated_memories)
    lines = [
        f"memories: {certificate.memories:,}, lambda {certificate.lambda_:g}, L {certificate.L:g}; {policies} returned "
        f"the stored action at {reached - certificate.inexact_memories:,} of {reached:,}"
    ]
    if certificate.repeated_memories:
        lines.append(f"memories at the place of an earlier one, never returned: {certificate.repeated_memories:,}")
    if certificate.gap_bound is None:
        lines.append(f"sub-optimality bound: not applicable, {certificate.gap_unknown}")
    else:
        lines.append(f"sub-optimality bound: {certificate.gap_bound:.4g}, assuming {'; '.join(GAP_ASSUMPTIONS)}")
    return [*lines, *(f"note: {note}" for note in certificate.notes)]
