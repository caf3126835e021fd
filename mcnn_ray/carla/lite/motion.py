"""One tick of the world: cars move, traffic moves, who touches another stops, what is attached follows."""

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

__all__ = ["tick"]

_MASS_KG = 1500.0
_REACH_M = 8.0  # vehicles farther apart do not touch


def tick(world: World) -> None:
    """Move everything on by one frame."""
    delta_s = world.delta_s
    world.frame += 1
    world.elapsed_s += delta_s
    world.collisions = []
    before = [(actor, actor.pose) for actor in world.free]
    for actor in world.free:
        _drive(world, actor, delta_s)
    if world.driven_rows.size:
        _let_traffic_drive(world, delta_s)
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


def _let_traffic_drive(world: World, delta_s: float) -> None:
    others = [
        Obstacle(*actor.pose[:3], math.radians(actor.pose[4]), *actor.blueprint.extent[:2], actor.car.speed)
        for actor in world.free
        if actor.car is not None
    ]
    rows, states = world.driven_rows, world.states
    motions = []
    for driver, before in zip(world.traffic.step(delta_s, others), states["pose"][rows, 4].tolist(), strict=True):
        pose = pose_in_degrees(driver.pose)
        pitch, yaw = driver.pose[3:]
        cos, sin, up = math.cos(yaw), math.sin(yaw), math.tan(pitch)
        speed, push = driver.speed, driver.acceleration
        turned = wrapped(pose[4] - before) / delta_s
        motions.append(
            (*pose, speed * cos, speed * sin, speed * up, 0.0, 0.0, turned, push * cos, push * sin, push * up)
        )
    states.view(MOTION)["motion"][rows] = motions


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
