"""One episode of a policy in a task's environment."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.errors import SimulationError
from mcnn_ray.policies.base import Policy
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import environment_id, simulator_versions

__all__ = ["EVALUATION_SEED", "SELECTION_SEED", "EpisodeRecord", "run_episode"]

# Episode k of an evaluation has the seed EVALUATION_SEED + k. Demonstrations are recorded from seed 0 on, and choosing
# hyperparameters has its own range, so that nothing is reported on starts that were seen before.
EVALUATION_SEED = 1_000_000
SELECTION_SEED = 2_000_000

_MAX_STEPS = 100_000  # an environment that never ends is stopped here


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One rollout.

    Attributes:
        member: identity of the member that acted.
        episode_seed: the environment was reset with it.
        episode_return: sum of rewards, raw units.
        normalised_score: in D4RL's scale of 0 to 100, or None where no reference fits.
        success: whether the environment reported success at any step; None where it never reports it.
        length: steps taken.
        most_isolated_distance: largest distance to the nearest memory on the way, standardised units; None for policies
            without memories.
        mean_memory_weight: mean share of the memories in the actions, in [0, 1]; None likewise.
        simulator: full id of the environment.
        versions: of the packages that the result depends on.
        wall_s: seconds the episode took.
    """

    member: str
    episode_seed: int
    episode_return: float
    normalised_score: float | None
    success: bool | None
    length: int
    most_isolated_distance: float | None
    mean_memory_weight: float | None
    simulator: str
    versions: dict[str, str]
    wall_s: float

    def row(self) -> dict[str, Any]:
        """Return the fields as a table row."""
        return asdict(self)


def run_episode(policy: Policy, task: Task, env: gym.Env[Any, Any], seed: int, member: str) -> EpisodeRecord:
    """Run one episode; its result depends on the policy and the seed alone.

    Args:
        policy: acts; its state starts anew.
        task: gives the score's scale.
        env: made by `make_environment(task)`; it is reset.
        seed: of the reset.
        member: identity for the record.

    Raises:
        SimulationError: the environment raises, gives NaN, or does not end.
    """
    started = time.perf_counter()
    low_A, high_A = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
    total, step, state = 0.0, 0, None
    successes: list[bool] = []
    seen: list[npt.NDArray[np.float32]] = []
    try:
        observation, _ = env.reset(seed=seed)
        while step < _MAX_STEPS:
            step += 1
            seen.append(np.array(observation, dtype=np.float32))  # a copy: some environments reuse their buffer
            action_BA, state = policy.act(np.asarray(observation)[None], state)
            observation, reward, terminated, truncated, info = env.step(np.clip(action_BA[0], low_A, high_A))
            total += float(reward)
            if "success" in info:
                successes.append(bool(info["success"]))
            if terminated or truncated:
                break
        else:
            raise SimulationError(
                f"{task.id}, episode seed {seed}: no end after {_MAX_STEPS} steps; give the task a horizon"
            )
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
        AttributeError,
        gym.error.Error,
    ) as error:
        raise SimulationError(
            f"{task.id}, episode seed {seed}, step {step}: {type(error).__name__}: {error}"
        ) from error
    if not np.isfinite(total) or not np.isfinite(observation).all():
        raise SimulationError(
            f"{task.id}, episode seed {seed}: the environment gave NaN or infinite rewards or observations"
        )
    told = policy.explain(np.stack(seen))
    return EpisodeRecord(
        member=member,
        episode_seed=seed,
        episode_return=total,
        normalised_score=task.normalised_score(total),
        success=any(successes) if successes else None,
        length=step,
        most_isolated_distance=None if told is None else float(told.distance_B.max()),
        mean_memory_weight=None if told is None else float(told.weight_B.mean()),
        simulator=environment_id(task),
        versions=simulator_versions(),
        wall_s=time.perf_counter() - started,
    )
