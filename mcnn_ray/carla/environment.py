"""D4RL's driving tasks as a Gymnasium environment that speaks to a CARLA server through the `carla` client.

An episode is a function of its seed on the lite server; a real server repeats itself only nearly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from mcnn_ray.carla import reward as rewards
from mcnn_ray.carla.actors import Actors
from mcnn_ray.carla.connection import DELTA_S, Address, Connection
from mcnn_ray.carla.lights import TrafficLights
from mcnn_ray.carla.reward import Vehicle
from mcnn_ray.carla.routes import Route, Router
from mcnn_ray.carla.scenarios import IMAGE_SIDE, SCENARIOS
from mcnn_ray.carla.starts import car_start, spawn_points
from mcnn_ray.errors import ConfigError, ServerError, SimulationError

__all__ = ["SERVER_VARIABLE", "DrivingEnv"]

SERVER_VARIABLE = "MCNN_CARLA_SERVER"
_TIMEOUT_S = 10.0
_STARTS = 12  # that an episode may try until one is not over at once: D4RL's first, and eleven more
_GOAL_M = 5.0
_DRIVEN_M = 25.0

_T = TypeVar("_T")


class DrivingEnv(gym.Env[npt.NDArray[np.float32], npt.NDArray[np.float32]]):
    """`carla-lane-v0` (stay in the innermost lane of a highway) and `carla-town-v0` (drive to a place in a town).

    Observations are 48 x 48 RGB images in [0, 1], flat; actions are throttle (if positive) or brake, and steering, in
    [-1, 1]; a step is 0.05 s. `info["ending"]` says why an episode has ended: `vehicle`, `lane`, `off road`,
    `wrong way`, `red light`, `end of lane`; it is empty while it goes on. `info["success"]` tells whether a lane
    episode has come to its horizon 25 m from its start or farther, or whether the goal was reached within 5 m.

    The server is spoken to from the first `reset` on, and again after one that failed: the failure is a `ServerError`,
    and the next `reset` connects anew.

    Args:
        scenario: `lane` or `town`.
        strict: keep D4RL's faults, which docs/driving.md lists.
        server: `HOST:PORT` or `HOST:PORT:TRAFFIC_MANAGER_PORT`; None takes the variable MCNN_CARLA_SERVER. As
            an attribute it may be set to another one after `close`.
        timeout_s: for each answer of the server.
        render_mode: `rgb_array` mounts a second camera, behind the car, that `render` shows; policies do not see it.

    Raises:
        ConfigError: there is no such scenario.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / DELTA_S)}  # noqa: RUF012  (as Gymnasium declares it)

    def __init__(
        self,
        scenario: str = "lane",
        *,
        strict: bool = False,
        server: str | None = None,
        timeout_s: float = _TIMEOUT_S,
        render_mode: str | None = None,
    ) -> None:
        if scenario not in SCENARIOS:
            raise ConfigError(f"no driving scenario '{scenario}'; valid: {', '.join(SCENARIOS)}")
        self.scenario, self.strict, self.render_mode = SCENARIOS[scenario], strict, render_mode
        self.server, self._timeout_s = server, timeout_s
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        # D4RL declares values up to 256.
        self.observation_space = Box(0.0, 256.0 if strict else 1.0, (IMAGE_SIDE * IMAGE_SIDE * 3,), np.float32)
        self._connection: Connection | None = None
        self._router: Router | None = None
        self.car: Vehicle
        self.others: list[Vehicle]
        self.route: Route

    # What experts and records read, beside `car`, `others` and, in the town, `route`: all of the last step.

    @property
    def simulator(self) -> str:
        """What runs the episodes: the server's kind and version, and its map.

        Raises:
            ServerError: no server has been spoken to yet.
        """
        server = self.connection
        kind = "lite server" if server.lite else "CARLA"
        return f"{kind} {server.version}, {server.map_name}{', strict' if self.strict else ''}"

    @property
    def comparable(self) -> bool:
        """Whether returns may be held against D4RL's: a real server, D4RL's map, and its rules to the letter."""
        server = self.connection
        return not server.lite and self.strict and server.map_name.rsplit("/", 1)[-1] == self.scenario.town

    @property
    def connection(self) -> Connection:
        """The server.

        Raises:
            ServerError: none has been spoken to yet, or the last one has failed.
        """
        if self._connection is None:
            raise ServerError("the driving environment is not connected to a server; reset it first")
        return self._connection

    # Gymnasium's interface.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Start an episode: car, vehicles, their kinds and colours follow from the seed.

        Raises:
            ServerError: the server failed; the episode can run again elsewhere.
            SimulationError: the server has another version or map, or there is no client.
            ConfigError: no server is named.
        """
        super().reset(seed=seed)
        return self._guarded(self._start)

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Drive for 0.05 s.

        Raises:
            ServerError: the server failed; the episode can run again elsewhere.
        """
        push, steer = (min(max(float(value), -1.0), 1.0) for value in action)
        return self._guarded(lambda: self._step(push, steer))

    def render(self) -> npt.NDArray[np.uint8]:
        """Return (272, 480, 3) RGB of the camera behind the car; without `rgb_array` the observed (48, 48, 3)."""
        return (self._image if self._view is None else self._view).copy()

    def close(self) -> None:
        """Leave the server as it was: without actors of this environment, and running by itself."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _guarded(self, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except SimulationError:
            self.close()
            raise

    # Episodes.

    def _start(self) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        if self._connection is None:
            self._connect()
        server, rng = self.connection, self.np_random
        self._actors.clear_traffic()
        for attempt in range(_STARTS):
            start = car_start(self.scenario, server.map, rng, self.strict, self._spawn_points)
            self._actors.place_car(start)
            if self._router is not None:
                self.route = self._router.plan(*start[:3], start[4])
            server.tick()
            if attempt == 0:
                self._actors.start_traffic(start, rng, self.strict, self._address.traffic_manager_port)
                server.tick()
            self._steps, self._reached, self._speed_before, self._began = 0, False, 0.0, start
            server.tick()
            self._look()
            if not self._judge()[1]:
                break
        return self._observation(), {"ending": "", "success": False}

    def _step(self, push: float, steer: float) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._speed_before = self.car.speed
        self._actors.control_car(push, steer)
        self.connection.tick()
        self._look()
        self._steps += 1
        reward, ending = self._judge()
        if self._router is None:
            driven_m = math.dist(self.car.pose[:2], self._began[:2])
            self._reached = self._steps >= self.scenario.horizon and not ending and driven_m > _DRIVEN_M
        else:
            self._reached |= math.dist(self.car.pose[:3], self._router.goal) < _GOAL_M
        return self._observation(), reward, bool(ending), False, {"ending": ending, "success": self._reached}

    def _look(self) -> None:
        self.car, self.others, self._image = self._actors.look()
        self._view = self._actors.view()
        if self._router is not None:
            self.route = self.route.follow(*self.car.pose[:3], self.car.pose[4])

    def _judge(self) -> tuple[float, str]:
        """Return the reward of the present state, and what ends the episode in it."""
        server, car, in_town = self.connection, self.car, self._router is not None
        with server.calling("map queries"):
            place = server.carla.Location(*car.pose[:3])
            here = server.map.get_waypoint(place)
            if not in_town:
                earned = rewards.lane_reward(server.map, here, car)
            elif self.strict:
                earned = rewards.strict_town_reward(self._segment_starts, here, car)
            else:
                earned = rewards.town_reward(self.route, car)
            if self.strict:
                ending = rewards.strict_ending(here)
            else:
                on_road = server.map.get_waypoint(place, project_to_road=False) is not None
                ending = rewards.ending(here, on_road, car, self._speed_before, self.others, any_lane=in_town)
            reward = (earned or 0.0) + (rewards.COLLISION_REWARD if ending else 0.0)
            if not ending and self._lights.stop(here, car):
                ending = "red light"
        return reward, ending or ("end of lane" if earned is None else "")

    def _observation(self) -> npt.NDArray[np.float32]:
        return self._image.reshape(-1).astype(np.float32) / np.float32(255.0)

    # The server.

    def _connect(self) -> None:
        text = self.server or os.environ.get(SERVER_VARIABLE)
        if not text:
            raise ConfigError(
                f"no CARLA server is named; start one (mcnn carla serve --lite --map {self.scenario.lite_map} --port "
                f"2000) and set {SERVER_VARIABLE}=127.0.0.1:2000"
            )
        self._address = Address.parse(text)
        server = Connection(self._address, (self.scenario.lite_map, self.scenario.town), self._timeout_s)
        self._connection = server
        with server.calling("reading the map"):
            self._spawn_points = spawn_points(server.map)
            self._lights = TrafficLights(server.carla, server.world, server.map)
            if self.scenario.goal is not None:
                self._plan_routes(Router(server.map, self.scenario.goal))
        start, watched = self.scenario.start or self._spawn_points[0], self.render_mode == "rgb_array"
        self._actors = Actors(server, self.scenario, start, watched)

    def _plan_routes(self, router: Router) -> None:
        self._router, server = router, self.connection
        if self.strict:
            starts = [first for first, _ in server.map.get_topology()]
            self._segment_starts = {
                (start.road_id, start.section_id, start.lane_id): (
                    float(np.round(start.transform.location.x)),
                    float(np.round(start.transform.location.y)),
                )
                for start in starts
            }
            return
        self._spawn_points = [at for at in self._spawn_points if router.plan(*at[:3], at[4]).leads]
        if not self._spawn_points:
            raise SimulationError(f"no lane of {server.map_name} leads to the goal {self.scenario.goal}")
