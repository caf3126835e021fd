"""One tick of the world: cars move, who touches another stops, what is attached follows; then traffic, for the next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.actors import Actor
from mcnn_ray.carla.lite.dynamics import Car, advance
from mcnn_ray.carla.lite.geometry import Pose, boxes_overlap, pose_in_degrees, wrapped
from mcnn_ray.carla.lite.traffic import Obstacle
from mcnn_ray.carla.lite.wire import MOTION

if TYPE_CHECKING:
    from mcnn_ray.carla.lite.world import World

__all__ = ["let_traffic_drive", "tick"]

_MASS_KG = 1500.0
_REACH_M = 8.0  # vehicles farther apart do not touch


def tick(world: World) -> None:
    """Move what clients drive on to the next frame, in which traffic is where it was last let drive to."""
    delta_s = world.delta_s
    world.frame += 1
    world.elapsed_s += delta_s
    world.collisions = []
    before = [(actor, actor.pose) for actor in world.free]
    for actor in world.free:
        _drive(world, actor, delta_s)
    for actor, pose in before:
        _collide(world, actor, pose)
    for actor in world.attached:
        world.states[actor.row]["pose"] = world.world_pose(actor)


def _drive(world: World, actor: Actor, delta_s: float) -> None:
    car = actor.car
    assert car is not None
    if actor.frozen:
        return
    slope = world.town.ground(car.x, car.y, actor.pose[2])
    pitch, roll = slope.tilt(car.yaw)
    advance(car, actor.controls, half_length=actor.blueprint.extent[0], slope=pitch, delta_s=delta_s)
    actor.pose = pose_in_degrees((car.x, car.y, slope.height(car.x, car.y), pitch, car.yaw), roll)
    _write_motion(world.states, actor, car, pitch)


def _write_motion(states: npt.NDArray[np.void], actor: Actor, car: Car, pitch: float) -> None:
    course = car.yaw + car.slip
    cos, sin, up = math.cos(course), math.sin(course), math.tan(pitch)
    across = car.speed * car.yaw_rate
    states.view(MOTION)["motion"][actor.row] = (
        *actor.pose,
        *(car.speed * cos, car.speed * sin, car.speed * up),
        *(0.0, 0.0, math.degrees(car.yaw_rate)),
        *(car.acceleration * cos - across * sin, car.acceleration * sin + across * cos, 0.0),
    )


def let_traffic_drive(world: World) -> None:
    """Move traffic on to where the next frame shows it; it goes by the present one, as CARLA's traffic manager does."""
    if not world.driven_rows.size:
        return
    delta_s = world.delta_s
    others = [
        Obstacle(*actor.pose[:3], math.radians(actor.pose[4]), *actor.blueprint.extent[:2], actor.car.speed)
        for actor in world.free
        if actor.car is not None
    ]
    drivers = world.traffic.step(delta_s, others)
    # x, y, z, pitch, yaw, speed, acceleration
    of_DC = np.array([(*driver.pose, driver.speed, driver.acceleration) for driver in drivers])
    motions = world.states.view(MOTION)["motion"]
    new_DM = np.zeros((len(of_DC), motions.shape[1]))  # pose, velocity, angular velocity, acceleration
    new_DM[:, :3] = of_DC[:, :3]
    new_DM[:, 3:5] = np.degrees(of_DC[:, 3:5])
    new_DM[:, 4] = wrapped(new_DM[:, 4])
    course_D3 = np.stack([np.cos(of_DC[:, 4]), np.sin(of_DC[:, 4]), np.tan(of_DC[:, 3])], axis=1)
    new_DM[:, 6:9] = of_DC[:, 5:6] * course_D3
    new_DM[:, 11] = wrapped(new_DM[:, 4] - motions[world.driven_rows, 4]) / delta_s
    new_DM[:, 12:] = of_DC[:, 6:] * course_D3
    motions[world.driven_rows] = new_DM


def _collide(world: World, actor: Actor, before: Pose) -> None:
    """Stop a vehicle that has driven into another where it was before."""
    car, extent = actor.car, actor.blueprint.extent
    assert car is not None
    offsets = np.abs(world.states["pose"][world.vehicles.rows, :2] - (car.x, car.y))
    for number in world.vehicles.ids[offsets.max(axis=1) < _REACH_M].tolist():
        other = world.actors[number]
        there = world.world_pose(other)
        if other is actor or not boxes_overlap(actor.pose, extent, there, other.blueprint.extent):
            continue
        closing = world.states["velocity"][other.row] - world.states["velocity"][actor.row]
        world.collisions.append((actor, other, (_MASS_KG * closing).tolist()))
        if not boxes_overlap(before, extent, there, other.blueprint.extent):
            actor.pose = before
            car.x, car.y, car.yaw = before[0], before[1], math.radians(before[4])
            car.speed = car.yaw_rate = 0.0
            _write_motion(world.states, actor, car, math.radians(before[3]))
