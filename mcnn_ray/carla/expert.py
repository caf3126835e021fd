"""A scripted driver that records demonstrations: it knows the map and all vehicles, and acts through the environment.

The controller is that of CARLA 0.9.8's local planner, which drove for D4RL's data.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.connection import DELTA_S
from mcnn_ray.carla.environment import DrivingEnv
from mcnn_ray.carla.reward import Vehicle
from mcnn_ray.errors import ConfigError

__all__ = ["DrivingExpert"]

_SPEED_KMH = 20.0
_WINDOW = 10  # errors that the controllers sum
_MOST_THROTTLE, _MOST_BRAKE, _MOST_STEER, _MOST_TURN = 0.75, 0.3, 0.8, 0.1
_SPACING_M = _SPEED_KMH / 3.6  # of the points that are driven to, in a lane
_REACHED = 0.9  # of the spacing
_LOOK_M = 4.0  # where in a route is driven to
_SLOW_KMH, _BEND_M, _BEND_RAD = 12.0, 12.0, 0.3  # through bends of a route
_CLEAR_M, _CLEAR_ROUTE_M, _HALF_WIDTH_M = 10.0, 12.0, 2.0  # for which a vehicle ahead is braked for
_PATIENCE_STEPS, _CREEP_STEPS = 200, 60  # standing for a vehicle on a route; then going on, if nothing is near
_NEAR_M = 6.0
_NOISE = (0.1, 0.02)  # standard deviations, of throttle or brake, and of steering


class DrivingExpert:
    """Drives a driving task's car.

    In the lane task it follows its lane; in the town it takes the shortest way to the goal, again when it has passed
    it. For a vehicle ahead it brakes hard.

    Args:
        env: made by `make_environment(task)`; `begin` is to be called after each of its resets.

    Raises:
        ConfigError: it is another environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if not isinstance(env.unwrapped, DrivingEnv):
            raise ConfigError("the driving expert drives in carla-lane-v0 and carla-town-v0 only")
        self._outer = env
        self.begin(None)

    def begin(self, _rng: np.random.Generator | None) -> None:
        """Forget the last episode."""
        # Asked for again each time: a wrapper may make it anew for another server.
        self._env: DrivingEnv = self._outer.unwrapped  # type: ignore[assignment]
        self._speed_errors: deque[float] = deque(maxlen=_WINDOW)
        self._heading_errors: deque[float] = deque(maxlen=_WINDOW)
        self._steer = 0.0
        self._target: Any = None
        self._waited = 0

    def act(self, _obs_D: npt.NDArray[Any], rng: np.random.Generator | None) -> npt.NDArray[np.float32]:
        """Return throttle (or brake, below 0) and steering for the environment's present state.

        Args:
            _obs_D: not looked at.
            rng: source of the actuators' noise; None acts without.

        Returns:
            (2,) float32 in [-1, 1].
        """
        car = self._env.car
        in_lane = self._env.scenario.name == "lane"
        blocked = self._blocked_lane(car) if in_lane else self._blocked_route(car)
        place = self._lane_point(car) if in_lane else self._env.route.ahead(_LOOK_M)[:2]
        speed_kmh = _SPEED_KMH if in_lane else self._route_speed()
        push = self._push(speed_kmh - 3.6 * car.speed)
        steer = self._turn(_turned(math.atan2(place[1] - car.pose[1], place[0] - car.pose[0]), car))
        action = np.array([-1.0 if blocked else push, steer])
        if rng is not None:
            action += rng.normal(0.0, _NOISE)
        limited: npt.NDArray[np.float32] = np.clip(action, -1.0, 1.0).astype(np.float32)
        return limited

    def _push(self, error_kmh: float) -> float:
        """Return the throttle, or brake, of a PI controller with gains of 1 and 1."""
        self._speed_errors.append(error_kmh)
        return min(max(error_kmh + sum(self._speed_errors) * DELTA_S, -_MOST_BRAKE), _MOST_THROTTLE)

    def _turn(self, error_rad: float) -> float:
        """Return the steering of a PID controller with gains of 1.95, 1.4 and 0.01, held to small changes."""
        before = self._heading_errors[-1] if self._heading_errors else error_rad
        self._heading_errors.append(error_rad)
        wanted = 1.95 * error_rad + 1.4 * sum(self._heading_errors) * DELTA_S + 0.01 * (error_rad - before) / DELTA_S
        limited = min(max(wanted, self._steer - _MOST_TURN), self._steer + _MOST_TURN)
        self._steer = min(max(limited, -_MOST_STEER), _MOST_STEER)
        return self._steer

    def _lane_point(self, car: Vehicle) -> tuple[float, float]:
        """Return the point of the lane that is driven to; the next one once it is near."""
        here = self._target
        if here is None:
            carla = self._env.connection.carla
            here = self._env.connection.map.get_waypoint(carla.Location(*car.pose[:3]))
        place = here.transform.location
        if self._target is None or math.hypot(place.x - car.pose[0], place.y - car.pose[1]) < _REACHED * _SPACING_M:
            self._target = (here.next(_SPACING_M) or [here])[0]
            place = self._target.transform.location
        return place.x, place.y

    def _blocked_lane(self, car: Vehicle) -> bool:
        """Tell whether a vehicle's middle is in the car's lane, ahead, within 10 m."""
        carla, road_map = self._env.connection.carla, self._env.connection.map
        here = road_map.get_waypoint(carla.Location(*car.pose[:3]))
        for other in self._env.others:
            if _ahead(car, other) <= 0.0 or math.dist(car.pose[:2], other.pose[:2]) > _CLEAR_M:
                continue
            there = road_map.get_waypoint(carla.Location(*other.pose[:3]))
            if (there.road_id, there.lane_id) == (here.road_id, here.lane_id):
                return True
        return False

    def _blocked_route(self, car: Vehicle) -> bool:
        """Tell whether a vehicle stands on the route ahead or will in a second.

        Two that wait for each other would wait for ever: after ten seconds it goes on where nothing is near.
        """
        points_R2 = self._env.route.stretch(_CLEAR_ROUTE_M)[:, :2]
        blocked = near = False
        for other in self._env.others:
            if abs(other.pose[2] - car.pose[2]) > 3.0 or math.dist(car.pose[:2], other.pose[:2]) > 30.0:
                continue
            if _ahead(car, other) <= 0.0:
                continue
            yaw, half = math.radians(other.pose[4]), other.extent[0]
            along = np.arange(-half, half + other.speed + 0.5, 1.0)[:, None]
            body_K2 = np.array(other.pose[:2]) + along * (math.cos(yaw), math.sin(yaw))
            gaps_RK = np.linalg.norm(points_R2[:, None] - body_K2[None], axis=2)
            blocked |= bool(gaps_RK.min() < _HALF_WIDTH_M)
            near |= bool(gaps_RK[: round(_NEAR_M)].min() < _HALF_WIDTH_M)
        self._waited = self._waited + 1 if blocked and car.speed < 0.5 else self._waited if blocked else 0
        if self._waited > _PATIENCE_STEPS + _CREEP_STEPS:
            self._waited = 0
        return blocked and (near or self._waited <= _PATIENCE_STEPS)

    def _route_speed(self) -> float:
        turns = np.cos(self._env.route.stretch(_BEND_M)[:, 4] - self._env.route.ahead(0.0)[4])
        return _SLOW_KMH if turns.min() < math.cos(_BEND_RAD) else _SPEED_KMH


def _turned(heading: float, car: Vehicle) -> float:
    """Return the angle from the car's heading to another, within (-pi, pi]."""
    return (heading - math.radians(car.pose[4]) + math.pi) % (2.0 * math.pi) - math.pi


def _ahead(car: Vehicle, other: Vehicle) -> float:
    yaw = math.radians(car.pose[4])
    return (other.pose[0] - car.pose[0]) * math.cos(yaw) + (other.pose[1] - car.pose[1]) * math.sin(yaw)
