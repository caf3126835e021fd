"""Evaluates a policy on driving servers in a Ray of its own: its arguments are FOLDER SERVERS EPISODES SECONDS.

Without being disturbed first, by one actor, and prints a line with the table; then again and again with all actors
until the seconds are over, and prints a line with the table each time.
"""

import contextlib
import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import ray

from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import McnnError
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.rollout.pool import RolloutPool
from tests.carla.short import TASK

PIXELS = 48 * 48 * 3


def write_policy(folder):
    """A policy that looks at the picture: which of twenty memories it is nearest to."""
    rng = np.random.default_rng(0)
    actions = np.stack([rng.uniform(0, 1, 20), rng.uniform(-0.2, 0.2, 20)], 1).astype(np.float32)
    policy = NearestPolicy(
        {"task": TASK.id, "identity": "0123456789ab", "member": {}},
        Standardiser(mean_D=np.zeros(PIXELS, np.float32), scale_D=np.ones(PIXELS, np.float32)),
        ActionScale(low_A=-np.ones(2, np.float32), high_A=np.ones(2, np.float32)),
        rng.random((20, PIXELS), dtype=np.float32),
        actions,
    )
    save_policy(policy, folder)


def table(pool, folder, episodes):
    found = pool.evaluate({"p": folder}, range(episodes))
    rows = [replace(rollout.record, wall_s=0.0).row() for rollout in found.rollouts]
    tell({"rows": rows, "lost": [lost.reason for lost in found.lost]})


def tell(value):
    print(json.dumps(value), file=sys.__stdout__, flush=True)


def main():
    folder, servers, episodes, seconds = Path(sys.argv[1]) / "policy", *map(int, sys.argv[2:])
    logging.basicConfig(level=logging.WARNING)
    write_policy(folder)
    ray.init(
        address="local",
        num_cpus=servers,
        resources={"carla": servers},
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        with RolloutPool(TASK, actors=1) as pool:
            table(pool, folder, episodes)
        end = time.monotonic() + seconds
        with RolloutPool(TASK, actors=servers) as pool:
            while time.monotonic() < end:
                table(pool, folder, episodes)
    except McnnError as error:
        tell({"error": str(error)})
    ray.shutdown()


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # where Ray tells of deaths
        main()
