"""Compare LeRobot's diffusion policy with ours: the same U-Net, weights, chunks and batches, on one thread each.

    python tests/benchmarks/compare_diffusion.py --environments runs/peers

The network is that of the preset `kitchen`, on made observations of 60 numbers and actions of 9. From the same weights
both must tell the same actions. Then each trains with its own AdamW and schedule, in rounds that alternate, and makes
chunks of 8 executed actions for one observation; times are the processor's, so that other programs disturb them less.
LeRobot has no mean of the weights, so ours is measured without and with it. Its environment is made under
--environments; it asks for an older torch than ours, and is installed beside that without what it asks for. The exit
status is 1 where the actions differ, so that the speeds are not of the same work.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from compare_behaviour_cloning import ONE_THREAD, checked_run, peer_python, processor
from rich import box
from rich.table import Table

from mcnn_ray.bench import made_trajectories
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.member import make_member
from mcnn_ray.policies.diffusion import DiffusionPolicy
from mcnn_ray.terminal import AsJson, error_console, output_console, print_json
from mcnn_ray.training.chunks import chunk_rows
from mcnn_ray.training.data import TrainingData, make_training_data
from mcnn_ray.training.diffusion import DiffusionLearner
from mcnn_ray.training.noise import denoising_table

PINS = (
    *("numpy==2.4.6", "diffusers==0.35.2", "draccus==0.10.0", "einops==0.8.1", "huggingface-hub==0.35.3"),
    *("accelerate==1.10.1", "datasets==4.8.5", "gymnasium==1.1.1", "jsonlines==4.0.0", "termcolor==3.3.0"),
    *("deepdiff==9.1.0", "imageio==2.37.0", "av==15.1.0", "pynput==1.8.1", "pyserial==3.5", "packaging==26.4"),
)
LEROBOT = "lerobot==0.4.4"
DIM, ACTIONS = 60, 9
AGREES = 1e-4  # by how much an action may differ, of about 1
_BLOCK = {
    "first.0": "conv1.block.0",
    "first.1": "conv1.block.1",
    "film": "cond_encoder.1",
    "second.0": "conv2.block.0",
    "second.1": "conv2.block.1",
    "around": "residual_conv",
}
_OTHERS = {
    "time_layers.0": "diffusion_step_encoder.1",
    "time_layers.2": "diffusion_step_encoder.3",
    "last.0.0": "final_conv.0.block.0",
    "last.0.1": "final_conv.0.block.1",
    "last.1": "final_conv.1",
}


def lerobot_name(name: str) -> str:
    """Return what LeRobot calls one of our network's parameters."""
    place, _, kind = name.rpartition(".")
    if place in _OTHERS:
        return f"diffusion.unet.{_OTHERS[place]}.{kind}"
    part, *rest = place.split(".")
    if part in ("shorter", "longer"):
        module = {"shorter": "down_modules", "longer": "up_modules"}[part]
        return f"diffusion.unet.{module}.{rest[0]}.2.{kind}"
    module = {"down": "down_modules", "middle": "mid_modules", "up": "up_modules"}[part]
    levels = [] if part == "middle" else [rest.pop(0)]
    order = str(("first", "second").index(rest.pop(0)))
    return ".".join(["diffusion.unet", module, *levels, order, _BLOCK[".".join(rest)], kind])


def make_data() -> TrainingData:
    """Return made demonstrations of 280 steps each."""
    rows = made_trajectories(280 * 20, DIM + ACTIONS, seed=0)
    obs_ND, actions_NA = Standardiser.fit(rows[:, :DIM])(rows[:, :DIM]), np.tanh(rows[:, DIM:])
    return make_training_data(obs_ND, actions_NA, {}, offsets=np.arange(0, len(rows) + 1, 280))


def learner_of(data: TrainingData, batch: int, ema_power: float) -> DiffusionLearner:
    """Return a learner of the preset `kitchen`."""
    options = {"ema_power": ema_power}
    return DiffusionLearner(
        make_member(method="diff", steps=10_000, preset="kitchen", batch_size=batch, options=options), data
    )


def batches_of(learner: DiffusionLearner, drawn_SB: torch.Tensor) -> dict[str, Any]:
    """Return what LeRobot's data loader would give for the same rows."""
    parts: dict[str, list[Any]] = {"observations": [], "actions": [], "pad": []}
    for drawn_B in drawn_SB:
        bounds = learner._first_N[drawn_B], learner._last_N[drawn_B]
        rows_BP, inside_BP = chunk_rows(drawn_B, *bounds, learner._places_P)
        observed_BT, _ = chunk_rows(drawn_B, *bounds, learner._observed_T)
        parts["observations"].append(learner.data.obs_ND[observed_BT])
        parts["actions"].append(learner.data.actions_NA[rows_BP])
        parts["pad"].append(~inside_BP)
    return {name: torch.stack(some).numpy() for name, some in parts.items()}


