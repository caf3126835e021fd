"""What tests of several learners have in common: made episodes, interruptions, doors to be opened."""

import numpy as np
import pytest

from mcnn_ray.config import SweepConfig
from mcnn_ray.policies.base import save_policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.rollout.episode import EVALUATION_SEED, run_episodes
from mcnn_ray.sweep.studies import make_study
from mcnn_ray.tasks.catalogue import CATALOGUE
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.training.learners import make_pack
from mcnn_ray.training.run import train_pack
from tests.training.test_pack import training_data
from tests.training.test_run import Interrupted, stop_at
from tests.training.workers import shards, trained_together


def episodes(*lengths):
    """Made demonstrations of episodes of these lengths."""
    made = training_data(rows=sum(lengths))
    made.offsets = np.array([0, *np.cumsum(lengths)])
    return made


def trained_by_two(one, made, steps):
    """Losses that each of two workers has, who share the batches of a member."""
    # Made one after the other, as they draw their networks from one generator; no draws follow without dropout.
    return trained_together([make_pack([one], made, shard) for shard in shards(2)], steps)


def check_continues_to_the_same_bits(members, make_data, folder, stops):
    """Hold two members' training, interrupted at these steps, against an undisturbed one."""
    names = ["a", "b"]
    whole = train_pack(members, names, make_data(), folder / "whole", 0)
    for stop in stops:
        with pytest.raises(Interrupted):
            train_pack(members, names, make_data(), folder / "cut", 0, stop_at(stop))
    resumed = train_pack(members, names, make_data(), folder / "cut", 0)
    np.testing.assert_array_equal(resumed.curve_SP, whole.curve_SP)
    for place in (0, 1):
        for name, array in whole.pack.parameters(place).items():
            np.testing.assert_array_equal(resumed.pack.parameters(place)[name], array)


def open_doors(values, demonstrations, folder):
    """Train a member on door and roll it out in 8 episodes; hold one of them against its replay from a directory.

    Returns:
        The member, its policy, and the rollouts.
    """
    task = CATALOGUE["door-expert-v1"]
    config = SweepConfig.parse({"task": task.id, "constant_columns": "ignore", "batch_size": 64, **values}, "test")
    study, (one,) = make_study(config, task, demonstrations), config.members()
    study.learn_codebooks([one], folder)
    pack = make_pack([one], study.training_data(one.data_key, [one.memory_key] if one.memory_key else [], "cpu"))
    pack.train(one.steps)
    policy, seeds = study.policy(one, pack.parameters(0)), range(EVALUATION_SEED, EVALUATION_SEED + 8)
    envs = [make_environment(task) for _ in seeds]
    rollouts = run_episodes(policy, task, envs, seeds, "x")
    save_policy(policy, folder / "policy")
    again = run_episodes(load_policy(folder / "policy"), task, envs[:1], seeds[:1], "x")
    np.testing.assert_array_equal(again[0].actions_TA, rollouts[0].actions_TA)
    return one, policy, rollouts
