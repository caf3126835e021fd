"""What the workers of `compare_behaviour_cloning.py` share; needs numpy and torch alone, so any environment can run it.

A worker trains behaviour cloning once, in its own process, and prints one line of JSON last.

Shapes: N rows, D observation numbers, A action numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

HIDDEN = (256, 256)
BATCH = 256
LEARNING_RATE = 3e-4


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is asked for.

    Attributes:
        obs_ND: float32, standardised.
        actions_NA: float32, in [-1, 1].
        ends_N: bool, at the last row of each episode.
        warm_up: steps before the clock starts.
        steps: timed steps.
        seed: of initialisation and batches.
        quiet: switch off the peer's own progress bar and log files.
    """

    obs_ND: Any
    actions_NA: Any
    ends_N: Any
    warm_up: int
    steps: int
    seed: int
    quiet: bool

    @property
    def all_steps(self) -> int:
        """Warm-up and timed steps."""
        return self.warm_up + self.steps


class Clock:
    """Measures wall and processor time from the end of the warm-up to the end of the last step.

    Args:
        job: says how many steps these are.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done = 0
        self._started = self._ended = (0.0, 0.0)

    def tick(self, steps: int = 1) -> None:
        """Take note that so many more steps are done."""
        self._done += steps
        if self._done == self._job.warm_up:
            self._started = time.perf_counter(), time.process_time()
        elif self._done == self._job.all_steps:
            self._ended = time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        """Return wall and processor seconds of the timed steps."""
        if self._done != self._job.all_steps:
            raise RuntimeError(f"{self._done} steps were taken, {self._job.all_steps} were asked for")
        return self._ended[0] - self._started[0], self._ended[1] - self._started[1]


def read_job() -> Job:
    """Read the command line, and hold torch to one thread."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--warm-up", type=int, default=300)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(asked.data) as arrays:
        return Job(
            obs_ND=arrays["observations"],
            actions_NA=arrays["actions"],
            ends_N=arrays["ends"],
            warm_up=asked.warm_up,
            steps=asked.steps,
            seed=asked.seed,
            quiet=asked.quiet,
        )


def report(job: Job, clock: Clock, predicted_NA: Any, packages: Sequence[str]) -> None:
    """Print the result as one line of JSON.

    Args:
        job: that was done.
        clock: that measured it.
        predicted_NA: the trained policy's deterministic action at every row.
        packages: whose versions belong to the result.
    """
    wall_s, cpu_s = clock.seconds()
    result = {
        "steps_per_s": job.steps / wall_s,
        "cpu_share": cpu_s / wall_s,
        "mse": float(np.square(np.asarray(predicted_NA, dtype=np.float64) - job.actions_NA).mean()),
        "threads": torch.get_num_threads(),
        "versions": {name: metadata.version(name) for name in ("torch", "numpy", *packages)},
    }
    sys.stdout.write("\n" + json.dumps(result) + "\n")
