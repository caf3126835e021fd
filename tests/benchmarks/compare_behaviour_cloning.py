"""Compare behaviour cloning of other libraries with ours: same data, network, batch and optimiser, one thread each.

    python tests/benchmarks/compare_behaviour_cloning.py --environments runs/peers

A 39-256-256-28 rectified network, batches of 256, Adam at 3e-4, on 10,000 steps of the packaged door expert; 300 steps
to warm up, 3,000 timed. Every run is a process of its own; the rounds are interleaved. Each peer lives in a virtual
environment of its own under --environments, made on the first call and used again. pip's own settings say where the
packages come from: where torch is a CUDA build, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu is smaller.
The exit status is 1 where somebody's error on the data is not the same, so that the speeds are not of the same work.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

from mcnn_ray.artifacts import write_text
from mcnn_ray.bench import made_trajectories
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.terminal import AsJson, error_console, output_console, print_json

# torch and numpy are those of constraints.txt; the rest is what these releases of the peers ask for.
TORCH = "torch==2.13.0"
PINS = {
    "d3rlpy": ("d3rlpy==2.8.1", "gymnasium==1.0.0", "gym==0.26.2", "numpy==2.4.6"),
    "imitation": ("imitation==1.0.1", "stable-baselines3==2.2.1", "gymnasium==0.29.1", "numpy==2.4.6"),
}
SAME_WORK = 0.05  # by how much a mean squared error may differ from ours, as a share of ours
DISTURBED = 0.95  # processor time over wall time below which a process had to wait for others

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One row of the table.

    Attributes:
        name: shown.
        worker: its file beside this one.
        environment: key of `PINS`, or None for the Python that runs this.
        objective: what it minimises.
        flags: for the worker.
    """

    name: str
    worker: str
    environment: str | None = None
    objective: str = "squared error"
    flags: tuple[str, ...] = ()


LIKELIHOOD = "-log-probability"
OURS = Contestant(name="mcnn-ray, pack of one", worker="cloning_mcnn.py")
CONTESTANTS = (
    Contestant(name="d3rlpy BC, as it comes", worker="cloning_d3rlpy.py", environment="d3rlpy"),
    Contestant(
        name="d3rlpy BC, no bar, no files", worker="cloning_d3rlpy.py", environment="d3rlpy", flags=("--quiet",)
    ),
    Contestant(
        name="imitation BC, as it comes",
        worker="cloning_imitation.py",
        environment="imitation",
        objective=LIKELIHOOD,
    ),
    Contestant(
        name="imitation BC, no bar",
        worker="cloning_imitation.py",
        environment="imitation",
        objective=LIKELIHOOD,
        flags=("--quiet",),
    ),
    Contestant(name="eager loop of the paper's code", worker="cloning_eager.py"),
    OURS,
)


def checked_run(command: Sequence[str | Path], what: str, **options: Any) -> str:
    """Run a command and return its standard output; end this program with what it said when it fails."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise SystemExit(f"{what} failed with exit status {done.returncode}:\n{said}")
    return done.stdout


def peer_python(folder: Path, peer: str, pins: Sequence[str], alone: Sequence[str] = ()) -> Path:
    """Return the Python of a peer's environment, which is made when it is not there as pinned.

    Args:
        folder: of the environments.
        peer: name of its own.
        pins: packages beside torch.
        alone: packages that are installed without what they ask for.
    """
    place = folder.absolute() / peer
    python, marker = place / "bin" / "python", place / "pins.txt"
    pinned = "\n".join((f"python {sys.version.split()[0]}", TORCH, *pins, *alone)) + "\n"
    if marker.is_file() and marker.read_text() == pinned:
        return python
    if place.exists() and not (place / "pyvenv.cfg").is_file():
        raise SystemExit(f"{place} exists and is no virtual environment; name another folder with --environments")
    error_console.print(f"installing {(*alone, *pins)[0]} into {place} (once, some minutes)", highlight=False)
    venv.EnvBuilder(with_pip=True, clear=True).create(place)
    steps = [(TORCH,), (TORCH, *pins)]  # torch first, so that nothing else chooses its build
    for packages in [*steps, ("--no-deps", *alone)] if alone else steps:
        checked_run([python, "-m", "pip", "install", "--quiet", *packages], f"pip install {' '.join(packages)}")
    write_text(marker, pinned)
    return python


def write_data(file: Path, episodes: int, made: bool) -> tuple[str, int]:
    """Write what all learn from: standardised observations, actions in [-1, 1], ends of episodes.

    Returns:
        What it is, and its rows.
    """
    if made:
        rows = made_trajectories(200 * episodes, 39 + 28, seed=0)
        obs_ND, actions_NA = rows[:, :39], np.tanh(rows[:, 39:])
        ends_N = np.arange(1, len(rows) + 1) % 200 == 0
        source = "made trajectories"
    else:
        demonstrations = collect_episodes(find_task("door-expert-v1"), episodes)
        obs_ND, actions_NA = demonstrations.observations_ND, demonstrations.actions_NA
        ends_N = np.zeros(demonstrations.steps, dtype=bool)
        ends_N[demonstrations.offsets[1:] - 1] = True
        source = f"{episodes} episodes of the packaged door expert"
    obs_ND = np.ascontiguousarray(Standardiser.fit(obs_ND)(obs_ND))
    np.savez(file, observations=obs_ND, actions=np.ascontiguousarray(actions_NA), ends=ends_N)
    return source, len(obs_ND)


def run_once(contestant: Contestant, python: Path, data: Path, flags: list[str]) -> dict[str, Any]:
    """Train once in a fresh process and return what its worker printed last."""
    environment = {**os.environ, **ONE_THREAD, "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as scratch:  # peers write log files into the working or the temporary folder
        command: list[str | Path] = [python, Path(__file__).parent / contestant.worker, data, *flags, *contestant.flags]
        said = checked_run(command, contestant.name, cwd=scratch, env={**environment, "TMPDIR": scratch})
    result: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return result


def summary(contestant: Contestant, runs: list[dict[str, Any]], our_runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of the results: medians and ranges over the rounds, beside ours."""
    speeds = [run["steps_per_s"] for run in runs]
    speed = statistics.median(speeds)
    cpu_speed, our_cpu_speed = (
        statistics.median(run["steps_per_s"] / run["cpu_share"] for run in some) for some in (runs, our_runs)
    )
    mse, our_mse = (statistics.median(run["mse"] for run in some) for some in (runs, our_runs))
    return {
        "name": contestant.name,
        "objective": contestant.objective,
        "steps_per_s": speed,
        "steps_per_s_min": min(speeds),
        "steps_per_s_max": max(speeds),
        "ours_over_it": statistics.median(run["steps_per_s"] for run in our_runs) / speed,
        "ours_over_it_by_cpu_time": our_cpu_speed / cpu_speed,
        "cpu_share_min": min(run["cpu_share"] for run in runs),
        "mse": mse,
        "mse_over_ours": mse / our_mse,
        "same_work": abs(mse / our_mse - 1) <= SAME_WORK,
        "versions": runs[0]["versions"],
        "runs": runs,
    }


