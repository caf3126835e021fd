"""Gradient steps of packs a second on this machine, against the time that their matrix products alone take.

Everything is timed in processes of one thread, since two threads in one process run at one of two speeds by chance.
The limit and an eager loop are timed between the parts of each run, in the same process, so that the ratios hold also
on a machine that does other work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import torch

from mcnn_ray.bench import check_device
from mcnn_ray.bench_yardsticks import Readings, Yardsticks, made_buffer
from mcnn_ray.errors import ConfigError, McnnError
from mcnn_ray.member import Member, make_member
from mcnn_ray.training.data import NearestMemories, make_training_data
from mcnn_ray.training.pack import CHUNK_STEPS, Pack
from mcnn_ray.training.step_shape import StepShape

__all__ = ["WARM_UP_STEPS", "TrainBench", "bench_members", "bench_train"]

WARM_UP_STEPS = 200  # past the beta schedule's first 100, page faults and the capture of CUDA graphs
_PART_STEPS = 500  # between two readings of the limit
_LAMBDAS = (0.1, 1.0, 10.0)
_MEMORY_KEY = ("neural-gas", 0.1, 0, "expert", "euclidean")
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBench:
    """What is asked for.

    Attributes:
        members: how many, for each row of the results.
        steps: timed steps of each member.
        shape: of a step.
        rows: N, demonstration steps.
        processes: that share a row's members; None is one a core on a CPU, but no more than members.
        device: `cpu` or `cuda`.
        precision: `float32`, or `tf32` on `cuda`.
        seed: of data, initialisation and batches.
    """

    members: tuple[int, ...]
    steps: int
    shape: StepShape
    rows: int
    processes: int | None
    device: str
    precision: str
    seed: int

    def processes_of(self, members: int) -> int:
        """Return how many processes train a row of so many members."""
        if self.processes is not None:
            return self.processes
        return 1 if self.device != "cpu" else min(members, _cores())

    def check(self) -> None:
        """Raise ConfigError when it cannot be measured here."""
        check_device(self.device)
        if self.precision not in ("float32", "tf32"):
            raise ConfigError(f"unknown precision '{self.precision}'; valid: float32, tf32")
        if self.precision == "tf32" and self.device == "cpu":
            raise ConfigError("precision tf32 is one of GPUs; use --device cuda or --precision float32")
        if self.steps < 1:
            raise ConfigError(f"{self.steps} steps cannot be timed; ask for at least 1")
        if not self.members or min(self.members) < 1:
            raise ConfigError(f"members are {list(self.members)}; each number must be at least 1")
        sizes = (*self.shape.hidden, self.shape.dim, self.shape.actions, self.shape.batch_size)
        if not self.shape.hidden or min(sizes) < 1:
            raise ConfigError("hidden widths, dim, actions and batch size must all be at least 1")
        if self.shape.batch_size > self.rows:
            raise ConfigError(f"the batch size {self.shape.batch_size} is larger than the {self.rows} rows")
        if self.processes is not None:
            self._check_processes(self.processes)

    def _check_processes(self, processes: int) -> None:
        most = 1 if self.device == "cuda" else _cores()
        least_members = min(self.members)
        if not 1 <= processes <= most:
            where = "one GPU, which one process fills" if self.device == "cuda" else f"{most} cores"
            raise ConfigError(f"{processes} processes asked of {where}; ask for 1{f' to {most}' if most > 1 else ''}")
        if processes > least_members:
            raise ConfigError(
                f"{processes} processes are more than the members of a row, {least_members}; ask for fewer processes"
            )


def _cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bench_members(count: int, shape: StepShape, steps: int, seed: int) -> list[Member]:
    """Return members of a grid of settings (three lambdas, behaviour cloning) and seeds."""
    members = []
    for i in range(count):
        seeds, setting = divmod(i, len(_LAMBDAS) + 1)
        bc = setting == len(_LAMBDAS)
        members.append(
            make_member(
                method="bc" if bc else "mcnn+mlp",
                lambda_=1.0 if bc else _LAMBDAS[setting],
                seed=seed + seeds,
                steps=steps,
                batch_size=shape.batch_size,
                hidden=shape.hidden,
            )
        )
    return members


def bench_train(asked: TrainBench, progress: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """Time packs of several sizes.

    Args:
        asked: what to time.
        progress: called with a row's name, its steps so far and their number, the warm-up's included.

    Returns:
        `results`, a row per number of members: `member_steps_per_s`, steps of all members over the seconds from the
        common start to the last process's end; `limit_steps_per_s` of the cores used; `fraction_of_limit`, the ratio;
        `eager_loop_steps_per_s`, timed in between, and `times_eager_loop`. Beside them what the limit is made of:
        `matmul_gflops` by the faster of `matmul_library`, `step_gflop`, `limit_steps_per_s` of one core;
        `memory_gb_per_s`, `step_mb`.

        The limit on a CPU is the products alone, on one thread, times the processes; on a GPU the slower of the
        stacked products and the bytes that must move at the speed of a copy.

    Raises:
        ConfigError: it cannot be measured here.
        McnnError: a process died.
    """
    asked.check()
    rows = [_bench_row(asked, members, progress) for members in asked.members]
    speeds = [row.pop("memory_gb_per_s") for row in rows]
    best = max if asked.device == "cuda" else statistics.median  # stacked products of more members are faster
    return {
        "device": "cpu" if asked.device == "cpu" else torch.cuda.get_device_name(),
        "cores": _cores(),
        "precision": asked.precision,
        "steps": asked.steps,
        "rows": asked.rows,
        "dim": asked.shape.dim,
        "hidden": list(asked.shape.hidden),
        "actions": asked.shape.actions,
        "batch_size": asked.shape.batch_size,
        "seed": asked.seed,
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "results": rows,
        "eager_loop_steps_per_s": statistics.median(row["eager_loop_steps_per_s"] for row in rows),
        "matmul_gflops": best([row["matmul_gflops"] for row in rows]),
        "limit_steps_per_s": best([row["limit_steps_per_s"] / row["processes"] for row in rows]),
        "step_gflop": asked.shape.flop / 1e9,
        "step_mb": asked.shape.bytes / 1e6,
        "memory_gb_per_s": statistics.median(speeds),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """What one process does of a row. The first one also takes the readings, while the others wait."""

    asked: TrainBench
    members: list[Member]
    reads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """When the parts of one process's training began and ended, and what the first process read in between."""

    began: list[float]
    ended: list[float]
    readings: Readings | None


