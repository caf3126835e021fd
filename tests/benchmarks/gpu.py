"""The packs and memories that a GPU is for, checked and timed in one run.

It needs what `mcnn_ray.bench` needs and nothing else.

Checked: packs learn the same there as on the CPU, and the same bits when repeated; TF32 changes the error on held-out
rows by no more than a training seed does; neural gas repeats its bits and is as good as on the CPU; the nearest memory
is the same one. Timed: `mcnn bench train` in float32 and TF32, `mcnn bench memories`. A part that fails is reported
with its traceback, and the others go on; the exit status is 1 then.

Not covered: networks of a user's own, the methods that go by autograd, batches shared by several GPUs, encoders.

    PYTHONPATH=. python tests/benchmarks/gpu.py --out gpu.json
    PYTHONPATH=. python tests/benchmarks/gpu.py --out cpu.json --device cpu --members 1,4 --points 20000 --memories 2000
"""

import argparse
import json
import platform
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import ttest_1samp

from mcnn_ray.bench import bench_memories, made_trajectories
from mcnn_ray.bench_train import TrainBench, bench_members, bench_train
from mcnn_ray.core.distance import nearest_memory
from mcnn_ray.core.neural_gas import grow_neural_gas, snap_to_rows
from mcnn_ray.policies.mlp import mlp_layers
from mcnn_ray.training.data import NearestMemories, make_training_data
from mcnn_ray.training.pack import Pack
from mcnn_ray.training.step_shape import StepShape

SHAPE = StepShape(dim=39, hidden=(256, 256), actions=28, batch_size=256)
ROWS, HELD_OUT, MEMORIES = 20_000, 4_000, 2_000
KEY = ("neural-gas", 0.1, 0, "expert", "euclidean")
SEEDS = 8


def taught(seed=0):
    """Return observations and the actions that a random smooth teacher takes there."""
    obs_ND = made_trajectories(ROWS, SHAPE.dim, seed)
    rng = np.random.default_rng(seed)
    hidden = np.tanh(obs_ND @ rng.standard_normal((SHAPE.dim, 64)) / 6.0)
    return obs_ND, np.tanh(hidden @ rng.standard_normal((64, SHAPE.actions)) / 4.0).astype(np.float32)


def training_data(obs_ND, actions_NA, device):
    """Put the rows but the last on a device, beside their nearest among every tenth."""
    obs_ND, actions_NA = obs_ND[:-HELD_OUT], actions_NA[:-HELD_OUT]
    rows_M = np.arange(0, len(obs_ND), 10)
    index_N, distance_N = nearest_memory(torch.from_numpy(obs_ND), torch.from_numpy(obs_ND[rows_M]))
    rows_N = rows_M[index_N.numpy()]
    nearest = NearestMemories(actions_NA=actions_NA[rows_N], distances_N=distance_N.numpy(), rows_N=rows_N)
    return make_training_data(obs_ND, actions_NA, {KEY: nearest}, device)


def pack_losses(members, data):
    """Train a pack and return its losses and its parameters."""
    pack = Pack(members, data)
    return pack.train(300), pack.state()["parameters"]


def check_packs(device):
    """Compare with the CPU, and with a second run: steps with beta, steps one by one, and steps of a CUDA graph."""
    obs_ND, actions_NA = taught()
    members = bench_members(36, SHAPE, 1_000, 0)
    there = training_data(obs_ND, actions_NA, device)
    first, parameters = pack_losses(members, there)
    second, again = pack_losses(members, there)
    here, _ = pack_losses(members, training_data(obs_ND, actions_NA, "cpu"))
    difference = float((np.abs(first - here).max(0) / here.max(0)).max())
    repeats = bool((first == second).all() and (parameters == again).all())
    return {"largest_difference": difference, "repeats": repeats, "holds": difference < 1e-4 and repeats}


def held_out_errors(data, obs_ND, actions_NA, steps):
    """Return the (SEEDS,) squared error of cloning on held-out rows after training."""
    members = [replace(bench_members(4, SHAPE, steps, 0)[3], seed=seed) for seed in range(SEEDS)]
    pack = Pack(members, data)
    pack.train(steps)
    errors = []
    for position in range(SEEDS):
        value = obs_ND[-HELD_OUT:]
        *hidden, last = mlp_layers(pack.parameters(position))
        for weight, bias in hidden:
            value = np.maximum(value @ weight + bias, 0.0)
        errors.append(np.square(np.tanh(value @ last[0] + last[1]) - actions_NA[-HELD_OUT:]).mean())
    return np.array(errors)


