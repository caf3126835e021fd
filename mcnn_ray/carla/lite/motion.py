"""One tick of the world: cars move, who touches another stops, what is attached follows; then traffic, for the next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.actors import Actor
from mcnn_ray.carla.lite.dynamics import Car, advance
from mcnn_ray.carla.lite.geometry import Pose, boxes_overlap, pose_in_degrees
from mcnn_ray.carla.lite.traffic import Obstacle

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
        world.motions[actor.row, :6] = world.world_pose(actor)


def _drive(world: World, actor: Actor, delta_s: float) -> None:
    car = actor.car
    assert car is not None
    if actor.frozen:
        return
    slope = world.town.ground(car.x, car.y, actor.pose[2])
    pitch, roll = slope.tilt(car.yaw)
    advance(car, actor.controls, half_length=actor.blueprint.extent[0], slope=pitch, delta_s=delta_s)
    actor.pose = pose_in_degrees((car.x, car.y, slope.height(car.x, car.y), pitch, car.yaw), roll)
    _write_motion(world.motions, actor, car, pitch)


def _write_motion(motions: npt.NDArray[np.float32], actor: Actor, car: Car, pitch: float) -> None:
    course = car.yaw + car.slip
    cos, sin, up = math.cos(course), math.sin(course), math.tan(pitch)
    across = car.speed * car.yaw_rate
    motions[actor.row] = (
        *actor.pose,
        *(car.speed * cos, car.speed * sin, car.speed * up),
        *(0.0, 0.0, math.degrees(car.yaw_rate)),
        *(car.acceleration * cos - across * sin, car.acceleration * sin + across * cos, 0.0),
    )


def let_traffic_drive(world: World) -> None:
    """Move traffic on to where the next frame shows it; it goes by earlier ones, as CARLA's traffic manager does."""
    if not world.driven_rows.size:
        return
    others = (  # read only where traffic looks around, which is not in every frame
        Obstacle(*actor.pose[:3], math.radians(actor.pose[4]), *actor.blueprint.extent[:2], actor.car.speed)
        for actor in world.free
        if actor.car is not None
    )
    world.motions[world.driven_rows] = world.traffic.step(world.delta_s, others)


def _collide(world: World, actor: Actor, before: Pose) -> None:
    """Stop a vehicle that has driven into another where it was before."""
    car, extent = actor.car, actor.blueprint.extent
    assert car is not None
    places = world.motions[world.vehicles.rows]
    near = (np.abs(places[:, 0] - car.x) < _REACH_M) & (np.abs(places[:, 1] - car.y) < _REACH_M)
    for number in world.vehicles.ids[near].tolist():
        other = world.actors[number]
        if other is actor:
            continue
        there = world.world_pose(other)
        if not boxes_overlap(actor.pose, extent, there, other.blueprint.extent):
            continue
        closing = world.motions[other.row, 6:9] - world.motions[actor.row, 6:9]
        world.collisions.append((actor, other, (_MASS_KG * closing).tolist()))
        if not boxes_overlap(before, extent, there, other.blueprint.extent):
            actor.pose = before
            car.x, car.y, car.yaw = before[0], before[1], math.radians(before[4])
            car.speed = car.yaw_rate = 0.0
            _write_motion(world.motions, actor, car, math.radians(before[3]))