def _bench_row(asked: TrainBench, count: int, progress: Callable[[str, int, int], None] | None) -> dict[str, Any]:
    processes = asked.processes_of(count)
    members = bench_members(count, asked.shape, WARM_UP_STEPS + asked.steps, asked.seed)
    shares = [_Share(asked=asked, members=members[k::processes], reads=k == 0) for k in range(processes)]
    told = progress or (lambda name, done, total: None)
    timed = _train_together(
        shares, lambda done: told(f"{count} member{'s' * (count > 1)}", done, WARM_UP_STEPS + asked.steps)
    )
    began = np.array([one.began for one in timed]).min(0)
    ended = np.array([one.ended for one in timed]).max(0)
    rate = count * asked.steps / float((ended - began).sum())
    readings = timed[0].readings
    assert readings is not None, "the first process reads"
    stacked = 1 if asked.device == "cpu" else count
    library, products_s = readings.products
    moving_s = 0.0 if asked.device == "cpu" else stacked * asked.shape.bytes / readings.bytes_per_s
    limit = processes * stacked / max(products_s, moving_s)
    eager = readings.eager_steps_per_s
    return {
        "members": count,
        "processes": processes,
        "threads": 1,
        "member_steps_per_s": rate,
        "limit_steps_per_s": limit,
        "fraction_of_limit": rate / limit,
        "eager_loop_steps_per_s": eager,
        "times_eager_loop": rate / eager,
        "matmul_gflops": stacked * asked.shape.flop / products_s / 1e9,
        "matmul_library": library,
        "memory_gb_per_s": readings.bytes_per_s / 1e9,
    }


def _train_together(shares: list[_Share], told: Callable[[int], None]) -> list[_Timed]:
    """Run each share in a process of its own; they start every part of the training together."""
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", 0)
    barrier = context.Barrier(len(shares))
    try:
        with (
            _single_threaded(),
            ProcessPoolExecutor(len(shares), context, initializer=_share_with, initargs=(barrier, done)) as pool,
        ):
            futures = [pool.submit(_train_share, share) for share in shares]
            while wait(futures, timeout=_POLL_S).not_done:
                told(done.value)
            told(done.value)
            errors = [future.exception() for future in futures]
            # A share that failed breaks the barrier of the others; its own error is the cause.
            for error in sorted(filter(None, errors), key=lambda one: isinstance(one, BrokenBarrierError)):
                raise error
            return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise McnnError("a process of the benchmark was killed; ask for fewer members or processes") from error


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Let processes that start now use one thread each in every library, which read this when they are imported."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_shared: dict[str, Any] = {}  # a process's barrier and counter of steps, which can be handed over at its start only


def _share_with(barrier: Any, done: Any) -> None:
    _shared.update(barrier=barrier, done=done)


def _train_share(share: _Share) -> _Timed:
    try:
        return _timed_share(share, _shared["barrier"], _shared["done"])
    except BaseException:
        _shared["barrier"].abort()
        raise


def _timed_share(share: _Share, barrier: Any, done: Any) -> _Timed:
    torch.set_num_threads(1)
    asked = share.asked
    if asked.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    buffer = made_buffer(asked.shape, asked.rows, asked.seed)
    gaps_ND = buffer["observations"] - buffer["mem_observations"]
    nearest = NearestMemories(
        actions_NA=buffer["mem_actions"], distances_N=np.linalg.norm(gaps_ND, axis=1), rows_N=np.arange(len(gaps_ND))
    )
    data = make_training_data(buffer["observations"], buffer["actions"], {_MEMORY_KEY: nearest}, asked.device)
    pack = Pack(share.members, data)
    stacked = 1 if asked.device == "cpu" else len(share.members)
    yardsticks = Yardsticks(asked.shape, stacked, buffer, asked.device, asked.seed) if share.reads else None
    timed = _Timed(began=[], ended=[], readings=yardsticks.readings if yardsticks else None)

    def train(steps: int) -> None:
        pack.train(steps)
        if yardsticks is not None:
            done.value += steps

    def read() -> None:
        barrier.wait()
        if yardsticks is not None:
            yardsticks.read()
        barrier.wait()

    for _ in range(0, WARM_UP_STEPS, CHUNK_STEPS):
        train(CHUNK_STEPS)
    read()
    for start in range(0, asked.steps, _PART_STEPS):
        timed.began.append(time.perf_counter())
        train(min(_PART_STEPS, asked.steps - start))
        timed.ended.append(time.perf_counter())
        read()
    return timed
