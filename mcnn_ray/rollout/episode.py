"""Episodes of a policy in a task's environment.

Shapes: B episodes in step, T steps of one, D observation numbers, A action numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.errors import DatasetError, SimulationError
from mcnn_ray.policies.base import Policy
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import normalised_score, simulator_name, simulator_versions

__all__ = [
    "EVALUATION_SEED",
    "FAULTS",
    "LOCKSTEP",
    "SELECTION_SEED",
    "EpisodeRecord",
    "Rollout",
    "environment_fault",
    "run_episodes",
]

# Episode k of an evaluation has the seed EVALUATION_SEED + k. Demonstrations are recorded from seed 0 on, and choosing
# hyperparameters has its own range, so that nothing is reported on starts that were seen before.
EVALUATION_SEED = 1_000_000
SELECTION_SEED = 2_000_000

LOCKSTEP = 8  # episodes in step: more gain little, and lose the simulators' data from the cache
_MAX_STEPS = 100_000  # an environment that never ends is stopped here
# What environments raise when they fail.
FAULTS = (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, gym.error.Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One rollout.

    Attributes:
        member: identity of the member that acted.
        task: its id.
        episode_seed: the environment was reset with it.
        episode_return: sum of rewards, raw units.
        normalised_score: in D4RL's scale of 0 to 100, or None where no reference fits.
        success: whether the environment reported success at any step; None where it never reports it.
        length: steps taken.
        most_isolated_distance: largest distance to the nearest memory on the way, standardised units; None for policies
            without memories.
        mean_memory_weight: mean share of the memories in the actions, in [0, 1]; None likewise.
        simulator: full id of the environment, and for driving the server, its version and map.
        versions: of the packages that the result depends on.
        wall_s: seconds until its end, from the start of those it ran in step with.
        subtasks: which of the things that the environment asked for were done at any step; None where it names none.
    """

    member: str
    task: str
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
    subtasks: dict[str, bool] | None = None

    def row(self) -> dict[str, Any]:
        """Return the fields as a table row."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode and what was done in it.

    Attributes:
        record: what came of it.
        actions_TA: (T, A) float32, raw actions as the environment got them.
    """

    record: EpisodeRecord
    actions_TA: npt.NDArray[np.float32]


def run_episodes(
    policy: Policy,
    task: Task,
    envs: Sequence[gym.Env[Any, Any]],
    seeds: Sequence[int],
    member: str,
    first_place: int = 0,
) -> list[Rollout]:
    """Run episodes in step, with one call of the policy for all.

    The rounding of a product may depend on how many observations it takes and on the place of each, but not on what
    the others are. So the policy is always asked about `LOCKSTEP` observations, and an episode's bits depend on its
    seed and its place among them, and on nothing else: not on who is in company, or ends before.

    Args:
        policy: acts.
        task: gives the score's scale.
        envs: made by `make_environment(task)`, at least as many as seeds; they are reset.
        seeds: of the resets, at most `LOCKSTEP` less `first_place`.
        member: identity for the records.
        first_place: of the first seed; the others follow.

    Returns:
        One rollout a seed.

    Raises:
        SimulationError: an environment raises, gives NaN, or does not end.
        DatasetError: the policy was made for other observations or actions.
    """
    started = time.perf_counter()
    low_A, high_A = envs[0].action_space.low, envs[0].action_space.high  # type: ignore[attr-defined]
    episodes = [_Episode(task, env, seed) for env, seed in zip(envs, seeds, strict=False)]
    live: list[tuple[int, _Episode]] = list(enumerate(episodes, first_place))
    rows = [np.zeros_like(episodes[0].observation)] * LOCKSTEP
    places = {place: episode.seed for place, episode in live}
    states = policy.start([places.get(place, 0) for place in range(LOCKSTEP)])
    while live:
        for place, episode in live:
            rows[place] = episode.observation
        obs_BD = policy.encode(np.array(rows))  # a copy: some environments reuse their buffer
        actions_BA, states = policy.act(obs_BD, states)
        if actions_BA.shape[1] != len(low_A):
            raise DatasetError(
                f"the policy of {policy.card.get('task')} gives {policy.action_dim} action numbers, {task.id} takes "
                f"{len(low_A)}; evaluate it on its own task"
            )
        actions_BA = np.minimum(np.maximum(actions_BA, low_A), high_A)
        for place, episode in live:
            episode.step(obs_BD[place], actions_BA[place])
        if any(episode.wall_s is not None for _, episode in live):
            for _, episode in live:
                if episode.wall_s is not None:
                    episode.wall_s = time.perf_counter() - started
            live = [(place, episode) for place, episode in live if episode.wall_s is None]
    return [episode.rollout(policy, member) for episode in episodes]


