"""The world of the lite server: its map, its clock, its actors and what clients do to them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.actors import Actor, make_camera
from mcnn_ray.carla.lite.blueprints import AUTOPILOT, BLUEPRINTS, CAMERA, SPECTATOR, Blueprint
from mcnn_ray.carla.lite.dynamics import Car, Controls
from mcnn_ray.carla.lite.geometry import Pose, boxes_overlap, compose, pose_in_degrees
from mcnn_ray.carla.lite.palette import CLEAR, Palette
from mcnn_ray.carla.lite.sensors import camera_mount
from mcnn_ray.carla.lite.town import Town
from mcnn_ray.carla.lite.traffic import DEFAULT_LIMIT_KMH, Traffic
from mcnn_ray.carla.lite.wire import ACTOR_STATE, MOTION, episode_message, stream_token
from mcnn_ray.errors import SimulationError

__all__ = ["DEFAULT_DELTA_S", "World"]

DEFAULT_DELTA_S = 0.05
_ACTIVE = 1
_MOST_COLOURS = 256  # remembered beyond those in use
# Asynchronous, rendering, no fixed step, and what does not matter here.
_SETTINGS: tuple[Any, ...] = (False, False, [False], True, 0.01, 10, 0.0, False, 3000.0, 2000.0, True)
_SPECTATOR = Blueprint(SPECTATOR, ())


@dataclass(frozen=True, slots=True)
class Vehicles:
    """All vehicles as arrays: numbers, rows in the table of states, half sizes (metres), rows in the palette."""

    ids: npt.NDArray[np.intp]
    rows: npt.NDArray[np.intp]
    extents: npt.NDArray[np.float64]
    colours: npt.NDArray[np.intp]


class World:
    """One episode after the other on one map at a time; angles in degrees wherever a pose is handed over.

    Args:
        town: the map.
        stream_port: told to clients that want a sensor's stream.

    Attributes:
        town: the map.
        episode: number of the episode.
        frame: number of the frame; goes on over episodes.
        synchronous: ticks come from the client.
        delta_s: simulated seconds a tick.
        settings: as the client sent them.
        actors: by number, in the order of spawning.
        vehicles: those of them that drive.
        free: vehicles that clients drive.
        driven_rows: of the vehicles that the server drives, in the order of its drivers.
        attached: actors with a parent.
        traffic: what drives the server's vehicles.
        states: ACTOR_STATE, what clients are told of each actor.
        motions: its part on motion, a view: (actors, 15) float32, as MOTION has it.
        palette: of the weather.
        collisions: of this frame: who, with whom, and the impulse it met, N s in the world.
    """

    def __init__(self, town: Town, stream_port: int) -> None:
        self.town = town
        self.frame = 0
        self.episode = 0
        self.settings = list(_SETTINGS)
        self._stream_port = stream_port
        self._next_id = 1
        self._colours: list[tuple[float, ...]] = []
        self.begin_episode(town)

    def begin_episode(self, town: Town, *, keep_settings: bool = True) -> None:
        """Start over on a map: no actors but the spectator, time zero, clear weather."""
        self.town = town
        if not keep_settings:
            self.settings = list(_SETTINGS)
        self.episode += 1
        self.elapsed_s = 0.0
        self.actors: dict[int, Actor] = {}
        self.traffic = Traffic(town.lanes)
        self.states = np.zeros(0, dtype=ACTOR_STATE)
        self.collisions: list[tuple[Actor, Actor, list[float]]] = []
        self.set_weather(list(CLEAR))
        above = (0.0, 0.0, 50.0, -90.0, 0.0, 0.0)
        self.spectator = self._enrol(Actor(self._next_id, _SPECTATOR, [0, SPECTATOR, []], above))

    @property
    def synchronous(self) -> bool:
        """Whether ticks come from the client."""
        return bool(self.settings[0])

    @property
    def delta_s(self) -> float:
        """Simulated seconds a tick."""
        fixed = self.settings[2]
        return float(fixed[1]) if len(fixed) > 1 and fixed[1] > 0 else DEFAULT_DELTA_S

    def set_weather(self, weather: list[float]) -> None:
        """Set CARLA's 14 weather parameters."""
        self.weather = weather
        self.palette = Palette(weather, np.array(self._colours or [(0.0, 0.0, 0.0)]))

    def spawn(self, description: list[Any], pose: Pose, parent: int = 0) -> Actor:
        """Put an actor into the world.

        Args:
            description: number and name of a blueprint, and attributes.
            pose: in the world, or in the parent's frame.
            parent: number of the actor it is attached to, 0 for none.

        Raises:
            SimulationError: there is no such blueprint or parent, an attribute makes no sense, or a vehicle is there.
        """
        blueprint = BLUEPRINTS.get(description[1])
        if blueprint is None:
            raise SimulationError(f"blueprint '{description[1]}' is not in this server's library")
        if parent and parent not in self.actors:
            raise SimulationError(f"unable to spawn actor: parent {parent} does not exist")
        # Vehicles stand on the road, whatever they are attached to.
        actor = Actor(self._next_id, blueprint, description, pose, 0 if blueprint.is_vehicle else parent)
        if blueprint.is_vehicle:
            self._put_on_road(actor)
        elif blueprint.id == CAMERA:
            actor.camera = make_camera(actor, camera_mount(self.town, actor.pose, actor.parent))
        return self._enrol(actor)

    def _put_on_road(self, actor: Actor) -> None:
        """Give a vehicle its driver, where nothing stands."""
        asked, pose, segment, offset = actor.pose, actor.pose, 0, 0.0
        driven = actor.attribute("role_name") == AUTOPILOT
        if driven:
            segment, offset, on_lane = self.traffic.nearest(*pose[:3], math.radians(pose[4]))
            pose = pose_in_degrees(on_lane)
        for other in self._vehicles():
            if boxes_overlap(pose, actor.blueprint.extent, self.world_pose(other), other.blueprint.extent):
                raise SimulationError("Spawn failed because of collision at spawn position")
        actor.pose = pose
        if driven:
            actor.autopilot = True
            seed = [*np.array(asked, dtype=np.float32).view(np.uint32).tolist(), *actor.blueprint.id.encode()]
            self.traffic.add(actor.id, segment, offset, actor.blueprint.extent[0], seed)
        else:
            actor.car = Car(pose[0], pose[1], math.radians(pose[4]))
            self.traffic.end_trip()

    def _enrol(self, actor: Actor) -> Actor:
        self._next_id += 1
        actor.row = len(self.states)
        if actor.blueprint.is_sensor:
            actor.stream = stream_token(actor.id, self._stream_port)
        self.states = np.append(self.states, np.zeros(1, dtype=ACTOR_STATE))
        self.actors[actor.id] = actor
        state = self.states[actor.row]
        state["id"], state["state"] = actor.id, _ACTIVE
        state["gear"], state["speed_limit"] = 1, DEFAULT_LIMIT_KMH
        state["traffic_light_state"] = 3  # off
        self._index()
        self._tell_pose(actor)
        return actor

    def _tell_pose(self, actor: Actor) -> None:
        """Write where an actor has just been put; of a vehicle on autopilot only the table knows it later."""
        self.motions[actor.row, :6] = actor.pose if actor.autopilot else self.world_pose(actor)

    def destroy(self, number: int) -> bool:
        """Remove an actor and what is attached to it; return whether it was there."""
        actor = self.actors.get(number)
        if actor is None or actor is self.spectator:
            return False
        del self.actors[number]
        if actor.autopilot:
            self.traffic.remove(number)
        self.states = np.delete(self.states, actor.row)
        for row, remaining in enumerate(self.actors.values()):
            remaining.row = row
        self._index()
        for child in [other.id for other in self.actors.values() if other.parent == number]:
            self.destroy(child)
        return True

    def _index(self) -> None:
        """Keep the tables that a tick needs in step with the actors."""
        self.motions = self.states.view(MOTION)["motion"]
        vehicles = list(self._vehicles())
        self.driven_rows = np.array([self.actors[number].row for number in self.traffic.drivers], dtype=np.intp)
        self.free = [actor for actor in vehicles if actor.car is not None]
        self.attached = [actor for actor in self.actors.values() if actor.parent]
        colours = [tuple(_colour(actor.attribute("color"))) for actor in vehicles]
        known = list(dict.fromkeys([*self._colours, *colours]))
        if known != self._colours:
            self._colours = known if len(known) <= _MOST_COLOURS else list(dict.fromkeys(colours))
            self.set_weather(self.weather)
        self.vehicles = Vehicles(
            ids=np.array([actor.id for actor in vehicles], dtype=np.intp),
            rows=np.array([actor.row for actor in vehicles], dtype=np.intp),
            extents=np.array([actor.blueprint.extent for actor in vehicles]).reshape(-1, 3),
            colours=np.array([self._colours.index(colour) for colour in colours], dtype=np.intp),
        )

    def _vehicles(self) -> Iterator[Actor]:
        return (actor for actor in self.actors.values() if actor.blueprint.is_vehicle)

    def world_pose(self, actor: Actor) -> Pose:
        """Return where an actor is in the world."""
        if actor.autopilot:  # only the table follows it
            x, y, z, pitch, yaw, roll = self.motions[actor.row, :6].tolist()
            return x, y, z, pitch, yaw, roll
        if not actor.parent:
            return actor.pose
        return compose(self.world_pose(self.actors[actor.parent]), actor.pose)

    def place(self, number: int, pose: Pose) -> None:
        """Move an actor to a pose at once, in its parent's frame if it has one.

        Raises:
            SimulationError: there is no such actor.
        """
        actor = self._actor(number)
        if actor.autopilot:
            pose = pose_in_degrees(self.traffic.move(number, *pose[:3], math.radians(pose[4])))
            self._index()
        actor.pose = pose
        if actor.car is not None:
            actor.car.x, actor.car.y, actor.car.yaw = pose[0], pose[1], math.radians(pose[4])
            self.traffic.end_trip()
        if actor.camera is not None:
            actor.camera = make_camera(actor, camera_mount(self.town, actor.pose, actor.parent))
        self._tell_pose(actor)

    def set_velocity(self, number: int, velocity: tuple[float, float, float]) -> None:
        """Set a vehicle's velocity, of which the part along its heading remains.

        Raises:
            SimulationError: there is no such actor.
        """
        actor = self._actor(number)
        yaw = math.radians(self.world_pose(actor)[4])
        speed = max(velocity[0] * math.cos(yaw) + velocity[1] * math.sin(yaw), 0.0)
        self.motions[actor.row, 6:9] = velocity
        if actor.car is not None:
            actor.car.speed = speed
            actor.car.yaw_rate = actor.car.acceleration = 0.0
        elif actor.autopilot:
            self.traffic.set_speed(number, speed)

    def control(self, number: int, controls: Controls, gear: int, manual: bool) -> None:
        """Tell a vehicle how to drive; one that the server drives takes no notice.

        Raises:
            SimulationError: there is no such actor.
        """
        actor = self._actor(number)
        actor.controls = controls
        state = self.states[actor.row]
        state["pedals"] = controls.throttle, controls.steer, controls.brake
        state["switches"] = controls.hand_brake, controls.reverse, manual
        state["gear"] = gear

    def freeze(self, number: int, frozen: bool) -> None:
        """Let a vehicle stand still whatever it is told, or move again; one that the server drives takes no notice.

        Raises:
            SimulationError: there is no such actor.
        """
        actor = self._actor(number)
        actor.frozen = frozen
        if frozen and actor.car is not None:
            actor.car.speed = actor.car.yaw_rate = actor.car.acceleration = 0.0
            self.motions[actor.row, 6:] = 0.0

    def _actor(self, number: int) -> Actor:
        actor = self.actors.get(number)
        if actor is None:
            raise SimulationError(f"unable to find actor {number}: it does not exist or is destroyed")
        return actor

    def state_message(self) -> bytes:
        """Return the message of the world's stream."""
        return episode_message(self.frame, self.elapsed_s, self.delta_s, self.episode, self.states, wall_s=time.time())


def _colour(text: str) -> list[float]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
        return [128.0, 128.0, 128.0]
    return [min(float(part), 255.0) for part in parts]
