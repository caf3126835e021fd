"""What each method costs at the paper's sizes: a training step, an action, its parameters; one thread of this machine.

    python tests/benchmarks/measure_methods.py                # as a table
    python tests/benchmarks/measure_methods.py --rows 1000000 # 1nn and vinn among so many demonstrated steps

Times are medians. The rate of matrix products, measured in between, gives the share of the limit that each reaches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from mcnn_ray.config import SweepConfig
from mcnn_ray.data.collect import collect_episodes
from mcnn_ray.methods import METHODS
from mcnn_ray.policies.base import Policy, save_policy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.sweep.study import Study
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.training.learners import LEARNERS, make_pack
from mcnn_ray.training.step_shape import StepShape

_TASK = "door-expert-v1"
_EPISODES = 25


def _gflops() -> float:
    square, started, products = torch.ones(512, 512), time.perf_counter(), 0
    while time.perf_counter() - started < 0.5:
        square @ square
        products += 1
    return products * 2 * 512**3 / (time.perf_counter() - started) / 1e9


def _median_us(act: Callable[[], object], seconds: float) -> float:
    act()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - started < seconds:
        before = time.perf_counter()
        act()
        times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


def _act_us(policy: Policy, obs_ND: np.ndarray, batch: int, seconds: float) -> float:
    state, place = policy.start(range(batch)), 0

    def act() -> None:
        nonlocal state, place
        _, state = policy.act(obs_ND[place : place + batch], state)
        place = (place + batch) % (len(obs_ND) - batch)

    return _median_us(act, seconds)


def measure(study: Study, method: str, seconds: float) -> dict[str, str]:
    """Return a row of the table, as text by column."""
    config = SweepConfig.parse({"task": _TASK, "method": method, "constant_columns": "ignore"}, "this script")
    (member,) = config.members()
    obs_ND = study.demonstrations.observations_ND
    row = {"method": method}
    parameters = None
    with tempfile.TemporaryDirectory() as folder:
        study.learn_codebooks([member], Path(folder) / "cache")
        if member.trained:
            memories = [member.memory_key] if member.memory_key is not None else []
            pack = make_pack([member], study.training_data(member.data_key, memories, "cpu"))
            chunk = 1 if member.family in LEARNERS else 100
            step_s = _median_us(lambda: pack.train(chunk), seconds) / 1e6 / chunk
            dim, actions = obs_ND.shape[1], study.demonstrations.actions_NA.shape[1]
            if member.family in LEARNERS:
                flop = LEARNERS[member.family].cost(member, dim, actions).flop
            else:
                flop = StepShape(dim=dim, hidden=member.hidden, actions=actions, batch_size=member.batch_size or 0).flop
            parameters = pack.parameters(0)
            row |= {
                "steps/s": f"{1 / step_s:,.1f}",
                "GFLOP a step": f"{flop / 1e9:,.2f}",
                "of the limit": f"{100 * flop / step_s / 1e9 / _gflops():.0f} %",
            }
        policy = study.policy(member, parameters)
        save_policy(policy, Path(folder) / "policy")
        size = sum(path.stat().st_size for path in (Path(folder) / "policy").iterdir())
        row |= {"policy, MB": f"{size / 1e6:.2f}"}
        for name, batch in (("one action, us", 1), ("of 8, us", 8)):
            row |= {name: f"{_act_us(policy, obs_ND, batch, seconds / 2):,.0f}"}
    return row


def measure_neighbours(rows: int, seconds: float) -> list[dict[str, str]]:
    """Return rows of `1nn` and `vinn` among many steps: hammer's, again and again with 2 % of noise."""
    task = CATALOGUE["hammer-expert-v1"]
    shown = collect_episodes(task, 100, seed=0)
    rng = np.random.default_rng(0)
    obs_ND = np.resize(shown.observations_ND, (rows, shown.observations_ND.shape[1])).astype(np.float32)
    obs_ND += 0.02 * shown.observations_ND.std(0) * rng.standard_normal(obs_ND.shape, dtype=np.float32)
    config = SweepConfig.parse({"task": task.id, "method": "1nn", "constant_columns": "ignore"}, "this script")
    study = make_study(config, task, shown)
    actions_NA = np.resize(shown.actions_NA, (rows, shown.actions_NA.shape[1]))
    held_out = collect_episodes(task, 5, seed=5000).observations_ND
    found = []
    for name, neighbours in (("1nn", 1), ("vinn", 10)):
        policy = NearestPolicy(
            {}, study.standardiser, study.action_scale, study.standardiser(obs_ND), actions_NA, neighbours
        )
        row = {"method": f"{name}, {rows:,} steps of {obs_ND.shape[1]} numbers"}
        for column, batch in (("one action, us", 1), ("of 8, us", 8)):
            row |= {column: f"{_act_us(policy, held_out, batch, seconds):,.0f}"}
        found.append(row)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement, about")
    parser.add_argument("--rows", type=int, help="measure neighbours among so many steps instead")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)  # policies multiply in numpy
    if asked.rows:
        found = measure_neighbours(asked.rows, asked.seconds)
    else:
        task = CATALOGUE[_TASK]
        config = SweepConfig.parse({"task": _TASK, "constant_columns": "ignore"}, "this script")
        study = make_study(config, task, collect_episodes(task, _EPISODES, seed=0))
        found = [measure(study, method, asked.seconds) for method in METHODS]
    columns = list(dict.fromkeys(column for row in found for column in row))
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in found:
        table.add_row(*(row.get(column, "") for column in columns))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
