"""What sensors send of a frame: pictures and collisions, as their streams' messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mcnn_ray.carla.lite.actors import Actor
from mcnn_ray.carla.lite.blueprints import CAMERA, COLLISION_SENSOR
from mcnn_ray.carla.lite.geometry import Pose
from mcnn_ray.carla.lite.town import Town
from mcnn_ray.carla.lite.wire import collision_message, image_message

if TYPE_CHECKING:
    from mcnn_ray.carla.lite.world import World

__all__ = ["camera_mount", "sensor_message"]


def sensor_message(world: World, sensor: Actor) -> bytes | None:
    """Return what a sensor has to tell of the present frame, None if nothing.

    Args:
        world: it is in.
        sensor: one of its actors.
    """
    if sensor.blueprint.id == CAMERA:
        return _image(world, sensor)
    return _collision(world, sensor) if sensor.blueprint.id == COLLISION_SENSOR else None


def camera_mount(town: Town, pose: Pose, parent: int) -> Pose:
    """Return a camera's pose in the frame of the ground it looks at.

    That is the frame of the vehicle it is attached to, or else a level one below it.

    Args:
        town: the map.
        pose: of the camera, in its parent's frame or in the world.
        parent: what it is attached to, 0 for nothing.
    """
    if parent:
        return pose
    _, _, z, pitch, _, roll = pose
    return 0.0, 0.0, z - _below(town, pose)[2], pitch, 0.0, roll


def _below(town: Town, pose: Pose) -> Pose:
    return pose[0], pose[1], town.ground(*pose[:3]).z, 0.0, pose[4], 0.0


def _image(world: World, sensor: Actor) -> bytes:
    camera = sensor.camera
    assert camera is not None
    parent = world.actors.get(sensor.parent)
    frame = world.world_pose(parent) if parent is not None else _below(world.town, sensor.pose)
    vehicles = world.vehicles
    aboard = parent is not None and parent.blueprint.is_vehicle and _aboard(camera.mount, parent)
    pixels = camera.see(
        frame,
        world.town.raster,
        world.palette,
        world.motions[vehicles.rows],
        vehicles.extents,
        vehicles.colours,
        unseen=int(np.flatnonzero(vehicles.ids == sensor.parent)[0]) if aboard else None,
    )
    pose = world.motions[sensor.row, :6].tolist()
    return image_message(world.frame, world.elapsed_s, pose, camera.fov_deg, pixels)


def _aboard(mount: Sequence[float], vehicle: Actor) -> bool:
    """Tell whether a camera is in or above its vehicle, past which it looks; from elsewhere it sees it."""
    length, width, _ = vehicle.blueprint.extent
    return abs(mount[0]) <= length and abs(mount[1]) <= width


def _collision(world: World, sensor: Actor) -> bytes | None:
    for actor, other, impulse in world.collisions:
        for own, met, sign in ((actor, other, 1.0), (other, actor, -1.0)):
            if own.id == sensor.parent:
                pose = world.motions[sensor.row, :6].tolist()
                push = np.multiply(impulse, sign).tolist()
                return collision_message(world.frame, world.elapsed_s, pose, own.told(), met.told(), push)
    return None
