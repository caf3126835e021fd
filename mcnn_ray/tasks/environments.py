"""Making a task's environment: any Gymnasium id with a Box action space."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from mcnn_ray.carla.environment import DrivingEnv
from mcnn_ray.carla.supervised import supervised
from mcnn_ray.errors import ConfigError, McnnError, SimulationError, did_you_mean
from mcnn_ray.tasks.adroit import D4RLReward
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.driving import register_driving
from mcnn_ray.tasks.kitchen import KitchenJointTargets
from mcnn_ray.tasks.robotics import register_robotics

__all__ = ["environment_id", "make_environment", "normalised_score", "simulator_name", "simulator_versions"]


def environment_id(task: Task) -> str:
    """Return the full Gymnasium id of a task's environment.

    Args:
        task: for Adroit the id lacks a version, and the newest registered one is taken: v2 has the reward mended.

    Raises:
        SimulationError: no version is registered.
    """
    if task.reward != "d4rl-adroit":
        return task.environment
    register_robotics()
    for version in (2, 1):
        if f"{task.environment}-v{version}" in gym.registry:
            return f"{task.environment}-v{version}"
    raise SimulationError(
        f"{task.environment} is not registered by the installed gymnasium-robotics; "
        "pip install 'gymnasium-robotics>=1.4.2'"
    )


def make_environment(task: Task, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Make the task's environment with flat Box observations, its horizon and, for Adroit, D4RL's reward.

    Observations are copies where the environment's are not flat: FrankaKitchen gives the same arrays at every step.

    Args:
        task: what to make.
        render_mode: passed to Gymnasium, e.g. `rgb_array`.

    Returns:
        An environment whose observation and action spaces are one-dimensional Boxes.

    Raises:
        ConfigError: no environment has this id, or its action space is not a Box.
        SimulationError: the environment fails while it is made.
    """
    name = environment_id(task)
    options: dict[str, Any] = {} if task.horizon is None else {"max_episode_steps": task.horizon}
    if render_mode is not None:  # environments of users' own need not take one
        options["render_mode"] = render_mode
    if task.subtasks:
        options["tasks_to_complete"] = list(task.subtasks)
    register_robotics()
    register_driving()
    try:
        env = gym.make(name, disable_env_checker=True, **options)
        env = env if task.server is None else supervised(env)
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise ConfigError(
            f"no environment '{name}' ({error}); {did_you_mean(name.split(':')[-1], gym.registry)} "
            "Environments of your own are named module:id."
        ) from error
    except McnnError:
        raise
    except Exception as error:
        raise SimulationError(f"environment '{name}' could not be made: {type(error).__name__}: {error}") from error
    env = _as_policies_see_it(env, task)
    if not isinstance(env.action_space, Box) or len(env.action_space.shape) != 1:
        raise ConfigError(
            f"environment '{name}' has the action space {env.action_space}; policies here give continuous actions and "
            "need a one-dimensional Box"
        )
    if not np.all(np.isfinite(env.action_space.low)) or not np.all(np.isfinite(env.action_space.high)):
        raise ConfigError(
            f"environment '{name}' has an action space without bounds ({env.action_space}); wrap it so that the "
            "bounds are finite (gymnasium.wrappers.RescaleAction), since actions are scaled by them"
        )
    return env


def _as_policies_see_it(env: gym.Env[Any, Any], task: Task) -> gym.Env[Any, Any]:
    if task.reward == "d4rl-adroit":
        env = D4RLReward(env, task.environment)
    if task.observation_key is not None:
        env = gym.wrappers.FilterObservation(env, [task.observation_key])
    if not isinstance(env.observation_space, Box) or len(env.observation_space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)
    return KitchenJointTargets(env) if task.control == "joint-targets" else env


def simulator_name(task: Task, env: gym.Env[Any, Any]) -> str:
    """Return what runs a task's episodes: the environment's id, and for driving the server, its version and map.

    Args:
        task: what `env` was made for.
        env: has been reset.
    """
    name, inner = environment_id(task), env.unwrapped
    return f"{name} on {inner.simulator}" if isinstance(inner, DrivingEnv) else name


def normalised_score(task: Task, env: gym.Env[Any, Any], episode_return: float) -> float | None:
    """Return `Task.normalised_score`, or None where what ran is not what the references were measured on.

    Args:
        task: what `env` was made for.
        env: has run the episode.
        episode_return: of it.
    """
    inner = env.unwrapped
    if isinstance(inner, DrivingEnv) and not inner.comparable:
        return None
    return task.normalised_score(episode_return)


def simulator_versions() -> dict[str, str]:
    """Return the installed versions of what an episode's numbers depend on."""
    return dict(_simulator_versions())


@functools.cache
def _simulator_versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("gymnasium", "gymnasium-robotics", "mujoco")}
