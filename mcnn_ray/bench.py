"""This machine's figures against its limits; runs with torch, numpy, scipy, pandas, safetensors, typer and rich alone.

`python -m mcnn_ray.bench memories` is `mcnn bench memories` without the rest of the package's dependencies.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mcnn_ray.core.codebook import CODEBOOK_METHODS, learn_codebook, memory_count
from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.neural_gas import grow_neural_gas, snap_to_rows
from mcnn_ray.core.search import MemorySearch
from mcnn_ray.errors import ConfigError

__all__ = ["bench_memories", "check_device", "compare_methods", "made_toy", "made_trajectories"]

Float32Array = npt.NDArray[np.float32]
_EPISODE = 200  # steps of a made trajectory
_LATENT = 8  # numbers that move it
_TOY_STEPS = 100  # of an episode


def check_device(device: str) -> None:
    """Raise ConfigError unless a device is `cpu`, or `cuda` where there is one."""
    here = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    if device not in here:
        raise ConfigError(f"device '{device}' is not here; use {' or '.join(here)}")


def made_trajectories(points: int, dim: int, seed: int) -> Float32Array:
    """Make observations like a robot's: smooth trajectories of few degrees of freedom seen through many numbers.

    Args:
        points: rows N.
        dim: numbers D of an observation.
        seed: of all randomness.

    Returns:
        (N, D) float32, standardised.
    """
    rng = np.random.default_rng(seed)
    episodes = -(-points // _EPISODE)
    moves = rng.standard_normal((episodes, _EPISODE, _LATENT)).cumsum(1) * 0.1 + rng.standard_normal(
        (episodes, 1, _LATENT)
    )
    mixed = np.tanh(moves.reshape(-1, _LATENT)[:points] @ rng.standard_normal((_LATENT, dim)) * 0.5)
    noisy = mixed + 0.02 * rng.standard_normal(mixed.shape)
    standardised: Float32Array = ((noisy - noisy.mean(0)) / (noisy.std(0) + 1e-3)).astype(np.float32)
    return standardised


def made_toy(episodes: int, seed: int) -> Float32Array:
    """Make two-dimensional demonstrations: each episode runs once through a figure of eight.

    Step t of an episode is `(sin u, sin 2u)`, u = 2 pi t / 100, moved by an offset drawn once an episode (Gaussian, 0.1
    in each number) and by noise (0.02).

    Args:
        episodes: of 100 steps each.
        seed: of offsets and noise.

    Returns:
        (100 episodes, 2) float32, in order, as made: not standardised.
    """
    rng = np.random.default_rng(seed)
    u_T = 2.0 * np.pi * np.arange(_TOY_STEPS) / _TOY_STEPS
    eight_T2 = np.stack([np.sin(u_T), np.sin(2.0 * u_T)], 1)
    offset_E12 = 0.1 * rng.standard_normal((episodes, 1, 2))
    noise_ET2 = 0.02 * rng.standard_normal((episodes, _TOY_STEPS, 2))
    made: Float32Array = (eight_T2 + offset_E12 + noise_ET2).reshape(-1, 2).astype(np.float32)
    return made


def bench_memories(
    points: int,
    dim: int,
    memories: int,
    epochs: int,
    *,
    device: str,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Time neural gas on made trajectories, and one look-up among its memories.

    Args:
        points: rows N, above `memories`.
        dim: numbers D of an observation.
        memories: M.
        epochs: of neural gas.
        device: `cpu` or `cuda`.
        seed: of data and neural gas.
        progress: called with the share of neural gas that is done.

    Returns:
        `seconds` of neural gas and snapping, `seconds_per_epoch` of neural gas, both also as processor time of all
        threads (`cpu_`), which neighbours on a shared machine disturb less; `limit_seconds`, what the products of all
        rows with all memories take at the measured rate of such products, once an epoch (neural gas grows, so its own
        products are fewer, but it does more than products); `ratio` of an epoch to its products; `peak_rss_gib`, of
        the process so far; quantisation error and most isolated distance beside those of random rows;
        `search_median_us`, one look-up on one thread.
    """
    obs_ND = torch.from_numpy(made_trajectories(points, dim, seed)).to(device)
    rate = _product_rate(obs_ND, memories)
    started, cpu_started = time.perf_counter(), time.process_time()
    nodes_MD, edges_E2 = grow_neural_gas(obs_ND, memories, seed=seed, epochs=epochs, progress=progress)
    _synchronise(device)
    grown, cpu_grown = time.perf_counter(), time.process_time()
    rows_M, edges_E2 = snap_to_rows(nodes_MD, edges_E2, obs_ND)
    _synchronise(device)
    ended, cpu_ended = time.perf_counter(), time.process_time()
    rate = max(rate, _product_rate(obs_ND, memories))  # a neighbour may have slowed the first
    limit = 2.0 * points * memories * dim / rate
    random_M = torch.randperm(points, generator=torch.Generator().manual_seed(seed))[:memories].to(device)
    _, distance_N = nearest_memory(obs_ND, obs_ND[rows_M])
    _, random_N = nearest_memory(obs_ND, obs_ND[random_M])
    return {
        "points": points,
        "dim": dim,
        "memories": memories,
        "epochs": epochs,
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "seconds": ended - started,
        "cpu_seconds": cpu_ended - cpu_started,
        "seconds_per_epoch": (grown - started) / epochs,
        "cpu_seconds_per_epoch": (cpu_grown - cpu_started) / epochs,
        "snap_seconds": ended - grown,
        "limit_seconds": epochs * limit,
        "limit_seconds_per_epoch": limit,
        "ratio": (grown - started) / epochs / limit,
        "product_gflops": rate / 1e9,
        "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "quantisation_error": float(distance_N.double().mean()),
        "random_quantisation_error": float(random_N.double().mean()),
        "most_isolated_distance": float(distance_N.max()),
        "random_most_isolated_distance": float(random_N.max()),
        "edges": len(edges_E2),
        "search_median_us": _search_median_us(obs_ND[rows_M].cpu().numpy(), obs_ND.cpu().numpy(), seed),
    }


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _product_rate(obs_ND: torch.Tensor, memories: int) -> float:
    """Return the FLOP/s of products of rows with memories, the best of several."""
    rows = obs_ND[: min(len(obs_ND), max(1, (1 << 22) // memories))]
    table = obs_ND[torch.arange(memories, device=obs_ND.device) % len(obs_ND)].T.contiguous()
    out = torch.empty(len(rows), memories, device=obs_ND.device)
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        torch.mm(rows, table, out=out)
        _synchronise(obs_ND.device.type)
        best = min(best, time.perf_counter() - started)
    return 2.0 * len(rows) * memories * obs_ND.shape[1] / best


def _search_median_us(memories_MD: Float32Array, obs_ND: Float32Array, seed: int) -> float:
    """Return the median microseconds of one look-up of a row moved a little, so that it is no memory."""
    rng = np.random.default_rng(seed)
    queries = obs_ND[rng.integers(len(obs_ND), size=500)] + np.float32(0.05) * rng.standard_normal(
        (500, obs_ND.shape[1]), dtype=np.float32
    )
    search = MemorySearch(memories_MD)
    taken = []
    for query_D in queries:
        started = time.perf_counter()
        search(query_D[None])
        taken.append(time.perf_counter() - started)
    return float(np.median(taken)) * 1e6


def compare_methods(
    obs_ND: Float32Array, held_out_ND: Float32Array | None, fraction: float, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Compare every way to pick memories on the same observations.

    Args:
        obs_ND: (N, D) float32, standardised.
        held_out_ND: observations of episodes that were kept apart, standardised by the same numbers, or None.
        fraction: memories over N.
        seed: of every method.

    Returns:
        A row per method: `quantisation_error`, `most_isolated_distance`, both also held out, and `seconds`. Mini-batch
        k-means of scikit-learn, snapped to rows like ours, is among them where scikit-learn is installed.
    """
    rows = []
    for method in CODEBOOK_METHODS:
        started = time.perf_counter()
        book = learn_codebook(obs_ND, fraction, method=method, seed=seed)
        rows.append(_compared(method, time.perf_counter() - started, obs_ND[book.rows_M], obs_ND, held_out_ND))
    try:
        from sklearn.cluster import MiniBatchKMeans
    except ImportError:
        return rows
    started = time.perf_counter()
    count = memory_count(len(obs_ND), fraction)
    fitted = MiniBatchKMeans(count, batch_size=1024, max_iter=10, random_state=seed, n_init=1).fit(obs_ND)
    distinct_UD = torch.from_numpy(np.unique(obs_ND, axis=0))
    no_edges = torch.empty((0, 2), dtype=torch.long)
    snapped_M, _ = snap_to_rows(torch.from_numpy(fitted.cluster_centers_.astype(np.float32)), no_edges, distinct_UD)
    memories_MD = distinct_UD[snapped_M].numpy()
    rows.append(
        _compared("scikit-learn MiniBatchKMeans", time.perf_counter() - started, memories_MD, obs_ND, held_out_ND)
    )
    return rows


def _compared(
    method: str,
    seconds: float,
    memories_MD: Float32Array,
    obs_ND: Float32Array,
    held_out_ND: Float32Array | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method, "memories": len(memories_MD), "seconds": seconds}
    sets: Mapping[str, Float32Array | None] = {"": obs_ND, "held_out_": held_out_ND}
    for name, states_ND in sets.items():
        if states_ND is not None:
            _, distance_N = nearest_memory(torch.from_numpy(states_ND), torch.from_numpy(memories_MD))
            row[f"{name}quantisation_error"] = float(distance_N.double().mean())
            row[f"{name}most_isolated_distance"] = float(distance_N.max())
    return row


if __name__ == "__main__":
    import sys

    from mcnn_ray.cli_bench import bench_app
    from mcnn_ray.terminal import run_app

    run_app(bench_app, sys.argv[1:], prog_name="python -m mcnn_ray.bench")
