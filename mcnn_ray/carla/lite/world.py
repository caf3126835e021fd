"""The world of the lite server: its actors, its clock, and one tick of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from mcnn_ray.carla.lite.actors import Actor, make_camera
from mcnn_ray.carla.lite.blueprints import AUTOPILOT, BLUEPRINTS, CAMERA, SPECTATOR, Blueprint
from mcnn_ray.carla.lite.dynamics import Car, Controls, advance
from mcnn_ray.carla.lite.geometry import Pose, boxes_overlap, compose
from mcnn_ray.carla.lite.palette import CLEAR, Palette
from mcnn_ray.carla.lite.town import Town
from mcnn_ray.carla.lite.traffic import DEFAULT_LIMIT_KMH, LanePose, Obstacle, Traffic
from mcnn_ray.carla.lite.wire import ACTOR_STATE, collision_message, episode_message, image_message, stream_token
from mcnn_ray.errors import SimulationError

__all__ = ["DEFAULT_DELTA_S", "World"]

DEFAULT_DELTA_S = 0.05
_MASS_KG = 1500.0
_REACH_M = 8.0  # vehicles farther apart do not touch
_ACTIVE = 1
_MOTION = {
    "pose": slice(0, 6),
    "velocity": slice(6, 9),
    "angular_velocity": slice(9, 12),
    "acceleration": slice(12, 15),
}
_SPECTATOR = Blueprint(SPECTATOR, ())


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
    """

    def __init__(self, town: Town, stream_port: int) -> None:
        self.town = town
        self.frame = 0
        self.episode = 0
        self.settings: list[Any] = [False, False, [False], True, 0.01, 10, 0.0, False, 3000.0, 2000.0, True]
        self._stream_port = stream_port
        self._next_id = 1
        self._colours: list[tuple[float, ...]] = []
        self.begin_episode(town)

    def begin_episode(self, town: Town) -> None:
        """Start over on a map: no actors but the spectator, time zero, clear weather."""
        self.town = town
        self.episode += 1
        self.elapsed_s = 0.0
        self.actors: dict[int, Actor] = {}
        self.traffic = Traffic(town.lanes)
        self.states = np.zeros(0, dtype=ACTOR_STATE)
        self.collisions: list[tuple[Actor, Actor]] = []
        self.set_weather(list(CLEAR))
        self.spectator = self._enrol(_SPECTATOR, [0, SPECTATOR, []], (0.0, 0.0, 50.0, -90.0, 0.0, 0.0))

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
        self._palette = Palette(weather, np.array(self._colours or [(0.0, 0.0, 0.0)]))

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
        actor = Actor(self._next_id, blueprint, description, pose, parent)
        if blueprint.is_vehicle:
            return self._spawn_vehicle(actor)
        if blueprint.id == CAMERA:
            actor.camera = make_camera(actor, self._mount(actor))
        return self._enrol(blueprint, description, pose, parent, camera=actor.camera)

    def _spawn_vehicle(self, actor: Actor) -> Actor:
        pose, segment, offset = actor.pose, 0, 0.0
        driven = actor.attribute("role_name") == AUTOPILOT
        if driven:
            segment, offset, on_lane = self.traffic.nearest(*pose[:3], math.radians(pose[4]))
            pose = _degrees(on_lane)
        for other in self._vehicles():
            if boxes_overlap(pose, actor.blueprint.extent, self.world_pose(other), other.blueprint.extent):
                raise SimulationError("Spawn failed because of collision at spawn position")
        spawned = self._enrol(actor.blueprint, actor.description, pose)
        if driven:
            spawned.autopilot = True
            seed = [*np.array(actor.pose, dtype=np.float32).view(np.uint32).tolist(), *actor.blueprint.id.encode()]
            self.traffic.add(spawned.id, segment, offset, actor.blueprint.extent[0], seed)
        else:
            spawned.car = Car(pose[0], pose[1], math.radians(pose[4]))
        self._index()
        return spawned

    def _enrol(self, blueprint: Blueprint, description: list[Any], pose: Pose, parent: int = 0, **parts: Any) -> Actor:
        actor = Actor(self._next_id, blueprint, description, pose, parent, row=len(self.states), **parts)
        self._next_id += 1
        if blueprint.is_sensor:
            actor.stream = stream_token(actor.id, self._stream_port)
        self.states = np.append(self.states, np.zeros(1, dtype=ACTOR_STATE))
        self.actors[actor.id] = actor
        state = self.states[actor.row]
        state["id"], state["state"], state["pose"] = actor.id, _ACTIVE, self.world_pose(actor)
        state["gear"], state["speed_limit"] = 1, DEFAULT_LIMIT_KMH
        state["traffic_light_state"] = 3  # off
        self._index()
        return actor

    def destroy(self, number: int) -> bool:
        """Remove an actor and what is attached to it; return whether it was there."""
        actor = self.actors.pop(number, None)
        if actor is None or actor is self.spectator:
            if actor is not None:
                self.actors[number] = actor
            return False
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
        vehicles = list(self._vehicles())
        self._driven_rows = np.array([self.actors[number].row for number in self.traffic.drivers], dtype=np.intp)
        self._free = [actor for actor in vehicles if actor.car is not None]
        self._attached = [actor for actor in self.actors.values() if actor.parent]
        self._vehicle_rows = np.array([actor.row for actor in vehicles], dtype=np.intp)
        self._vehicle_ids = np.array([actor.id for actor in vehicles], dtype=np.intp)
        self._extents = np.array([actor.blueprint.extent for actor in vehicles]).reshape(-1, 3)
        colours = [tuple(_colour(actor.attribute("color"))) for actor in vehicles]
        known = list(dict.fromkeys([*self._colours, *colours]))
        if known != self._colours:
            self._colours = known[-256:]
            self.set_weather(self.weather)
        self._colour_rows = np.array([self._colours.index(colour) for colour in colours], dtype=np.intp)

    def _vehicles(self) -> Iterator[Actor]:
        return (actor for actor in self.actors.values() if actor.blueprint.is_vehicle)

    def world_pose(self, actor: Actor) -> Pose:
        """Return where an actor is in the world."""
        if actor.autopilot:  # only the table follows it
            x, y, z, pitch, yaw, roll = self.states["pose"][actor.row].tolist()
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
            pose = _degrees(self.traffic.move(number, *pose[:3], math.radians(pose[4])).pose)
            self._index()
        actor.pose = pose
        if actor.car is not None:
            actor.car.x, actor.car.y, actor.car.yaw = pose[0], pose[1], math.radians(pose[4])
        if actor.camera is not None:
            actor.camera = make_camera(actor, self._mount(actor))
        self.states[actor.row]["pose"] = self.world_pose(actor)

    def set_velocity(self, number: int, velocity: tuple[float, float, float]) -> None:
        """Set a vehicle's velocity, of which the part along its heading remains.

        Raises:
            SimulationError: there is no such actor.
        """
        actor = self._actor(number)
        yaw = math.radians(actor.pose[4])
        speed = max(velocity[0] * math.cos(yaw) + velocity[1] * math.sin(yaw), 0.0)
        self.states[actor.row]["velocity"] = velocity
        if actor.car is not None:
            actor.car.speed = speed
            actor.car.yaw_rate = actor.car.acceleration = 0.0
        elif actor.autopilot:
            self.traffic.drivers[number].speed = speed

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
        """Let a vehicle stand still whatever it is told, or move again.

        Raises:
            SimulationError: there is no such actor.
        """
        self._actor(number).frozen = frozen

    def _actor(self, number: int) -> Actor:
        actor = self.actors.get(number)
        if actor is None:
            raise SimulationError(f"unable to find actor {number}: it does not exist or is destroyed")
        return actor

    def tick(self) -> None:
        """Move everything on by one frame."""
        delta_s = self.delta_s
        self.frame += 1
        self.elapsed_s += delta_s
        self.collisions = []
        before = [(actor, actor.pose) for actor in self._free]
        for actor in self._free:
            self._drive(actor, delta_s)
        if self._driven_rows.size:
            self._let_traffic_drive(delta_s)
        for actor, pose in before:
            self._collide(actor, pose)
        for actor in self._attached:
            self.states[actor.row]["pose"] = self.world_pose(actor)

    def _drive(self, actor: Actor, delta_s: float) -> None:
        car = actor.car
        assert car is not None
        if actor.frozen:
            return
        slope = self.town.ground(car.x, car.y, actor.pose[2])
        pitch, roll = slope.tilt(car.yaw)
        advance(car, actor.controls, half_length=actor.blueprint.extent[0], slope=pitch, delta_s=delta_s)
        actor.pose = _degrees((car.x, car.y, slope.height(car.x, car.y), pitch, car.yaw), roll)
        self._write_motion(actor, car, pitch)

    def _write_motion(self, actor: Actor, car: Car, pitch: float) -> None:
        course = car.yaw + car.slip
        cos, sin, up = math.cos(course), math.sin(course), math.tan(pitch)
        state = self.states[actor.row]
        state["pose"] = actor.pose
        state["velocity"] = car.speed * cos, car.speed * sin, car.speed * up
        across = car.speed * car.yaw_rate
        state["acceleration"] = car.acceleration * cos - across * sin, car.acceleration * sin + across * cos, 0.0
        state["angular_velocity"] = 0.0, 0.0, math.degrees(car.yaw_rate)

    def _let_traffic_drive(self, delta_s: float) -> None:
        others = [
            Obstacle(*actor.pose[:3], math.radians(actor.pose[4]), *actor.blueprint.extent[:2], actor.car.speed)
            for actor in self._free
            if actor.car is not None
        ]
        rows, states = self._driven_rows, self.states
        motions = []
        for driver, before in zip(self.traffic.step(delta_s, others), states["pose"][rows, 4].tolist(), strict=True):
            pose = _degrees(driver.pose)
            pitch, yaw = driver.pose[3:]
            cos, sin, up = math.cos(yaw), math.sin(yaw), math.tan(pitch)
            speed, push = driver.speed, driver.acceleration
            turned = _wrapped(pose[4] - before) / delta_s
            motions.append(
                (*pose, speed * cos, speed * sin, speed * up, 0.0, 0.0, turned, push * cos, push * sin, push * up)
            )
        motions_N15 = np.array(motions)
        for name, columns in _MOTION.items():
            states[name][rows] = motions_N15[:, columns]

    def _collide(self, actor: Actor, before: Pose) -> None:
        """Stop a vehicle that has driven into another where it was before."""
        car, extent = actor.car, actor.blueprint.extent
        assert car is not None
        offsets = np.abs(self.states["pose"][self._vehicle_rows, :2] - (car.x, car.y))
        for number in self._vehicle_ids[offsets.max(axis=1) < _REACH_M].tolist():
            other = self.actors[number]
            there = self.world_pose(other)
            if other is actor or not boxes_overlap(actor.pose, extent, there, other.blueprint.extent):
                continue
            self.collisions.append((actor, other))
            if not boxes_overlap(before, extent, there, other.blueprint.extent):
                actor.pose = before
                car.x, car.y, car.yaw = before[0], before[1], math.radians(before[4])
                car.speed = car.yaw_rate = 0.0
                self._write_motion(actor, car, math.radians(before[3]))

    def state_message(self) -> bytes:
        """Return the message of the world's stream."""
        return episode_message(self.frame, self.elapsed_s, self.delta_s, self.episode, self.states, wall_s=time.time())

    def image(self, camera: Actor) -> bytes:
        """Return what a camera sees, as its stream's message."""
        assert camera.camera is not None
        parent = self.actors.get(camera.parent)
        frame = self.world_pose(parent) if parent is not None else self._frame_below(camera.pose)
        seen = self._vehicle_ids != camera.parent
        pixels = camera.camera.see(
            frame,
            self.town.raster,
            self._palette,
            self.states["pose"][self._vehicle_rows[seen]],
            self._extents[seen],
            self._colour_rows[seen],
        )
        pose = self.states["pose"][camera.row].tolist()
        return image_message(self.frame, self.elapsed_s, pose, camera.camera.fov_deg, pixels)

    def collision(self, sensor: Actor) -> bytes | None:
        """Return what a collision sensor has to tell of this frame, None if nothing."""
        for actor, other in self.collisions:
            for own, met in ((actor, other), (other, actor)):
                if own.id == sensor.parent:
                    speed = np.linalg.norm(self.states[met.row]["velocity"] - self.states[own.row]["velocity"])
                    impulse = [_MASS_KG * float(speed), 0.0, 0.0]
                    pose = self.states["pose"][sensor.row].tolist()
                    return collision_message(self.frame, self.elapsed_s, pose, own.told(), met.told(), impulse)
        return None

    def _mount(self, camera: Actor) -> Pose:
        """Return a camera's pose in the frame of the ground it looks at."""
        if camera.parent:
            return camera.pose
        _, _, z, pitch, _, roll = camera.pose
        return 0.0, 0.0, z - self._frame_below(camera.pose)[2], pitch, 0.0, roll

    def _frame_below(self, pose: Pose) -> Pose:
        return pose[0], pose[1], self.town.ground(*pose[:3]).z, 0.0, pose[4], 0.0


def _degrees(pose: LanePose, roll: float = 0.0) -> Pose:
    x, y, z, pitch, yaw = pose
    return x, y, z, math.degrees(pitch), _wrapped(math.degrees(yaw)), math.degrees(roll)


def _wrapped(degrees: float) -> float:
    return (degrees + 180.0) % 360.0 - 180.0


def _colour(text: str) -> list[float]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
        return [128.0, 128.0, 128.0]
    return [min(float(part), 255.0) for part in parts]
