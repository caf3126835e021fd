"""The time of one action: memory look-up, network and blend for one observation, on one thread.

Runs with torch, numpy, scipy, pandas, safetensors, typer and rich alone.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from mcnn_ray.bench import made_trajectories
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ConfigError
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.mlp import MlpPolicy
from mcnn_ray.policies.search import PolicySearch

__all__ = ["bench_inference"]

_WARM_UP = 200
_NOISE = 0.05  # added to a demonstration, so that it is no memory


def bench_inference(
    memories: int, dim: int, repeats: int, *, actions: int, hidden: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Time `act` of an `mcnn+mlp` policy with random weights on made observations, another one each time.

    Args:
        memories: M.
        dim: D, numbers of an observation.
        repeats: observations timed.
        actions: A, numbers of an action.
        hidden: widths of the network.
        seed: of everything made.

    Returns:
        `median_us`, `p99_us`, and the medians of the look-up and of the network alone.

    Raises:
        ConfigError: a number is below 1.
    """
    for name, value in (("memories", memories), ("dim", dim), ("repeats", repeats), ("actions", actions)):
        if value < 1:
            raise ConfigError(f"--{name} is {value}; it must be at least 1")
    rng = np.random.default_rng(seed)
    rows = memories + repeats
    obs_ND = made_trajectories(rows, dim, seed)
    policy = MlpPolicy(
        {"task": "made"},
        Standardiser.fit(obs_ND),
        ActionScale(low_A=-np.ones(actions, np.float32), high_A=np.ones(actions, np.float32)),
        [
            (rng.normal(0, fan_in**-0.5, (fan_in, out)).astype(np.float32), np.zeros(out, np.float32))
            for fan_in, out in zip((dim, *hidden), (*hidden, actions), strict=True)
        ],
        Memories(
            observations_MD=obs_ND[:memories],
            actions_MA=rng.uniform(-1, 1, (memories, actions)).astype(np.float32),
            rows_M=np.arange(memories),
            lambda_=1.0,
            L=1.0,
        ),
    )
    # As environments give them: float64, a batch of one.
    queries = (obs_ND[memories:] + _NOISE * rng.standard_normal((repeats, dim))).astype(np.float64)[:, None]
    scaled = policy.standardiser(queries)
    taken = {"": _times(policy.act, queries), "lookup_": _times(PolicySearch(obs_ND[:memories]), scaled)}
    taken["network_"] = _times(policy.network, scaled)
    return {
        "memories": memories,
        "dim": dim,
        "actions": actions,
        "hidden": list(hidden),
        "repeats": repeats,
        "median_us": float(np.median(taken[""])),
        "p99_us": float(np.quantile(taken[""], 0.99)),
        "lookup_median_us": float(np.median(taken["lookup_"])),
        "network_median_us": float(np.median(taken["network_"])),
    }


def _times(work: Any, queries: np.ndarray[Any, Any]) -> list[float]:
    """Return the microseconds of each call."""
    for query in queries[:_WARM_UP]:
        work(query)
    taken = []
    for query in queries:
        started = time.perf_counter_ns()
        work(query)
        taken.append((time.perf_counter_ns() - started) / 1000)
    return taken
