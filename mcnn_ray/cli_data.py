"""`mcnn data`: demonstrations and rollouts into Minari, and what is in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich import box
from rich.table import Table

from mcnn_ray.terminal import AsJson, StageProgress, TrustedBackbone, TrustedModule, output_console, print_json

if TYPE_CHECKING:
    from mcnn_ray.data.demonstrations import Demonstrations

__all__ = ["data_app"]

_SHOWN_COLUMNS = 20

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Demonstrations: record, import, look at.")

TaskName = Annotated[str, typer.Argument(help="Catalogue name (mcnn tasks), or ENVIRONMENT@DATASET.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a dataset of that id.")]


@data_app.command()
def collect(
    task: TaskName,
    episodes: Annotated[int, typer.Option("--episodes", help="How many.")] = 25,
    expert: Annotated[str | None, typer.Option("--expert", help="Packaged expert [default: the task's].")] = None,
    noise: Annotated[bool, typer.Option("--noise/--no-noise", help="Act with the expert's noise, as in D4RL.")] = True,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the first episode.")] = 0,
    least_return: Annotated[
        float | None,
        typer.Option("--least-return", help="Keep episodes of no less; further ones are recorded [default: keep all]."),
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Minari id to write [default: the task's].")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Record an expert into a Minari dataset.

    Example: mcnn data collect door-expert-v1 --episodes 25
    """
    from mcnn_ray.data.minari_store import check_free
    from mcnn_ray.data.recording import record_expert
    from mcnn_ray.tasks.catalogue import find_task

    found = find_task(task)
    target = dataset or found.datasets[-1]
    check_free(target, overwrite)
    with StageProgress() as progress:
        record_expert(
            found,
            episodes,
            target,
            lambda done: progress("recording, episodes", done, episodes),
            expert=expert,
            noise=noise,
            seed=seed,
            least_return=least_return,
            overwrite=overwrite,
        )
    _show(target, as_json=False)


