"""Compare d3rlpy's CQL with ours: losses from the same weights and random numbers, and what the trained policies earn.

    python tests/benchmarks/compare_cql.py --environments runs/peers

First, at the paper's sizes: both start from our weights, take the same batches and seed torch alike before each step,
so that both draw the same actions; every loss of every step must agree. Then both train policies of a smaller network
on the same demonstrations of a packaged expert, each with its own initialisation, batches and noise, and the policies
are rolled out from the same starts. d3rlpy lives in the virtual environment of `compare_behaviour_cloning.py`. The exit
status is 1 where losses differ, or where the mean return of one lies outside the interval of the other.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from compare_behaviour_cloning import ONE_THREAD, PINS, checked_run, peer_python

from mcnn_ray.config import SweepConfig
from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.member import Member, make_member
from mcnn_ray.policies.base import Policy
from mcnn_ray.rollout.episode import EVALUATION_SEED, LOCKSTEP, run_episodes
from mcnn_ray.stats import mean_interval, rate_interval
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.sweep.study import Study
from mcnn_ray.tasks.catalogue import Task, find_task
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.terminal import AsJson, error_console, output_console, print_json
from mcnn_ray.training.cql import CqlLearner
from mcnn_ray.training.learner import LearnerPack
from mcnn_ray.training.sampling import sample_rows

AGREES = 1e-4  # by how much a loss may differ, as a share of it or, below 1, absolutely
SMALL = {"learning_rate": 3e-4, "batch_size": 64, "hidden": (64, 64, 64)}


def run_peer(python: Path, what: str, asked: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Have the worker do something in d3rlpy's environment; return its arrays."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(given, asked=json.dumps(asked), **arrays)
        worker = Path(__file__).parent / "cql_d3rlpy.py"
        checked_run([python, worker, what, given, found], "d3rlpy", cwd=folder, env={**os.environ, **ONE_THREAD})
        with np.load(found) as read:
            return dict(read)


def compare_losses(python: Path, study: Study, member: Member, steps: int) -> dict[str, float]:
    """Return the largest difference of each loss, as a share of it or absolutely below 1, and of the weights."""
    learner = CqlLearner(member, study.training_data(member.data_key, (), "cpu"))
    modules = {"actor": learner.actor, "critics": learner.critics, "targets": learner.targets}

    def weights() -> dict[str, Any]:
        return {
            f"{name}.{i}": parameter.detach().numpy().copy()
            for name, module in modules.items()
            for i, parameter in enumerate(module.parameters())
        }

    drawn_SB = sample_rows(torch.tensor([0]), 0, steps, learner.batch, torch.tensor([learner.choices]))[:, 0]
    rows_SB, next_SB, ends_SB = (table[drawn_SB] for table in (learner._rows_K, learner._next_K, learner._ends_K))
    data = learner.data
    peer = run_peer(
        python,
        "losses",
        member.parameters(),
        {
            "observations": data.obs_ND[rows_SB].numpy(),
            "actions": data.actions_NA[rows_SB].numpy(),
            "next_observations": data.obs_ND[next_SB].numpy(),
            "ends": ends_SB.numpy(),
            "seeds": np.arange(steps),
            **weights(),
        },
    )
    ours: dict[str, list[float]] = {}
    for step, drawn_B in enumerate(drawn_SB):
        torch.manual_seed(step)
        learner.learn(drawn_B, step)
        for name, loss in learner.parts.items():
            ours.setdefault(name, []).append(loss.item())
    differences = {
        name: float(np.max(np.abs(peer[name] - values) / np.maximum(1.0, np.abs(values))))
        for name, values in ours.items()
    }
    return differences | {"weights": max(float(np.abs(peer[name] - array).max()) for name, array in weights().items())}


def train_both(python: Path, study: Study, member: Member) -> dict[str, Policy]:
    """Return the policies that the two train."""
    data = study.training_data(member.data_key, (), "cpu")
    pack = LearnerPack([member], data, CqlLearner)
    pack.train(member.steps)
    last_E = data.offsets[1:] - 1
    ends_N, cut_N = (np.zeros(len(data.obs_ND), dtype=np.float32) for _ in range(2))
    ends_N[last_E], cut_N[last_E] = data.successes, ~data.successes
    arrays = {"observations": data.obs_ND.numpy(), "actions": data.actions_NA.numpy(), "ends": ends_N, "cut": cut_N}
    layers = run_peer(python, "train", member.parameters(), arrays)
    return {"mcnn-ray": study.policy(member, pack.parameters(0)), "d3rlpy": study.policy(member, layers)}


def roll_out(policy: Policy, task: Task, envs: list[Any], episodes: int) -> tuple[list[float], int]:
    """Return the returns of episodes, and how many succeeded."""
    seeds = range(EVALUATION_SEED, EVALUATION_SEED + episodes)
    records = [
        rollout.record
        for first in range(0, episodes, LOCKSTEP)
        for rollout in run_episodes(policy, task, envs, seeds[first : first + LOCKSTEP], "")
    ]
    return [record.episode_return for record in records], sum(bool(record.success) for record in records)


def compare_returns(python: Path, study: Study, members: list[Member], episodes: int) -> dict[str, Any]:
    """Train every member with both and roll them out; return interval, success and returns of each."""
    envs = [make_environment(study.task) for _ in range(LOCKSTEP)]
    returns: dict[str, list[list[float]]] = {}
    successes: dict[str, int] = {}
    for member in members:
        for name, policy in train_both(python, study, member).items():
            earned, succeeded = roll_out(policy, study.task, envs, episodes)
            returns.setdefault(name, []).append(earned)
            successes[name] = successes.get(name, 0) + succeeded
            error_console.print(f"seed {member.seed}: {name}, mean return {np.mean(earned):.1f}", highlight=False)
    for env in envs:
        env.close()
    return {
        name: {
            "return": mean_interval(table),
            "success": rate_interval(successes[name], len(members) * episodes),
            "by_seed": [float(np.mean(row)) for row in table],
        }
        for name, table in returns.items()
    }


def compare(
    environments: Annotated[Path, typer.Option(help="Folder of the peers' virtual environments.")] = Path("runs/peers"),
    task: Annotated[str, typer.Option(help="With a packaged expert.")] = "pen-expert-v1",
    demonstrations: Annotated[int, typer.Option(min=2, help="How many are recorded.")] = 25,
    loss_steps: Annotated[int, typer.Option(min=1, help="Of which losses are compared.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Of training.")] = 4000,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each.")] = 3,
    episodes: Annotated[int, typer.Option(min=2, help="Rollouts of each policy.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Compare CQL of d3rlpy with ours, on one thread."""
    torch.set_num_threads(1)
    python, known = peer_python(environments, "d3rlpy", PINS["d3rlpy"]), find_task(task)
    config = SweepConfig.parse({"task": task, "method": "cql-sparse", "steps": 1}, "flags")
    study = make_study(config, known, collect_episodes(known, demonstrations))
    differences = {}
    for name, options in (("tuned alpha", {}), ("fixed alpha", {"lagrange": 0})):
        member = make_member(method="cql-sparse", steps=1, options=options)
        differences[name] = compare_losses(python, study, member, loss_steps)
        error_console.print(f"{name}, largest differences: {differences[name]}", highlight=False)
    members = [make_member(method="cql-sparse", steps=steps, seed=seed, **SMALL) for seed in range(seeds)]
    trained = compare_returns(python, study, members, episodes)
    ours, theirs = (trained[name]["return"] for name in ("mcnn-ray", "d3rlpy"))
    agree = max(value for part in differences.values() for name, value in part.items() if name != "weights") <= AGREES
    within = ours.covers(theirs.mean) and theirs.covers(ours.mean)
    if as_json:
        rows = {
            name: row | {"return": asdict(row["return"]), "success": asdict(row["success"])}
            for name, row in trained.items()
        }
        print_json({"differences": differences, "trained": rows, "losses_agree": agree, "returns_agree": within})
    for name, row in () if as_json else trained.items():
        output_console.print(
            f"{name}: return {row['return'].text(0)}, success {row['success'].text(2)}, returns by seed "
            + ", ".join(f"{mean:.0f}" for mean in row["by_seed"]),
            highlight=False,
        )
    sys.exit(0 if agree and within else 1)


if __name__ == "__main__":
    typer.run(compare)
