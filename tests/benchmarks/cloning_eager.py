"""Behaviour cloning by an eager PyTorch loop, as the code published with the paper trains.

That is: rows drawn by numpy on the host, one `torch.tensor` copy of each of the buffer's nine arrays a step though
cloning reads two of them, autograd, torch's default Adam, the loss read back by `.item()` every step; tanh head.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from cloning_worker import BATCH, HIDDEN, LEARNING_RATE, Clock, Job, read_job, report


def make_buffer(job: Job) -> dict[str, np.ndarray]:
    """Return the nine arrays of that buffer; memories, which cloning does not read, are the rows themselves."""
    column_N1 = job.ends_N[:, None].astype(np.float32)
    following_ND = np.roll(job.obs_ND, -1, axis=0)
    return {
        "observations": job.obs_ND,
        "actions": job.actions_NA,
        "next_observations": following_ND,
        "terminals": column_N1,
        "rewards": np.zeros_like(column_N1),
        "mem_observations": job.obs_ND.copy(),
        "mem_actions": job.actions_NA.copy(),
        "mem_next_observations": following_ND.copy(),
        "mem_rewards": np.zeros_like(column_N1),
    }


def main() -> None:
    """Train and print."""
    job = read_job()
    clock = Clock(job)
    np.random.seed(job.seed)  # noqa: NPY002 - the published code draws from numpy's global state
    torch.manual_seed(job.seed)
    buffer = make_buffer(job)
    widths = (job.obs_ND.shape[1], *HIDDEN)
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], job.actions_NA.shape[1]), torch.nn.Tanh())
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    losses = []
    for _ in range(job.all_steps):
        rows_B = np.random.randint(0, len(job.obs_ND), size=BATCH)  # noqa: NPY002
        batch = {name: torch.tensor(array[rows_B]) for name, array in buffer.items()}
        loss = ((network(batch["observations"]) - batch["actions"]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        clock.tick()
    with torch.no_grad():
        predicted_NA = network(torch.tensor(job.obs_ND))
    report(job, clock, predicted_NA.numpy(), ())


if __name__ == "__main__":
    main()
