"""A scripted expert for Franka Kitchen: it does the kitchen's objects one after the other, in an order of chance.

It reads the simulator's state and acts through the environment's actions alone. Where the arm goes first, the order of
the objects, the way each is done and how exactly its waypoints are met are drawn for each episode, so that
demonstrations disagree on what to do in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.data.kitchen_arm import Arm, Pose, pointing
from mcnn_ray.data.kitchen_skills import SKILLS, Waypoint
from mcnn_ray.errors import ConfigError
from mcnn_ray.tasks.catalogue import Task

__all__ = ["KitchenExpert"]

_NOISE = 0.03  # standard deviation, of actions in [-1, 1]
_JITTER_M = 0.005  # of waypoints, up to
_START_M = 0.08  # from where the environment starts, up to: its own start is always the same
_START_STEPS = 5
_STEPS_FOR_FOUR = 250  # of an episode's 280; orders whose first four objects take longer are drawn again
_RETREAT_M = 0.10
_RETREAT_STEPS = 4
_PATIENCE_STEPS = 120  # with an object that is not done; what fails earlier is tried again


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """At an object."""

    name: str
    way: tuple[Waypoint, ...]
    jitter_m: npt.NDArray[np.float64]
    waypoint: int = 0
    steps: int = 0  # at this waypoint
    all_steps: int = 0
    retreat: Pose | None = None  # once it is done or given up


class KitchenExpert:
    """Does the objects of a kitchen task.

    Args:
        task: whose objects are done.
        env: made by `make_environment(task)`; `begin` is to be called after each of its resets.

    Raises:
        ConfigError: the task is not one of joint velocities in FrankaKitchen.
    """

    def __init__(self, task: Task, env: gym.Env[Any, Any]) -> None:
        if not task.environment.startswith("FrankaKitchen-") or task.control != "environment":
            raise ConfigError(
                f"the kitchen expert acts by joint velocities in FrankaKitchen, and {task.id} runs {task.environment} "
                f"with other actions; record it on kitchen-scripted-v0"
            )
        robot = env.unwrapped.robot_env  # type: ignore[attr-defined]
        self._data = robot.data
        self._arm = Arm(robot)
        self._objects = task.subtasks
        self._queue: list[_Attempt] = []
        self._start: Pose | None = None
        self._step = 0

    @property
    def order(self) -> tuple[str, ...]:
        """The objects still to be done, the next first; without those that one of them puts out of reach."""
        return tuple(attempt.name for attempt in self._queue)

    def begin(self, rng: np.random.Generator) -> None:
        """Draw an episode: where the arm goes first, the order of objects, and the way each is done."""
        tip, axes = self._arm.pose(self._arm.angles_7)
        self._start = (tip + rng.uniform(-_START_M, _START_M, 3), axes)
        self._step = 0
        self._queue = []
        for name in self._draw(rng):
            ways = SKILLS[name].ways
            way, jitter_m = ways[rng.integers(len(ways))], rng.uniform(-_JITTER_M, _JITTER_M, 3)
            self._queue.append(_Attempt(name=name, way=way, jitter_m=jitter_m))

    def _draw(self, rng: np.random.Generator) -> list[str]:
        while True:
            order: list[str] = []
            for i in rng.permutation(len(self._objects)):
                name = self._objects[i]
                if not any(name in SKILLS[earlier].hides for earlier in order):
                    order.append(name)
            if sum(SKILLS[name].steps for name in order[:4]) <= _STEPS_FOR_FOUR:
                return order

    def act(self, obs: object, rng: np.random.Generator | None = None) -> npt.NDArray[np.float32]:
        """Return an action.

        Args:
            obs: not looked at.
            rng: source of the noise; None acts without noise.

        Returns:
            (9,) float32 in [-1, 1].
        """
        action = self._choose()
        if rng is not None:
            action = action + _NOISE * rng.standard_normal(action.shape)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def _choose(self) -> npt.NDArray[np.float64]:
        self._step += 1
        if self._start is not None and self._step <= _START_STEPS:
            return self._arm.towards(self._start, grip=False)
        while self._queue and self._finished(self._queue[0]):
            self._queue.pop(0)
        if not self._queue:
            return self._arm.towards(self._arm.pose(self._arm.angles_7), grip=False)
        now = self._queue[0]
        now.steps += 1
        now.all_steps += 1
        if now.retreat is not None:
            return self._arm.towards(now.retreat, grip=False)
        waypoint = now.way[now.waypoint]
        pose = (self._target(now), pointing(waypoint.yaw, waypoint.pitch))
        return self._arm.towards(pose, waypoint.grip, waypoint.speed)

    def _finished(self, now: _Attempt) -> bool:
        """Go on to the waypoint or retreat that is due; True when nothing is."""
        if now.retreat is not None:
            return now.steps >= _RETREAT_STEPS
        done = self._moved(now) > SKILLS[now.name].done
        if done and now.all_steps == 0:  # by doing another
            return True
        if done or now.all_steps >= _PATIENCE_STEPS:
            tip, axes = self._arm.pose(self._arm.angles_7)
            now.retreat, now.steps = (tip - _RETREAT_M * axes[:, 2], axes), 0
        elif self._reached(now):
            now.waypoint, now.steps = (now.waypoint + 1) % len(now.way), 0
        return False

    def _reached(self, now: _Attempt) -> bool:
        waypoint = now.way[now.waypoint]
        if now.steps >= waypoint.steps:
            return True
        if waypoint.until is not None:
            return self._moved(now) > waypoint.until
        tip, _ = self._arm.pose(self._arm.angles_7)
        return waypoint.near is not None and bool(np.linalg.norm(self._target(now) - tip) < waypoint.near)

    def _moved(self, now: _Attempt) -> float:
        skill = SKILLS[now.name]
        return abs(float(self._data.qpos[skill.joint]) - skill.rest)

    def _target(self, now: _Attempt) -> npt.NDArray[np.float64]:
        site = self._data.site(SKILLS[now.name].site)
        offset = np.array(now.way[now.waypoint].offset) + now.jitter_m
        return np.array(site.xpos + site.xmat.reshape(3, 3) @ offset)
