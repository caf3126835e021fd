"""Recording episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.experts import Expert
from mcnn_ray.errors import ConfigError
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import environment_id, make_environment, simulator_versions

__all__ = ["collect_episodes", "record_episodes"]

Act = Callable[[npt.NDArray[Any], np.random.Generator], npt.NDArray[np.float32]]
Begin = Callable[[np.random.Generator], None]


def collect_episodes(
    task: Task,
    episodes: int,
    *,
    expert: str | None = None,
    noise: bool = True,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Demonstrations:
    """Roll out a packaged expert and record what it sees and does.

    Args:
        task: whose environment is used.
        episodes: how many, at least 1; all are kept, failures too, as in D4RL.
        expert: name of the expert; None takes the task's own.
        noise: act with the expert's noise, as D4RL's expert data was recorded.
        seed: episode k is reset with seed + k.
        progress: called with the episodes done.

    Returns:
        The recorded episodes.

    Raises:
        ConfigError: no such expert, none for this task, or fewer than one episode.
    """
    if episodes < 1:
        raise ConfigError(f"{episodes} episodes asked for; record at least 1")
    name = expert or task.expert
    if name is None:
        raise ConfigError(
            f"no expert is known for {task.id}; name one with --expert, or import recorded demonstrations"
        )
    env = make_environment(task)
    choose, begin = _expert(name, task, env)

    def act(obs_D: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.float32]:
        return choose(obs_D, rng if noise else None)

    source = f"{name} expert on {task.id}"
    recorded = record_episodes(task, env, range(seed, seed + episodes), act, source, progress, begin)
    return replace(recorded, provenance={"expert": name, "noise": noise, "seed": seed, **recorded.provenance})


def _expert(
    name: str, task: Task, env: gym.Env[Any, Any]
) -> tuple[Callable[[npt.NDArray[Any], np.random.Generator | None], npt.NDArray[np.float32]], Begin | None]:
    if name == "kitchen":
        # Not above: it loads MuJoCo, whose failures `make_environment` puts into words.
        from mcnn_ray.data.kitchen_expert import KitchenExpert

        scripted = KitchenExpert(task, env)
        return scripted.act, scripted.begin
    policy = Expert.load(name)
    if env.observation_space.shape != (policy.obs_dim,):
        raise ConfigError(
            f"the {name} expert takes {policy.obs_dim} observation numbers, {task.id} gives "
            f"{env.observation_space.shape}; use the expert '{task.expert}'"
        )
    return policy.act, None


def record_episodes(
    task: Task,
    env: gym.Env[Any, Any],
    seeds: Sequence[int],
    act: Act,
    source: str,
    progress: Callable[[int], None] | None = None,
    begin: Begin | None = None,
) -> Demonstrations:
    """Record what is seen and done in episodes.

    Args:
        task: what they are of.
        env: made by `make_environment(task)`; it is closed.
        seeds: of the resets.
        act: chooses an action from an observation and a generator of the episode's own.
        source: where the episodes are said to come from.
        progress: called with the episodes done.
        begin: called after each reset with the generator that `act` will be given.
    """
    observations: list[npt.NDArray[np.float32]] = []
    actions: list[npt.NDArray[np.float32]] = []
    finals: list[npt.NDArray[np.float32]] = []
    rewards: list[float] = []
    lengths: list[int] = []
    successes: list[bool] = []
    for k, seed in enumerate(seeds):
        # The environment draws its start from default_rng(seed); the noise must not repeat that stream.
        rng = np.random.default_rng((seed, 1))
        obs, _ = env.reset(seed=seed)
        if begin is not None:
            begin(rng)
        done, start, told = False, len(actions), []
        while not done:
            action = act(obs, rng)
            observations.append(np.asarray(obs, dtype=np.float32))
            actions.append(action)
            obs, reward, terminated, truncated, info = env.step(action)
            told += [bool(info["success"])] if "success" in info else []
            rewards.append(float(reward))
            done = terminated or truncated
        finals.append(np.asarray(obs, dtype=np.float32))
        lengths.append(len(actions) - start)
        successes += [any(told)] if told else []
        if progress is not None:
            progress(k + 1)
    env.close()
    return Demonstrations(
        observations_ND=np.stack(observations),
        actions_NA=np.stack(actions).astype(np.float32),
        rewards_N=np.asarray(rewards, dtype=np.float32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        final_observations_ED=np.stack(finals),
        successes_E=np.array(successes) if len(successes) == len(seeds) else None,
        source=source,
        provenance={
            "environment": environment_id(task),
            "reward": task.reward,
            "versions": simulator_versions(),
        },
    )
