"""What can be spawned: cars by their true sizes, two sensors, and the attributes each takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["AUTOPILOT", "BLUEPRINTS", "CAMERA", "COLLISION_SENSOR", "SPECTATOR", "Blueprint", "definitions"]

CAMERA = "sensor.camera.rgb"
COLLISION_SENSOR = "sensor.other.collision"
SPECTATOR = "spectator"
AUTOPILOT = "autopilot"  # the role_name of vehicles that the server drives

_BOOL, _INT, _FLOAT, _STRING, _COLOUR = 1, 2, 3, 4, 5
_CAR_TAG = 14
_COLOURS = ["180,30,30", "30,60,170", "235,235,230", "25,25,28", "205,160,30", "90,95,100", "30,110,60"]

# Half length, half width, half height, metres.
_CARS = {
    "vehicle.audi.a2": (1.853, 0.894, 0.775),
    "vehicle.audi.tt": (2.091, 0.997, 0.693),
    "vehicle.bmw.grandtourer": (2.306, 1.121, 0.834),
    "vehicle.citroen.c3": (1.994, 0.926, 0.812),
    "vehicle.ford.mustang": (2.359, 0.947, 0.650),
    "vehicle.lincoln.mkz_2017": (2.451, 1.064, 0.756),
    "vehicle.mercedes.sprinter": (2.958, 0.994, 1.280),
    "vehicle.mini.cooper_s": (1.903, 0.985, 0.738),
    "vehicle.nissan.patrol": (2.302, 0.966, 0.927),
    "vehicle.tesla.model3": (2.396, 1.082, 0.744),
    "vehicle.toyota.prius": (2.257, 1.003, 0.762),
}


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A kind of actor.

    Attributes:
        id: e.g. `vehicle.audi.a2`.
        attributes: id, type, value, recommended values, may it be set, only to those recommended.
        extent: half length, width and height of its box, metres; zeros for sensors.
    """

    id: str
    attributes: tuple[tuple[str, int, str, tuple[str, ...], bool, bool], ...]
    extent: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def is_vehicle(self) -> bool:
        """Whether it drives."""
        return self.id.startswith("vehicle.")

    @property
    def is_sensor(self) -> bool:
        """Whether it has a stream."""
        return self.id.startswith("sensor.")

    @property
    def box(self) -> list[Any]:
        """Its bounding box as the client reads it: centre, extent, rotation, actor."""
        return [[0.0, 0.0, self.extent[2]], list(self.extent), [0.0, 0.0, 0.0], 0]

    @property
    def tags(self) -> bytes:
        """Its semantic tags."""
        return bytes([_CAR_TAG]) if self.is_vehicle else b""


def _settable(name: str, kind: int, value: str, recommended: tuple[str, ...] = ()) -> tuple[Any, ...]:
    return name, kind, value, recommended, True, False


def _fixed(name: str, kind: int, value: str) -> tuple[Any, ...]:
    return name, kind, value, (value,), False, False


def _car(name: str, extent: tuple[float, float, float]) -> Blueprint:
    # A vehicle is the client's unless it says otherwise: the first recommended role.
    attributes: tuple[Any, ...] = (
        _fixed("number_of_wheels", _INT, "4"),
        _fixed("base_type", _STRING, "van" if "sprinter" in name else "car"),
        _fixed("generation", _INT, "1"),
        _fixed("object_type", _STRING, ""),
        _settable("role_name", _STRING, "hero", ("hero", AUTOPILOT, "scenario")),
        _settable("color", _COLOUR, _COLOURS[sum(map(ord, name)) % len(_COLOURS)], tuple(_COLOURS)),
        _settable("sticky_control", _BOOL, "true"),
    )
    return Blueprint(name, attributes, extent)


_CAMERA_ATTRIBUTES: tuple[Any, ...] = (
    _settable("image_size_x", _INT, "800"),
    _settable("image_size_y", _INT, "600"),
    _settable("fov", _FLOAT, "90.0"),
    _settable("sensor_tick", _FLOAT, "0.0"),
    _settable("role_name", _STRING, "front"),
)

BLUEPRINTS = {
    blueprint.id: blueprint
    for blueprint in (
        *(_car(name, extent) for name, extent in _CARS.items()),
        Blueprint(CAMERA, _CAMERA_ATTRIBUTES),
        Blueprint(COLLISION_SENSOR, (_settable("role_name", _STRING, "collision"),)),
    )
}


def definitions() -> list[list[Any]]:
    """Return the blueprint library as the client reads it."""
    return [
        [
            number,
            blueprint.id,
            blueprint.id.replace(".", ","),
            [[*line[:3], list(line[3]), *line[4:]] for line in blueprint.attributes],
        ]
        for number, blueprint in enumerate(BLUEPRINTS.values(), start=1)
    ]
