"""Behaviour cloning by this package: a pack of one member on one thread; tanh head, mean squared error."""

from __future__ import annotations

import numpy as np
import torch
from cloning_worker import BATCH, HIDDEN, LEARNING_RATE, Clock, read_job, report

from mcnn_ray.member import make_member
from mcnn_ray.policies.mlp import mlp_layers
from mcnn_ray.training.data import TrainingData
from mcnn_ray.training.pack import Pack


def main() -> None:
    """Train and print."""
    job = read_job()
    clock = Clock(job)
    member = make_member(
        method="bc",
        seed=job.seed,
        steps=job.all_steps,
        learning_rate=LEARNING_RATE,
        batch_size=BATCH,
        hidden=HIDDEN,
    )
    data = TrainingData(obs_ND=torch.tensor(job.obs_ND), actions_NA=torch.tensor(job.actions_NA))
    pack = Pack([member], data)
    for steps in (job.warm_up, job.steps):
        pack.train(steps)  # gives back the loss of every step, as the other loops do
        clock.tick(steps)
    hidden_NH = job.obs_ND
    *hidden_layers, (last_weight, last_bias) = mlp_layers(pack.parameters(0))
    for weight, bias in hidden_layers:
        hidden_NH = np.maximum(hidden_NH @ weight + bias, 0.0)
    report(job, clock, np.tanh(hidden_NH @ last_weight + last_bias), ("mcnn-ray",))


if __name__ == "__main__":
    main()
