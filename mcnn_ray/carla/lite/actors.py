"""What stands in the world, vehicles, sensors and the spectator, and what the client is told of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from mcnn_ray.carla.lite.blueprints import Blueprint
from mcnn_ray.carla.lite.camera import Camera
from mcnn_ray.carla.lite.dynamics import Car, Controls
from mcnn_ray.carla.lite.geometry import Pose
from mcnn_ray.errors import SimulationError

__all__ = ["Actor", "make_camera"]

_LARGEST_IMAGE = 4096  # pixels a side


@dataclass(slots=True)
class Actor:
    """One actor.

    Attributes:
        id: its number.
        blueprint: its kind.
        description: as the client sent it: number and name of the blueprint, attributes.
        pose: in the world, or in its parent's frame if it has one; of those that the server drives, where they began.
        parent: another actor's number, 0 for none.
        stream: what a client needs to listen to it, empty if it has nothing to say.
        row: in the world's table of states.
        car: how it moves, if the client drives it.
        controls: what it was told last.
        frozen: it does not move by itself.
        autopilot: the server drives it.
        camera: what it sees through, and the ground under it if it is attached to nothing.
    """

    id: int
    blueprint: Blueprint
    description: list[Any]
    pose: Pose
    parent: int = 0
    stream: bytes = b""
    row: int = 0
    car: Car | None = None
    controls: Controls = field(default_factory=Controls)
    frozen: bool = False
    autopilot: bool = False
    camera: Camera | None = None

    def attribute(self, name: str) -> str:
        """Return an attribute: as the client set it, else the blueprint's own value, else empty."""
        for given, _, value in self.description[2]:
            if given == name:
                return str(value)
        return next((line[2] for line in self.blueprint.attributes if line[0] == name), "")

    def told(self) -> list[Any]:
        """Return what the client is told of it."""
        box = self.blueprint.box
        return [self.id, self.parent, self.description, box, self.blueprint.tags, self.stream]


def make_camera(actor: Actor, mount: Pose) -> Camera:
    """Return what a camera actor sees through.

    Args:
        actor: a camera.
        mount: its pose in the frame of the ground under it.

    Raises:
        SimulationError: its attributes describe no camera.
    """
    try:
        width, height = int(actor.attribute("image_size_x")), int(actor.attribute("image_size_y"))
        fov = float(actor.attribute("fov"))
    except ValueError as error:
        raise SimulationError(f"an attribute of {actor.blueprint.id} is not a number: {error}") from None
    if not (1 <= width <= _LARGEST_IMAGE and 1 <= height <= _LARGEST_IMAGE):
        raise SimulationError(f"image of {width} x {height} pixels; sides from 1 to {_LARGEST_IMAGE} are possible")
    if not (math.isfinite(fov) and 1.0 <= fov <= 170.0):
        raise SimulationError(f"fov {fov}; 1 to 170 degrees are possible")
    return Camera(width, height, fov, mount)