def environment_fault(task_id: str, seed: int, step: int, error: Exception) -> SimulationError:
    """Return what one of `FAULTS` that an environment raised is to a user: with its place."""
    return SimulationError(f"{task_id}, episode seed {seed}, step {step}: {type(error).__name__}: {error}")


def _names(value: Any) -> list[str]:
    # Environments of users' own may mean something else by the key. Sorted: the order of a set is the process's own.
    return sorted(map(str, value)) if isinstance(value, (list, tuple, set, frozenset)) else []


class _Episode:
    """An episode on its way."""

    def __init__(self, task: Task, env: gym.Env[Any, Any], seed: int) -> None:
        self._task, self._env, self.seed = task, env, seed
        self._seen: list[npt.NDArray[Any]] = []
        self._actions: list[npt.NDArray[np.float32]] = []
        self._return = 0.0
        self._success: bool | None = None
        self.wall_s: float | None = None  # until its end; None before
        try:
            self.observation, info = env.reset(seed=seed)
        except FAULTS as error:
            raise self._told(error) from error
        # As FrankaKitchen tells: names of all at the start, and of those done so far at every step.
        self._subtasks = dict.fromkeys(_names(info.get("tasks_to_complete")), False)

    def step(self, obs_D: npt.NDArray[Any], action_A: npt.NDArray[np.float32]) -> None:
        """Take a step; the observation is a copy of this episode's own, as the policy sees it."""
        self._seen.append(obs_D)
        self._actions.append(action_A)
        try:
            self.observation, reward, terminated, truncated, info = self._env.step(action_A)
            self._return += float(reward)
        except FAULTS as error:
            raise self._told(error) from error
        if "success" in info:
            self._success = bool(info["success"]) or bool(self._success)
        if self._subtasks:
            self._subtasks |= dict.fromkeys(_names(info.get("episode_task_completions")), True)
        if terminated or truncated:
            self.wall_s = 0.0
        elif len(self._actions) >= _MAX_STEPS:
            raise SimulationError(
                f"{self._task.id}, episode seed {self.seed}: no end after {_MAX_STEPS} steps; give the task a horizon"
            )

    def rollout(self, policy: Policy, member: str) -> Rollout:
        """Return what came of it."""
        if not np.isfinite(self._return) or not np.isfinite(self.observation).all():
            raise SimulationError(
                f"{self._task.id}, episode seed {self.seed}: the environment gave NaN or infinite rewards or "
                "observations"
            )
        told = policy.explain(np.stack(self._seen))
        record = EpisodeRecord(
            member=member,
            task=self._task.id,
            episode_seed=self.seed,
            episode_return=self._return,
            normalised_score=normalised_score(self._task, self._env, self._return),
            success=self._success,
            length=len(self._actions),
            most_isolated_distance=None if told is None else float(told.distance_B.max()),
            mean_memory_weight=None if told is None else float(told.weight_B.mean()),
            simulator=simulator_name(self._task, self._env),
            versions=simulator_versions(),
            wall_s=self.wall_s or 0.0,
            subtasks=self._subtasks or None,
        )
        return Rollout(record=record, actions_TA=np.stack(self._actions).astype(np.float32))

    def _told(self, error: Exception) -> SimulationError:
        return environment_fault(self._task.id, self.seed, len(self._actions), error)
