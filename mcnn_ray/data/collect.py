"""Recording episodes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.plan import check_attached
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.experts import Expert
from mcnn_ray.errors import ConfigError, ServerError
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import environment_id, make_environment, simulator_name, simulator_versions

__all__ = ["collect_episodes", "record_episodes"]

Act = Callable[[npt.NDArray[Any], np.random.Generator], npt.NDArray[np.float32]]
Begin = Callable[[np.random.Generator], None]

_PATIENCE = 10  # episodes that may fail beyond half of all
_ATTEMPTS = 3  # of an episode whose server failed

logger = logging.getLogger(__name__)


def collect_episodes(
    task: Task,
    episodes: int,
    *,
    expert: str | None = None,
    noise: bool = True,
    seed: int = 0,
    least_return: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Demonstrations:
    """Roll out a packaged expert and record what it sees and does.

    Args:
        task: whose environment is used.
        episodes: how many, at least 1.
        expert: name of the expert; None takes the task's own.
        noise: act with the expert's noise, as D4RL's expert data was recorded.
        seed: the first episode is reset with it, each further one with the next seed.
        least_return: episodes of less are left out, and others recorded in their place; None keeps all, failures too,
            as in D4RL.
        progress: called with the episodes kept.

    Returns:
        The recorded episodes.

    Raises:
        ConfigError: no such expert, none for this task, fewer than one episode, or too few reach the least return.
    """
    if episodes < 1:
        raise ConfigError(f"{episodes} episodes asked for; record at least 1")
    name = expert or task.expert
    if name is None:
        raise ConfigError(
            f"no expert is known for {task.id}; name one with --expert, or import recorded demonstrations"
        )
    if task.server is not None:
        check_attached()
    env = make_environment(task)
    choose, begin = _expert(name, task, env)

    def act(obs_D: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        return choose(obs_D, rng if noise else None)

    source = f"{name} expert on {task.id}"
    recorded = record_episodes(
        task, env, range(seed, seed + episodes), act, source, progress, begin=begin, least_return=least_return
    )
    return replace(recorded, provenance={"expert": name, "noise": noise, "seed": seed, **recorded.provenance})


def _expert(
    name: str, task: Task, env: gym.Env[Any, Any]
) -> tuple[Callable[[npt.NDArray[Any], np.random.Generator | None], npt.NDArray[np.float32]], Begin | None]:
    if name == "kitchen":
        # Not above: it loads MuJoCo, whose failures `make_environment` puts into words.
        from mcnn_ray.data.kitchen_expert import KitchenExpert

        scripted = KitchenExpert(task, env)
        return scripted.act, scripted.begin
    if name == "driving":
        from mcnn_ray.carla.expert import DrivingExpert

        driver = DrivingExpert(env)
        return driver.act, driver.begin
    policy = Expert.load(name)
    if env.observation_space.shape != (policy.obs_dim,):
        raise ConfigError(
            f"the {name} expert takes {policy.obs_dim} observation numbers, {task.id} gives "
            f"{env.observation_space.shape}; use the expert '{task.expert}'"
        )
    return policy.act, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    """What was seen and done: (T, D) observations and the one after them, (T, A) actions, (T,) rewards."""

    observations: list[npt.NDArray[np.float32]]
    final: npt.NDArray[np.float32]
    actions: list[npt.NDArray[np.float32]]
    rewards: list[float]
    success: bool | None
    terminated: bool
    subtasks: tuple[str, ...]  # those done


def record_episodes(
    task: Task,
    env: gym.Env[Any, Any],
    seeds: range,
    act: Act,
    source: str,
    progress: Callable[[int], None] | None = None,
    *,
    begin: Begin | None = None,
    least_return: float | None = None,
) -> Demonstrations:
    """Record what is seen and done in episodes.

    Args:
        task: what they are of.
        env: made by `make_environment(task)`; it is closed.
        seeds: of the resets; as many episodes are kept.
        act: chooses an action from an observation and a generator of the episode's own.
        source: where the episodes are said to come from.
        progress: called with the episodes kept.
        begin: called after each reset with the generator that `act` will be given.
        least_return: episodes of less are left out, and the seeds after `seeds` take their place; None keeps all.

    Raises:
        ConfigError: most episodes do not reach the least return.
        SimulationError: the environment fails; a server's failure is borne twice an episode.
    """
    kept: list[_Episode] = []
    left_out: list[int] = []
    for seed in itertools.count(seeds.start):
        episode = _record(env, seed, act, begin, _ATTEMPTS)
        if least_return is not None and sum(episode.rewards) < least_return:
            left_out.append(seed)
            if len(left_out) > len(seeds) + _PATIENCE:
                raise ConfigError(
                    f"of {len(kept) + len(left_out)} episodes only {len(kept)} reached the return {least_return:g}; "
                    "ask for less"
                )
            continue
        kept.append(episode)
        if progress is not None:
            progress(len(kept))
        if len(kept) == len(seeds):
            break
    simulator = simulator_name(task, env)
    env.close()
    successes = [episode.success for episode in kept if episode.success is not None]
    return Demonstrations(
        observations_ND=np.stack([obs_D for episode in kept for obs_D in episode.observations]),
        actions_NA=np.stack([action_A for episode in kept for action_A in episode.actions]).astype(np.float32),
        rewards_N=np.asarray([reward for episode in kept for reward in episode.rewards], dtype=np.float32),
        offsets=np.cumsum([0, *(len(episode.actions) for episode in kept)], dtype=np.int64),
        final_observations_ED=np.stack([episode.final for episode in kept]),
        successes_E=np.array(successes) if len(successes) == len(kept) else None,
        terminated_E=np.array([episode.terminated for episode in kept]),
        source=source if simulator == environment_id(task) else f"{source}: {simulator}",
        provenance={
            "environment": environment_id(task),
            "reward": task.reward,
            "simulator": simulator,
            "versions": simulator_versions(),
            **({} if least_return is None else {"least_return": least_return, "seeds_left_out": left_out}),
            **_shares(task, kept),
        },
    )


def _record(env: gym.Env[Any, Any], seed: int, act: Act, begin: Begin | None, attempts: int) -> _Episode:
    try:
        return _record_once(env, seed, act, begin)
    except ServerError as error:
        if attempts == 1:
            raise
        logger.warning("episode seed %d is recorded again; %s", seed, error)
        return _record(env, seed, act, begin, attempts - 1)


def _record_once(env: gym.Env[Any, Any], seed: int, act: Act, begin: Begin | None) -> _Episode:
    # The environment draws its start from default_rng(seed); the noise must not repeat that stream.
    rng = np.random.default_rng((seed, 1))
    obs, _ = env.reset(seed=seed)
    if begin is not None:
        begin(rng)
    observations, actions, rewards, told, done = [], [], list[float](), [], False
    while not done:
        action_A = act(obs, rng)
        observations.append(np.asarray(obs, dtype=np.float32))
        actions.append(action_A)
        obs, reward, terminated, truncated, info = env.step(action_A)
        told += [bool(info["success"])] if "success" in info else []
        rewards.append(float(reward))
        done = terminated or truncated
    return _Episode(
        observations=observations,
        final=np.asarray(obs, dtype=np.float32),
        actions=actions,
        rewards=rewards,
        success=any(told) if told else None,
        terminated=bool(terminated),
        subtasks=tuple(info.get("episode_task_completions", ())),
    )


def _shares(task: Task, kept: Sequence[_Episode]) -> dict[str, dict[str, float]]:
    """Return the share of the kept episodes in which each of the task's subtasks was done."""
    done = [name for episode in kept for name in episode.subtasks]
    return {"subtask_shares": {name: done.count(name) / len(kept) for name in task.subtasks}} if task.subtasks else {}