def check_tf32(device, steps):
    """Compare the errors on held-out rows by training seed, float32 and TF32."""
    obs_ND, actions_NA = taught()
    data = training_data(obs_ND, actions_NA, device)
    exact = held_out_errors(data, obs_ND, actions_NA, steps)
    torch.set_float32_matmul_precision("high")
    try:
        fast = held_out_errors(data, obs_ND, actions_NA, steps)
    finally:
        torch.set_float32_matmul_precision("highest")
    difference, deviation, used = (fast - exact).mean(), exact.std(ddof=1), (fast != exact).any()
    found = {"float32": exact.tolist(), "tf32": fast.tolist(), "seeds": SEEDS, "steps": steps}
    low, high = map(float, ttest_1samp(fast - exact, 0.0).confidence_interval(0.95))
    return found | {
        "difference": float(difference),
        "interval_95": [low, high],
        "deviation_of_seeds": float(deviation),
        "used": bool(used),
        "holds": bool(abs(difference) < deviation and (used or device == "cpu")),  # a CPU has no TF32
    }


def check_neural_gas(device):
    """Compare with the CPU, and with a second run."""
    obs_ND = torch.from_numpy(made_trajectories(ROWS, SHAPE.dim, 1))

    def learned(where):
        nodes_MD, edges_E2 = grow_neural_gas(obs_ND.to(where), MEMORIES, seed=0)
        rows_M, _ = snap_to_rows(nodes_MD, edges_E2, obs_ND.to(where))
        _, distance_N = nearest_memory(obs_ND, obs_ND[rows_M.cpu()])
        return nodes_MD.cpu(), float(distance_N.double().mean())

    (nodes_MD, there), (again_MD, _), (_, here) = learned(device), learned(device), learned("cpu")
    repeats = bool((nodes_MD == again_MD).all())
    return {"error": there, "error_on_cpu": here, "repeats": repeats, "holds": repeats and there < 1.02 * here}


def check_nearest(device):
    """Compare memories and distances with the CPU's."""
    obs_ND = torch.from_numpy(made_trajectories(ROWS, SHAPE.dim, 2))
    index_N, distance_N = nearest_memory(obs_ND, obs_ND[:MEMORIES])
    there_N, far_N = (found.cpu() for found in nearest_memory(obs_ND.to(device), obs_ND[:MEMORIES].to(device)))
    same = bool((index_N == there_N).all())
    exact = bool((far_N[:MEMORIES] == 0.0).all())
    difference = float((far_N - distance_N).abs().max())
    return {"same_memory": same, "exact": exact, "difference": difference, "holds": same and exact}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--members", type=lambda text: tuple(map(int, text.split(","))), default=(1, 12, 36, 144, 432))
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--memories", type=int, default=100_000)
    asked = parser.parse_args()
    train = TrainBench(
        members=asked.members,
        steps=asked.steps,
        shape=SHAPE,
        rows=10_000,
        processes=None,
        device=asked.device,
        precision="float32",
        seed=0,
    )
    parts = {
        "packs": lambda: check_packs(asked.device),
        "nearest memory": lambda: check_nearest(asked.device),
        "neural gas": lambda: check_neural_gas(asked.device),
        "tf32": lambda: check_tf32(asked.device, asked.steps),
        "bench train": lambda: bench_train(train),
        "bench memories": lambda: bench_memories(asked.points, 46, asked.memories, 10, device=asked.device, seed=0),
    }
    if asked.device == "cuda":
        parts["bench train tf32"] = lambda: bench_train(replace(train, precision="tf32"))
    found = {"device": torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor()}
    for name, part in parts.items():
        started = time.perf_counter()
        try:
            result = part()
        except Exception:  # noqa: BLE001  # told in full; the other parts are still to be seen
            result = {"error": traceback.format_exc(), "holds": False}
        found[name] = result | {"took_s": time.perf_counter() - started}
        print(f"{name}: {json.dumps(found[name])}", flush=True)
        asked.out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(int(any(one.get("holds") is False for one in found.values() if isinstance(one, dict))))


if __name__ == "__main__":
    main()