def processor() -> str:
    """Return the processor's name and the number of cores this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {len(os.sched_getaffinity(0))} cores"


def show(result: dict[str, Any]) -> None:
    """Print the table and what it rests on."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading, align in (
        ("one thread", "left"),
        ("steps/s", "right"),
        ("range", "right"),
        ("ours / it", "right"),
        ("by CPU time", "right"),
        ("on core", "right"),
        ("error (MSE)", "right"),
        ("/ ours", "right"),
        ("minimises", "left"),
    ):
        table.add_column(heading, justify=align, no_wrap=heading != "minimises")  # type: ignore[arg-type]
    for row in result["results"]:
        table.add_row(
            row["name"],
            f"{row['steps_per_s']:,.0f}",
            f"{row['steps_per_s_min']:,.0f} - {row['steps_per_s_max']:,.0f}",
            f"{row['ours_over_it']:.2f}",
            f"{row['ours_over_it_by_cpu_time']:.2f}",
            f"{row['cpu_share_min']:.0%}",
            f"{row['mse']:.4f}",
            f"{row['mse_over_ours']:.3f}",
            row["objective"],
        )
    output_console.print(table)
    output_console.print(
        f"{result['processor']}; {result['data']}, {result['rows']:,} rows; {result['warm_up']:,} steps to warm up, "
        f"{result['steps']:,} timed; median of {result['rounds']} interleaved rounds, seeds from 0.\n"
        "By CPU time: the same ratio with processor for wall time. On core: least share of wall time that a run had a "
        "core. Error: of the deterministic action on all rows after all steps.",
        highlight=False,
    )
    for row in result["results"]:
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        output_console.print(f"{row['name']}: {versions}", highlight=False)


def warn(result: dict[str, Any]) -> None:
    """Say on standard error where the comparison cannot be trusted."""
    for row in result["results"]:
        faults = [] if row["same_work"] else [f"its error is {row['mse_over_ours']:.2f} times ours: not the same work"]
        if row["cpu_share_min"] < DISTURBED:
            faults.append(f"it had a core for only {row['cpu_share_min']:.0%} of a run: other programs disturbed it")
        for fault in faults:
            error_console.print(f"{row['name']}: {fault}", highlight=False, soft_wrap=True)


def compare(
    environments: Annotated[Path, typer.Option(help="Folder of the peers' virtual environments.")] = Path("runs/peers"),
    episodes: Annotated[int, typer.Option(min=2, help="Of 200 steps each.")] = 50,
    made: Annotated[bool, typer.Option("--made", help="Learn from made trajectories; needs no simulator.")] = False,
    warm_up: Annotated[int, typer.Option(min=1, help="Steps before the clock starts.")] = 300,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps.")] = 3000,
    rounds: Annotated[int, typer.Option(min=1, help="Each trains everyone once, with its own seed.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare behaviour cloning of other libraries with ours, on one thread."""
    pythons: dict[str | None, Path] = {peer: peer_python(environments, peer, pins) for peer, pins in PINS.items()}
    pythons[None] = Path(sys.executable)
    runs: dict[str, list[dict[str, Any]]] = {contestant.name: [] for contestant in CONTESTANTS}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        source, rows = write_data(data, episodes, made)
        for seed in range(rounds):
            flags = ["--warm-up", str(warm_up), "--steps", str(steps), "--seed", str(seed)]
            for contestant in CONTESTANTS:
                run = run_once(contestant, pythons[contestant.environment], data, flags)
                runs[contestant.name].append(run)
                error_console.print(
                    f"round {seed + 1} of {rounds}: {contestant.name}, {run['steps_per_s']:,.0f} steps/s",
                    highlight=False,
                )
    result: dict[str, Any] = {
        "processor": processor(),
        "data": source,
        "rows": rows,
        "warm_up": warm_up,
        "steps": steps,
        "rounds": rounds,
        "results": [summary(contestant, runs[contestant.name], runs[OURS.name]) for contestant in CONTESTANTS],
    }
    if as_json:
        print_json(result)
    else:
        show(result)
    warn(result)
    if not all(row["same_work"] for row in result["results"]):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(compare)