def ask_lerobot(
    python: Path, learner: DiffusionLearner, drawn_SB: torch.Tensor, chunks: int
) -> tuple[dict[str, Any], float]:
    """Have LeRobot tell, train and act; return its times, and by how much what it tells differs from ours."""
    generator = torch.Generator().manual_seed(0)
    noisy_BPA, step_B = torch.randn(4, 16, ACTIONS, generator=generator), torch.tensor([0, 7, 50, 99])
    obs_BTD, network = torch.randn(4, 2, DIM, generator=generator), learner.networks["network"]
    weights = {lerobot_name(name): parameter.detach().numpy() for name, parameter in network.named_parameters()}
    asked = {"noisy": noisy_BPA.numpy(), "step": step_B.numpy(), "told_observations": obs_BTD.numpy()}
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(given, asked=json.dumps({"chunks": chunks}), **asked, **weights, **batches_of(learner, drawn_SB))
        environment = {**os.environ, **ONE_THREAD, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "HF_HOME": folder}
        worker = Path(__file__).parent / "diffusion_lerobot.py"
        checked_run([python, worker, given, found], "LeRobot", cwd=folder, env=environment)
        with np.load(found) as read:
            answer = dict(read)
    with torch.no_grad():
        told_BPA = network(noisy_BPA, network.time(step_B), obs_BTD).numpy()
    return answer, float(np.abs(told_BPA - answer["told"]).max())


def step_times(learner: DiffusionLearner, drawn_SB: torch.Tensor) -> list[float]:
    """Return the processor's seconds in each of our steps."""
    times = []
    for step, drawn_B in enumerate(drawn_SB):
        before = time.process_time()
        learner.learn(drawn_B, step)
        times.append(time.process_time() - before)
    return times


def chunk_s(learner: DiffusionLearner, taken: int, chunks: int) -> float:
    """Return the median seconds in which our policy makes a chunk for one observation."""
    same = Standardiser(mean_D=np.zeros(DIM, np.float32), scale_D=np.ones(DIM, np.float32))
    unit = ActionScale(low_A=-np.ones(ACTIONS, np.float32), high_A=np.ones(ACTIONS, np.float32))
    options = {**dict(learner.member.options), "inference_steps": taken}
    parameters = learner.policy_arrays() | {"table": denoising_table(100, "squared-cosine", taken)}
    policy, obs_1D = DiffusionPolicy({}, same, unit, options, parameters, None), learner.data.obs_ND[:1].numpy()
    times = []
    for seed in range(chunks):
        state = policy.start([seed])
        before = time.process_time()
        policy.act(obs_1D, state)
        times.append(time.process_time() - before)
    return statistics.median(times)


def compare(
    environments: Annotated[Path, typer.Option(help="Folder of the peers' virtual environments.")] = Path("runs/peers"),
    batch: Annotated[int, typer.Option(min=1, help="Chunks a step.")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each round, after one to warm up.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Each trains everyone once.")] = 3,
    chunks: Annotated[int, typer.Option(min=1, help="Chunks made by each in each round.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Compare LeRobot's diffusion policy with ours, on one thread."""
    torch.set_num_threads(1)
    python, data = peer_python(environments, "lerobot", PINS, (LEROBOT,)), make_data()
    names = ("LeRobot", "mcnn-ray", "mcnn-ray, mean of weights")
    found: dict[str, dict[str, list[float]]] = {name: {"step_s": [], "DDPM_s": [], "DDIM_s": []} for name in names}
    differs = 0.0
    for seed in range(rounds):
        drawn_SB = torch.randint(len(data.obs_ND), (1 + steps, batch), generator=torch.Generator().manual_seed(seed))
        for name in names[1:]:
            learner = learner_of(data, batch, 0.0 if name == "mcnn-ray" else 0.75)
            if name == "mcnn-ray":
                answer, difference = ask_lerobot(python, learner, drawn_SB, chunks)
                differs = max(differs, difference)
                for key, values in found["LeRobot"].items():
                    values += answer[key].tolist()[1:] if key == "step_s" else [float(answer[key])]
                for key, taken in (("DDPM_s", 0), ("DDIM_s", 10)):
                    found[name][key].append(chunk_s(learner, taken, chunks))
            found[name]["step_s"] += step_times(learner, drawn_SB)[1:]
        error_console.print(f"round {seed + 1} of {rounds}", highlight=False)
    medians = {
        name: {key: statistics.median(values) for key, values in times.items() if values}
        for name, times in found.items()
    }
    result = {"processor": processor(), "batch": batch, "steps": steps, "rounds": rounds, "differs": differs}
    if as_json:
        print_json({**result, "medians": medians, "times": found})
    else:
        table = Table("one thread", "s a step", "steps/s", "100 DDPM, s", "10 DDIM, s", box=box.SIMPLE_HEAD)
        for name, row in medians.items():
            acting = [f"{row[key]:.2f}" if key in row else "" for key in ("DDPM_s", "DDIM_s")]
            table.add_row(name, f"{row['step_s']:.2f}", f"{1 / row['step_s']:.3f}", *acting)
        output_console.print(table)
        output_console.print(
            f"{result['processor']}; batches of {batch} chunks of 16, medians of {steps * rounds} steps and {rounds} "
            f"rounds; a chunk of 8 executed actions for one observation; what they tell differs by {differs:.1e}",
            highlight=False,
        )
    if differs > AGREES:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(compare)
