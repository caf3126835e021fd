"""Behaviour cloning by imitation's `BC`: a Gaussian policy without squashing, log-probability and an entropy bonus."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from cloning_worker import BATCH, HIDDEN, LEARNING_RATE, Clock, read_job, report
from imitation.algorithms.bc import BC
from imitation.data.types import Transitions
from stable_baselines3.common.policies import ActorCriticPolicy


def main() -> None:
    """Train and print."""
    job = read_job()
    clock = Clock(job)
    torch.manual_seed(job.seed)  # initialisation and the loader's order
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, job.obs_ND.shape[1:], np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, job.actions_NA.shape[1:], np.float32)
    # `vf=[]` leaves out the value network of SB3's policy, which behaviour cloning would carry along unused.
    policy = ActorCriticPolicy(
        observation_space,
        action_space,
        lambda _: LEARNING_RATE,
        net_arch={"pi": list(HIDDEN), "vf": []},
        activation_fn=torch.nn.ReLU,
    )
    rows = len(job.obs_ND)
    demonstrations = Transitions(
        obs=job.obs_ND,
        acts=job.actions_NA,
        infos=np.array([{}] * rows),
        next_obs=np.roll(job.obs_ND, -1, axis=0),
        dones=job.ends_N,
    )
    cloning = BC(
        observation_space=observation_space,
        action_space=action_space,
        rng=np.random.default_rng(job.seed),
        policy=policy,
        demonstrations=demonstrations,
        batch_size=BATCH,
        optimizer_kwargs={"lr": LEARNING_RATE},
        device="cpu",
    )
    cloning.train(n_batches=job.all_steps, on_batch_end=clock.tick, progress_bar=not job.quiet)
    with torch.no_grad():
        mean_NA = policy.get_distribution(torch.tensor(job.obs_ND)).mode()
    report(job, clock, mean_NA.numpy(), ("imitation", "stable-baselines3", "gymnasium"))


if __name__ == "__main__":
    main()