@data_app.command()
def clone(
    task: TaskName,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of training the policy that is rolled out.")] = 20_000,
    episodes: Annotated[
        int | None, typer.Option("--episodes", help="Rollouts [default: as many as demonstrations].")
    ] = None,
    demonstrations: Annotated[
        int | None, typer.Option("--demonstrations", help="Clone so many episodes only [default: all].")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the training.")] = 0,
    source: Annotated[
        str | None, typer.Option("--source", help="Minari id to clone [default: the task's first].")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Minari id to write [default: that of the task's cloned variant].")
    ] = None,
    clip_actions: Annotated[bool, typer.Option("--clip-actions", help="Clip demonstrated actions to bounds.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make cloned demonstrations: half demonstrations, half rollouts of behaviour cloning on them, as in D4RL.

    Example: mcnn data clone door-human-v1 --clip-actions
    """
    from mcnn_ray.config import SweepConfig
    from mcnn_ray.data.minari_store import check_free, write_minari
    from mcnn_ray.errors import ConfigError
    from mcnn_ray.sweep.cloning import clone_demonstrations
    from mcnn_ray.tasks.catalogue import cloned_variant, find_task
    from mcnn_ray.tasks.environments import make_environment

    found = find_task(task)
    variant = cloned_variant(found)
    target = dataset or (variant.datasets[-1] if variant is not None else None)
    if target is None:
        raise ConfigError(f"{task} has no cloned variant in the catalogue; name the dataset to write with --dataset")
    check_free(target, overwrite)
    values = {"task": task, "dataset": source, "method": "bc", "steps": steps, "seed": seed}
    values |= {"demonstrations": demonstrations, "clip_actions": clip_actions}
    with StageProgress() as progress:
        cloned = clone_demonstrations(SweepConfig.parse(values, "flags"), episodes, progress)
    description = f"{cloned.source}: half demonstrations, half rollouts, by mcnn-ray; {found.reward} reward"
    write_minari(cloned, target, make_environment(found), description=description, overwrite=overwrite)
    _show(target, as_json=False)


@data_app.command(name="import")
def import_file(
    file: Annotated[
        Path,
        typer.Argument(
            help="D4RL HDF5 (.hdf5, .h5) or .npz with observations, actions, rewards; for kitchen-relay-v0 a folder or "
            ".zip of .mjl logs."
        ),
    ],
    dataset: Annotated[str, typer.Argument(help="Minari id to write, e.g. mcnn/door/human-v0.")],
    task: Annotated[str, typer.Option("--task", help="Task whose environment the demonstrations belong to.")],
    horizon: Annotated[
        int | None, typer.Option("--horizon", min=1, help="Cut there where the file tells no ends.")
    ] = None,
    clip_actions: Annotated[bool, typer.Option("--clip-actions", help="Clip actions to the bounds.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Import a demonstration file into a Minari dataset.

    Example: mcnn data import door_human.npz mcnn/door/human-v0 --task door-human-v1 --clip-actions
    """
    from mcnn_ray.data.minari_store import check_free, write_minari
    from mcnn_ray.data.readers import read_file
    from mcnn_ray.tasks.catalogue import find_task
    from mcnn_ray.tasks.environments import make_environment

    found = find_task(task)
    check_free(dataset, overwrite)
    env = make_environment(found)
    space = env.action_space
    recorded = read_file(file, horizon).check_actions(space.low, space.high, clip=clip_actions)  # type: ignore[attr-defined]
    write_minari(recorded, dataset, env, description=f"imported from {file.name} by mcnn-ray", overwrite=overwrite)
    _show_facts(replace(recorded, source=dataset), as_json=False)


@data_app.command()
def export(
    rollouts: Annotated[
        Path, typer.Argument(help="Parquet file of episodes, e.g. members/ID/episodes.parquet, or a policy directory.")
    ],
    dataset: Annotated[str, typer.Argument(help="Minari id to write, e.g. me/door/rollouts-v0.")],
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, help="Of a policy directory: roll out so many.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Directory of the policy that acted [default: beside the file].")
    ] = None,
    least_return: Annotated[
        float | None, typer.Option("--least-return", help="Leave out episodes of less [default: keep all].")
    ] = None,
    backbone: TrustedBackbone = None,
    trust_module: TrustedModule = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a policy's rollouts as a Minari dataset; each is run again and must earn what it earned.

    Example: mcnn data export runs/quickstart/members/0123456789ab/episodes.parquet me/door/rollouts-v0
    """
    from mcnn_ray.data.minari_store import check_free, write_minari
    from mcnn_ray.errors import ConfigError
    from mcnn_ray.rollout.export import rollouts_as_demonstrations
    from mcnn_ray.rollout.origin import origin_facts, policy_beside
    from mcnn_ray.rollout.records import read_rollouts
    from mcnn_ray.tasks.catalogue import find_recorded_task
    from mcnn_ray.tasks.environments import make_environment

    check_free(dataset, overwrite)
    if rollouts.is_dir() != (episodes is not None):
        raise ConfigError(
            f"{rollouts} is a folder: say with --episodes how often its policy is rolled out, or name a file"
            if episodes is None
            else f"{rollouts} is no policy directory: without --episodes all that it holds are exported"
        )
    with StageProgress() as progress:
        if episodes is None:
            recorded, directory = read_rollouts(rollouts), policy or policy_beside(rollouts)
        else:
            from mcnn_ray.sweep.evaluation import new_rollouts  # with Ray, which takes seconds

            recorded, directory = new_rollouts(rollouts, episodes, progress, backbone, trust_module), rollouts
        kept = [one for one in recorded if least_return is None or one.record.episode_return >= least_return]
        if not kept:
            raise ConfigError(f"none of the {len(recorded)} episodes of {rollouts} reaches the return {least_return:g}")
        task = find_recorded_task(kept[0].record.task, trust_module, rollouts)
        data = rollouts_as_demonstrations(
            kept,
            task,
            f"rollouts of {kept[0].record.member} on {task.id}",
            {
                **origin_facts(kept, directory, rollouts),
                **({} if least_return is None else {"least_return": least_return}),
            },
            lambda done: progress("exporting, episodes", done, len(kept)),
        )
    env = make_environment(task)
    write_minari(
        data, dataset, env, description=f"{data.source}, by mcnn-ray; {task.reward} reward", overwrite=overwrite
    )
    _show_facts(replace(data, source=dataset), as_json=False)


@data_app.command()
def info(
    name: Annotated[str, typer.Argument(help="Minari id, or a task's name.")],
    as_json: AsJson = False,
) -> None:
    """Show what is in a dataset: episodes, lengths, returns, ranges.

    Example: mcnn data info mcnn/door/expert-v0
    """
    _show(name, as_json)


def _show(name: str, as_json: bool) -> None:
    from mcnn_ray.data.minari_store import dataset_exists, read_minari, task_demonstrations
    from mcnn_ray.tasks.catalogue import CATALOGUE, find_task

    if name in CATALOGUE or "@" in name:
        data = task_demonstrations(find_task(name))
    elif dataset_exists(name) or "/" in name:
        data = read_minari(name)
    else:
        find_task(name)  # says which task or dataset is near
        return
    _show_facts(data, as_json)


def _show_facts(data: Demonstrations, as_json: bool) -> None:
    constant = np.flatnonzero(data.observations_ND.max(0) == data.observations_ND.min(0))
    facts = {
        "dataset": data.source,
        "episodes": data.episodes,
        "steps": data.steps,
        "episode_length_min": int(data.lengths.min()),
        "episode_length_max": int(data.lengths.max()),
        "return_mean": float(data.returns.mean()),
        "return_min": float(data.returns.min()),
        "return_max": float(data.returns.max()),
        "observation_numbers": data.observations_ND.shape[1],
        "action_numbers": data.actions_NA.shape[1],
        "action_min": float(data.actions_NA.min()),
        "action_max": float(data.actions_NA.max()),
        "constant_columns": constant.tolist(),
        "sha256": data.sha256,
        "provenance": data.provenance,
    }
    if as_json:
        print_json(facts)
        return
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if len(constant) > _SHOWN_COLUMNS:  # of images the sky
        facts["constant_columns"] = f"{len(constant)}, the first {constant[:_SHOWN_COLUMNS].tolist()}"
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else str(value))
    output_console.print(table)
