"""Recorded rollouts as demonstrations: run again, since records hold actions and not what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.rollout.episode import Rollout
from mcnn_ray.rollout.replay import see_same
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import environment_id, make_environment

__all__ = ["rollouts_as_demonstrations"]


def rollouts_as_demonstrations(
    rollouts: Sequence[Rollout],
    task: Task,
    source: str,
    facts: Mapping[str, Any],
    progress: Callable[[int], None] | None = None,
) -> Demonstrations:
    """Run recorded episodes again and keep what is seen; each must earn what it earned.

    Args:
        rollouts: of one task, at least one.
        task: theirs.
        source: where they are said to come from.
        facts: further provenance, e.g. of the policy that acted; JSON values.
        progress: called with the episodes done.

    Raises:
        SimulationError: the environment fails, or an episode is another one now.
    """
    env, seen = make_environment(task), []
    try:
        for done, rollout in enumerate(rollouts, 1):
            seen.append(see_same(rollout, env))
            if progress is not None:
                progress(done)
    finally:
        env.close()
    records = [rollout.record for rollout in rollouts]
    told = [record.success for record in records if record.success is not None]
    return Demonstrations(
        observations_ND=np.concatenate([again.observations_TD[:-1] for again in seen]),
        actions_NA=np.concatenate([rollout.actions_TA for rollout in rollouts]),
        rewards_N=np.concatenate([again.rewards_T for again in seen]),
        offsets=np.cumsum([0, *(record.length for record in records)], dtype=np.int64),
        final_observations_ED=np.stack([again.observations_TD[-1] for again in seen]),
        successes_E=np.array(told) if len(told) == len(records) else None,
        terminated_E=np.array([again.outcome.terminated for again in seen]),
        source=source,
        provenance={
            **facts,
            "task": task.id,
            "member": records[0].member,
            "episode_seeds": [record.episode_seed for record in records],
            "environment": environment_id(task),
            "reward": task.reward,
            "simulator": records[0].simulator,
            "versions": records[0].versions,
        },
    )
