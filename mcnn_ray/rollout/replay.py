"""A recorded episode run again from its seed with its actions: what it earned then, it must earn now.

Shapes: T steps, D observation numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.errors import SimulationError
from mcnn_ray.rollout.episode import FAULTS, Rollout, environment_fault
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.tasks.environments import make_environment, simulator_versions

__all__ = ["Replay", "SeenAgain", "check_same", "replay", "replay_steps", "see_again", "see_same"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of the actions this time.

    Attributes:
        episode_return: sum of rewards, raw units.
        success: whether the environment reported it at any step; None where it never does.
        length: steps taken until the environment ended the episode, or the actions did.
        terminated: whether the environment ended the episode, rather than a limit of steps.
        other_versions: recorded and installed version of each package that differs.
    """

    episode_return: float
    success: bool | None
    length: int
    terminated: bool
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
        return see_again(rollout, env).outcome
    finally:
        env.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAgain:
    """What was seen while the actions were given again.

    Attributes:
        outcome: what came of them.
        observations_TD: (T + 1, D) float32, raw: before each action, and after the last.
        rewards_T: (T,) float32.
    """

    outcome: Replay
    observations_TD: npt.NDArray[np.float32]
    rewards_T: npt.NDArray[np.float32]


def see_again(rollout: Rollout, env: gym.Env[Any, Any], each: Callable[[int], None] | None = None) -> SeenAgain:
    """Give the recorded actions to an environment and keep what it shows.

    Args:
        rollout: with the actions.
        env: of its task; it is reset with the recorded seed.
        each: called after the reset and after each step with the steps taken, e.g. to draw.

    Raises:
        SimulationError: the environment fails.
    """
    watched = _Watched(env)
    for again in replay_steps(rollout, watched):
        if each is not None:
            each(again.length)
    return SeenAgain(
        outcome=again,
        observations_TD=np.stack(watched.observations),
        rewards_T=np.array(watched.rewards, dtype=np.float32),
    )


def see_same(rollout: Rollout, env: gym.Env[Any, Any]) -> SeenAgain:
    """Give the recorded actions to an environment, which must earn what they earned; see `see_again`.

    Raises:
        SimulationError: the environment fails, or the episode is another one now.
    """
    seen = see_again(rollout, env)
    check_same(seen.outcome, rollout)
    return seen


class _Watched(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps copies of what an environment shows: some reuse their arrays."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observations: list[npt.NDArray[np.float32]] = []
        self.rewards: list[float] = []

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        self.observations.append(np.array(obs, dtype=np.float32))
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.observations.append(np.array(obs, dtype=np.float32))
        self.rewards.append(float(reward))
        return obs, reward, terminated, truncated, info


def check_same(again: Replay, rollout: Rollout) -> None:
    """Refuse a replay that is not the recorded episode.

    Raises:
        SimulationError: it is not; the message names both returns and the versions that differ.
    """
    if not again.same(rollout):
        versions = "; ".join(f"{name} {then}, here {now}" for name, (then, now) in again.other_versions.items())
        raise SimulationError(
            f"the episode of seed {rollout.record.episode_seed} earned {rollout.record.episode_return!r} when it was "
            f"recorded and {again.episode_return!r} now "
            f"({versions or 'with the same versions: the simulator does not repeat itself on this machine'})"
        )


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
    total, length, success, terminated, truncated = 0.0, 0, None, False, False
    try:
        env.reset(seed=record.episode_seed)
        while True:
            yield Replay(
                episode_return=total,
                success=success,
                length=length,
                terminated=bool(terminated),
                other_versions=other_versions,
            )
            if terminated or truncated or length == len(rollout.actions_TA):
                return
            _, reward, terminated, truncated, info = env.step(rollout.actions_TA[length])
            total, length = total + float(reward), length + 1
            if "success" in info:
                success = bool(info["success"]) or bool(success)
    except FAULTS as error:
        raise environment_fault(record.task, record.episode_seed, length, error) from error
