"""The flags that `mcnn train` and `mcnn sweep` share, one for each key of `SweepConfig`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "AtOnce",
    "Backbone",
    "Batch",
    "Beta",
    "Clip",
    "Constant",
    "CurveEpisodes",
    "Dataset",
    "Demonstrations",
    "Distance",
    "Encoder",
    "Episodes",
    "Every",
    "Fraction",
    "Halving",
    "Hidden",
    "LBound",
    "Lambda",
    "MemoryAction",
    "Method",
    "MinEpisodes",
    "Name",
    "Options",
    "Preset",
    "Rate",
    "Search",
    "Seeds",
    "Steps",
    "StopEarly",
    "Trials",
    "Ways",
    "Workers",
]

Method = Annotated[str | None, typer.Option("--method", help="As mcnn methods lists them; a list makes several.")]
Lambda = Annotated[str | None, typer.Option("--lambda", help="Rate at which a memory loses weight with distance.")]
LBound = Annotated[str | None, typer.Option("--L", help="Bound of the network's part.")]
Fraction = Annotated[str | None, typer.Option("--memory-fraction", help="Memories over demonstration steps.")]
Ways = Annotated[str | None, typer.Option("--memories", help="neural-gas, random, k-means or k-center.")]
MemoryAction = Annotated[str | None, typer.Option("--memory-action", help="expert, or mean over a memory's cell.")]
Distance = Annotated[
    str | None, typer.Option("--distance", help="euclidean, per-dimension or median: units that lambda is given in.")
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="paper [default], official-code, tuned, kitchen or driving: what is not given."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE of a method's own (mcnn methods); NAME=A,B makes several."),
]
Seeds = Annotated[str | None, typer.Option("--seed", help="Training seed.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Gradient steps [default: 20000; the paper: 1000000].")]
Rate = Annotated[str | None, typer.Option("--learning-rate", help="[default: the preset's]")]
Beta = Annotated[str | None, typer.Option("--beta-schedule", help="paper or official-code.")]
Backbone = Annotated[str | None, typer.Option("--backbone", help="A torch.nn.Module class to train, module.Class.")]
Batch = Annotated[int | None, typer.Option("--batch-size", help="Transitions a step [default: the preset's].")]
Hidden = Annotated[str | None, typer.Option("--hidden", help="Widths of the hidden layers [default: the preset's].")]
StopEarly = Annotated[
    bool | None, typer.Option("--stop-early", help="End the rollouts of settings that are separated from the best.")
]
Episodes = Annotated[int | None, typer.Option("--episodes", help="Rollouts of each member [default: 20].")]
Demonstrations = Annotated[str | None, typer.Option("--demonstrations", help="Learn from so many episodes only.")]
Dataset = Annotated[str | None, typer.Option("--dataset", help="Minari id to take instead of the task's own.")]
Encoder = Annotated[
    str | None, typer.Option("--encoder", help="Of images: random-resnet34, random-small, or a directory.")
]
Clip = Annotated[bool | None, typer.Option("--clip-actions", help="Clip demonstrated actions to the bounds.")]
Constant = Annotated[str | None, typer.Option("--constant-columns", help="refuse or ignore.")]
MinEpisodes = Annotated[int | None, typer.Option("--min-episodes", help="Refuse datasets with fewer [default: 2].")]
Every = Annotated[
    int | None, typer.Option("--evaluate-every", help="Roll members out on their way, every so many steps.")
]
CurveEpisodes = Annotated[int | None, typer.Option("--curve-episodes", help="Of each of these [default: 10].")]
Workers = Annotated[int | None, typer.Option("--workers", help="Of Ray Train; 1 trains packs as Tune trials.")]
Search = Annotated[str | None, typer.Option("--search", help="grid [default], or optuna: draw from ranges and lists.")]
Trials = Annotated[int | None, typer.Option("--trials", help="Settings drawn for each method [default: 32].")]
AtOnce = Annotated[int | None, typer.Option("--trials-at-once", help="Of them, trained together [default: 8].")]
Halving = Annotated[
    int | None, typer.Option("--halving", help="Go on with one of so many settings, again and again, e.g. 3.")
]
Name = Annotated[str | None, typer.Option("--name", help="Of the sweep and its folder.")]
