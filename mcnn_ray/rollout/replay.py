"""A recorded episode run again from its seed with its actions: what it earned then, it must earn now."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from mcnn_ray.rollout.episode import FAULTS, Rollout, environment_fault
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment, simulator_versions

__all__ = ["Replay", "replay", "replay_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of the actions this time.

    Attributes:
        episode_return: sum of rewards, raw units.
        success: whether the environment reported it at any step; None where it never does.
        length: steps taken until the environment ended the episode, or the actions did.
        other_versions: recorded and installed version of each package that differs.
    """

    episode_return: float
    success: bool | None
    length: int
    other_versions: dict[str, tuple[str, str]]

    def same(self, rollout: Rollout) -> bool:
        """Tell whether return, success and length are those of the record, to the last bit."""
        record = rollout.record
        return (self.episode_return, self.success, self.length) == (
            record.episode_return,
            record.success,
            record.length,
        )


def replay(rollout: Rollout) -> Replay:
    """Give the recorded actions to the task's environment again.

    Raises:
        ConfigError: the task is not known here.
        SimulationError: the environment fails.
    """
    env = make_environment(find_task(rollout.record.task))
    try:
        return deque(replay_steps(rollout, env), maxlen=1)[0]
    finally:
        env.close()


def replay_steps(rollout: Rollout, env: gym.Env[Any, Any]) -> Iterator[Replay]:
    """Give the recorded actions to an environment, one by one.

    Args:
        rollout: with the actions.
        env: of its task; it is reset with the recorded seed.

    Yields:
        What has come of it so far: after the reset, and after each step until the environment or the actions end.

    Raises:
        SimulationError: the environment fails.
    """
    record, installed = rollout.record, simulator_versions()
    other_versions = {
        name: (recorded, installed.get(name, "none"))
        for name, recorded in record.versions.items()
        if installed.get(name) != recorded
    }
    total, length, success, ended = 0.0, 0, None, False
    try:
        env.reset(seed=record.episode_seed)
        while True:
            yield Replay(episode_return=total, success=success, length=length, other_versions=other_versions)
            if ended or length == len(rollout.actions_TA):
                return
            _, reward, terminated, truncated, info = env.step(rollout.actions_TA[length])
            total, length, ended = total + float(reward), length + 1, terminated or truncated
            if "success" in info:
                success = bool(info["success"]) or bool(success)
    except FAULTS as error:
        raise environment_fault(record.task, record.episode_seed, length, error) from error
