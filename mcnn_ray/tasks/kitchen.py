"""Franka Kitchen under absolute joint targets, and which of its objects are done in recorded positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from mcnn_ray.tasks.robotics import register_robotics

__all__ = ["POSITIONS", "ROBOT_JOINTS", "KitchenJointTargets", "objects_done"]

POSITIONS = 30  # qpos: of the robot's joints, and of the objects
ROBOT_JOINTS = 9  # two of them gripper fingers
_OBJECT_POSITIONS = slice(2 * ROBOT_JOINTS, 2 * ROBOT_JOINTS + POSITIONS - ROBOT_JOINTS)  # of the 59 numbers


class KitchenJointTargets(gym.Wrapper[Any, Any, Any, Any]):
    """FrankaKitchen whose actions are the joint positions that its actuators are to reach.

    So the human demonstrations (`mcnn_ray.data.relay`) were recorded. FrankaKitchen-v1's own actions are velocities:
    they put targets at most 0.16 rad or m from where the joints are, while its limits for the robot allow 0.8. Here a
    target is held to the latter, and to the joints' bounds. Observations are the 30 positions, as the logs have them,
    with the environment's noise.

    Args:
        env: FrankaKitchen with its 59 observation numbers, flat; it is changed.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._robot: Any = env.unwrapped.robot_env  # type: ignore[attr-defined]
        low_A, high_A = self._robot.robot_pos_bound[:ROBOT_JOINTS].T
        self.action_space = Box(low_A.astype(np.float32), high_A.astype(np.float32))
        self.observation_space = Box(-np.inf, np.inf, (POSITIONS,), np.float64)
        self._target_A: npt.NDArray[np.float64] = np.zeros(ROBOT_JOINTS)
        # Where the environment turns velocities into targets; it then holds them to the joints' bounds.
        self._robot._ctrl_velocity_limits = self._limited_target

    def reset(self, **options: Any) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
        """Reset the environment."""
        obs, info = self.env.reset(**options)
        return _positions(obs), info

    def step(self, action: Any) -> tuple[npt.NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Hold the actuators to (9,) targets for a step of 0.08 s; rad, m for the fingers."""
        self._target_A = np.asarray(action, dtype=np.float64)
        obs, reward, terminated, truncated, info = self.env.step(np.zeros(ROBOT_JOINTS))
        return _positions(obs), float(reward), terminated, truncated, info

    def _limited_target(self, _velocity: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        slowest_A, fastest_A = self._robot.robot_vel_bound[:ROBOT_JOINTS].T * self._robot.dt
        start_A = self._robot._last_robot_qpos
        limited_A: npt.NDArray[np.float64] = np.clip(self._target_A, start_A + slowest_A, start_A + fastest_A)
        return limited_A


def _positions(obs_D: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.concatenate([obs_D[:ROBOT_JOINTS], obs_D[_OBJECT_POSITIONS]])


def objects_done(positions_TP: npt.NDArray[Any], objects: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Tell which objects are within 0.3 of their goals, as the environment does.

    Args:
        positions_TP: (T, 30) qpos.
        objects: names, as the environment has them.

    Returns:
        (T, O), a column per object.
    """
    register_robotics()
    from gymnasium_robotics.envs.franka_kitchen import kitchen_env

    columns = [
        np.linalg.norm(
            positions_TP[:, kitchen_env.OBS_ELEMENT_INDICES[name]] - kitchen_env.OBS_ELEMENT_GOALS[name], axis=1
        )
        < kitchen_env.BONUS_THRESH
        for name in objects
    ]
    return np.stack(columns, axis=1)
