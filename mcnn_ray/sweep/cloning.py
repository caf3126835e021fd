"""`cloned` demonstrations as D4RL defines them: half demonstrations, half rollouts of a policy cloned from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.config import SweepConfig
from mcnn_ray.data.collect import record_episodes
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError
from mcnn_ray.sweep.packs import default_device
from mcnn_ray.sweep.studies import open_study
from mcnn_ray.sweep.study import Study
from mcnn_ray.tasks.environments import make_environment
from mcnn_ray.training.learners import make_pack
from mcnn_ray.training.pack import CHUNK_STEPS

__all__ = ["CLONE_SEED", "clone_demonstrations"]

CLONE_SEED = 4_000_000  # of the first rollout: starts that neither demonstrations nor evaluations see


def clone_demonstrations(
    config: SweepConfig, episodes: int | None, progress: Callable[[str, float, float], None]
) -> Demonstrations:
    """Clone a task's demonstrations with `bc`, roll the policy out and join both halves.

    As in D4RL (Fu et al. 2020, section 5), demonstrations are copied until they are as many as the rollouts.

    Args:
        config: of one `bc` member.
        episodes: rollouts; None takes as many as there are demonstrations.
        progress: told of it.

    Returns:
        Demonstrations first, then rollouts, whose actions are clipped to the environment's bounds.

    Raises:
        ConfigError: fewer rollouts than demonstrations are asked for.
        DatasetError: there are no demonstrations, or they cannot be learned from.
    """
    if config.find_task().images:
        raise ConfigError(f"the observations of {config.task} are images, of which no cloned variant is made")
    study = open_study(config)
    shown = study.demonstrations
    count = shown.episodes if episodes is None else episodes
    if count < shown.episodes:
        raise ConfigError(
            f"{count} rollouts would be fewer than the {shown.episodes} demonstrations they stand beside; ask for at "
            f"least {shown.episodes}, or learn from fewer with --demonstrations"
        )
    act, identity = _cloned_policy(study, config, progress)
    rollouts = record_episodes(
        study.task,
        make_environment(study.task),
        range(CLONE_SEED, CLONE_SEED + count),
        act,
        f"bc on {shown.source}",
        lambda done: progress("rollouts, episodes", done, count),
    )
    joined = shown.take(np.arange(count) % shown.episodes).followed_by(rollouts)
    (member,) = config.members()
    cloned_from = {"source": shown.source, "sha256": shown.sha256, "episodes": shown.episodes}
    provenance = {**rollouts.provenance, "cloned_from": cloned_from, "member": member.parameters(), "policy": identity}
    return replace(joined, source=f"{shown.source} and {rollouts.source}", provenance=provenance)


def _cloned_policy(
    study: Study, config: SweepConfig, progress: Callable[[str, float, float], None]
) -> tuple[Callable[[npt.NDArray[Any], np.random.Generator], npt.NDArray[np.float32]], str]:
    (member,) = config.members()
    pack = make_pack([member], study.training_data(member.data_key, [], default_device()))
    while pack.step < member.steps:
        pack.train(min(CHUNK_STEPS, member.steps - pack.step))
        progress("training, steps", pack.step, member.steps)
    policy = study.policy(member, pack.parameters(0))
    scale = study.action_scale

    def act(obs_D: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        actions_BA, _ = policy.act(np.asarray(obs_D, dtype=np.float32)[None])
        action_A: npt.NDArray[np.float32] = np.clip(actions_BA[0], scale.low_A, scale.high_A)
        return action_A

    return act, study.identity(member)
