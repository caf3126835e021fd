"""`mcnn certify`: the guarantee of trained policies, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from mcnn_ray.core.certificate import GAP_ASSUMPTIONS, Certificate, Isolation, StatesChecked
from mcnn_ray.terminal import AsJson, StageProgress, TrustedBackbone, output_console, print_json

__all__ = ["certify", "sweep_lines"]


def certify(
    policy: Annotated[
        list[Path], typer.Argument(help="Policy directory; several of other seeds also give the measured width.")
    ],
    states: Annotated[
        int, typer.Option("--states", min=1, max=1_000_000, help="Random states of each distribution.")
    ] = 10_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random states.")] = 0,
    backbone: TrustedBackbone = None,
    as_json: AsJson = False,
) -> None:
    """Check the guarantee of a policy: exact at its memories, inside their cones; status 1 when it does not hold.

    Example: mcnn certify runs/quickstart/members/0123456789ab/policy
    """
    from mcnn_ray.certify import certify_directories

    with StageProgress() as progress:
        certificate = certify_directories(policy, states=states, seed=seed, backbone=backbone, watch=progress)
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
            "from the cones beyond float32 rounding; width bound: 2 L (1 - exp(-lambda d)) at the most isolated state; "
            "-: distances alone are known, actions were not checked"
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
    for measured in certificate.isolation:
        table.add_row(*_measured_cells(certificate, measured, several))
    output_console.print(table)
    for line in _lines(certificate):
        output_console.print(line, highlight=False, markup=False)


def _cells(found: StatesChecked, several: bool) -> list[str]:
    return [
        found.name,
        f"{found.states:,}" if found.states == found.drawn_from else f"{found.states:,} of {found.drawn_from:,}",
        f"{found.most_isolated_distance:.4g}",
        f"{found.cone_violation:.3g}",
        f"{found.cone_tolerance:.1e}",
        f"{found.width_bound:.4g}",
        *([f"{found.width:.4g}"] if several else []),
        "yes" if found.holds else f"no: {found.not_finite:,} not finite" if found.not_finite else "no",
    ]


def _measured_cells(certificate: Certificate, found: Isolation, several: bool) -> list[str]:
    return [
        f"{found.name}, {found.episodes:,} episodes",
        f"{found.states:,}",
        f"{found.most_isolated_distance:.4g}",
        "-",
        "-",
        f"{certificate.isolation_bound(found):.4g}",
        *(["-"] if several else []),
        "-",
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


def sweep_lines(certificates: Mapping[str, Certificate]) -> list[str]:
    """Return what there is to say of a sweep's certificates: whether they hold, and over which states.

    Args:
        certificates: by setting, at least one.
    """
    broken = [label for label, found in certificates.items() if not found.holds]
    told = f"does not hold for {', '.join(broken)}" if broken else "holds"
    sizes: dict[str, list[str]] = {}
    distances: dict[str, list[float]] = {}
    for found in certificates.values():
        sets: list[StatesChecked | Isolation] = [*found.checked, *found.isolation]
        for states in sets:
            sizes.setdefault(states.name, []).append(_size(states))
            distances.setdefault(states.name, []).append(states.most_isolated_distance)
    checked = dict.fromkeys(over.name for found in certificates.values() for over in found.checked)
    over = " and ".join(f"{name} ({_different(sizes[name])})" for name in checked)
    lines = [
        f"certificate: {told}, {len(certificates)} settings checked: exact at memories; inside the cones and, with "
        f"several seeds, within the width bound over {over}",
        "distance of the most isolated state, standardised units, least and greatest of the settings:",
    ]
    for name, values in distances.items():
        span = dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values)))
        lines.append(f"  {name} ({_different(sizes[name])}): {' to '.join(span)}")
    return lines


def _size(found: StatesChecked | Isolation) -> str:
    if isinstance(found, Isolation):
        return f"{found.episodes:,} episodes, {found.states:,} states"
    return f"{found.states:,} of {found.drawn_from:,} states"


def _different(texts: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(texts))
