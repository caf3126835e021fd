"""`mcnn bench rollout`, `mcnn bench inference` and `mcnn bench sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from mcnn_ray.terminal import AsJson, StageProgress, print_facts, print_json

__all__ = ["inference", "rollout", "sweep"]

Memories = Annotated[int, typer.Option("--memories", help="Codebook size.")]


def rollout(
    task: Annotated[str, typer.Option("--task", help="Catalogue name, with a packaged expert.")] = "door-expert-v1",
    policies: Annotated[int, typer.Option("--policies", help="How many are rolled out.")] = 8,
    episodes: Annotated[int, typer.Option("--episodes", help="Of each policy.")] = 20,
    memories: Memories = 1000,
    actors: Annotated[int, typer.Option("--actors", help="Rolling out at once.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Time rollouts against the simulator alone, stepped through the same actions on the same cores.

    Example: mcnn bench rollout --task door-expert-v1 --policies 8 --episodes 20
    """
    from mcnn_ray.bench_rollout import bench_rollout

    with StageProgress() as progress:
        found = bench_rollout(
            task, policies=policies, episodes=episodes, memories=memories, actors=actors, watch=progress
        )
    (print_json if as_json else print_facts)(found)


def inference(
    memories: Memories = 1000,
    dim: Annotated[int, typer.Option("--dim", help="Numbers of an observation.")] = 46,
    actions: Annotated[int, typer.Option("--actions", help="Numbers of an action.")] = 26,
    hidden: Annotated[str, typer.Option("--hidden", help="Widths of the network.")] = "256,256",
    repeats: Annotated[int, typer.Option("--repeats", help="Actions timed.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of everything made.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time one action: memory look-up, network and blend together, on one thread.

    Example: mcnn bench inference --memories 1000 --dim 46
    """
    from mcnn_ray.bench_inference import bench_inference
    from mcnn_ray.cli_bench_train import numbers

    found = bench_inference(memories, dim, repeats, actions=actions, hidden=numbers("--hidden", hidden), seed=seed)
    (print_json if as_json else print_facts)(found)


def sweep(
    trials: Annotated[int, typer.Option("--trials", help="That are timed.")] = 20,
    task: Annotated[str, typer.Option("--task", help="Catalogue name, with a packaged expert.")] = "door-expert-v1",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of members and demonstrations.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Time what a sweep adds to training and simulator, by trials of one step and episodes of their policies.

    Example: mcnn bench sweep --trials 20
    """
    from mcnn_ray.bench_sweep import bench_sweep

    with StageProgress() as progress:
        found = bench_sweep(task, trials=trials, seed=seed, watch=progress)
    (print_json if as_json else print_facts)(found)
