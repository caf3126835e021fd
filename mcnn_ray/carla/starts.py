"""Where an episode's car and vehicles start, drawn from a generator: all that differs between episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mcnn_ray.carla.scenarios import CAR, VEHICLES, Pose, Scenario

__all__ = ["car_blueprint", "car_start", "spawn_points", "vehicle_blueprints", "vehicle_starts"]

_ALONG_M, _ACROSS_M, _YAW_DEG = 10.0, 0.4, 3.0  # how far a start may lie from D4RL's
_STAYS_M = 0.1  # the map is not asked for steps smaller than this
_ABOVE_ROAD_M = 0.1
_APART_M = 8.0  # of what starts in one lane
_DRAWS = 400


def spawn_points(road_map: Any) -> list[Pose]:
    """Return a map's spawn points."""
    return [_pose(transform) for transform in road_map.get_spawn_points()]


def car_start(
    scenario: Scenario, road_map: Any, rng: np.random.Generator, strict: bool, spawn_points: Sequence[Pose]
) -> Pose:
    """Draw where the car starts: near D4RL's place, or near one of the spawn points.

    Args:
        scenario: the task.
        road_map: a `carla.Map`.
        rng: draws.
        strict: exactly there.
        spawn_points: to choose from where the task names no place.
    """
    start = scenario.start or _drawn(spawn_points, rng)
    if strict:
        return start
    middle = road_map.get_waypoint(_location(*start[:3]))
    along = rng.uniform(-_ALONG_M, _ALONG_M) if scenario.start is not None else 0.0
    moved = [middle] if abs(along) < _STAYS_M else middle.next(along) if along > 0 else middle.previous(-along)
    x, y, z, pitch, yaw, roll = _pose((moved or [middle])[0].transform)
    across = rng.uniform(-_ACROSS_M, _ACROSS_M)
    turned = math.radians(yaw)
    x, y = x - across * math.sin(turned), y + across * math.cos(turned)
    return x, y, z + _ABOVE_ROAD_M, pitch, yaw + rng.uniform(-_YAW_DEG, _YAW_DEG), roll


def vehicle_starts(scenario: Scenario, road_map: Any, rng: np.random.Generator, strict: bool, car: Pose) -> list[Pose]:
    """Draw where the vehicles start.

    Args:
        scenario: the task.
        road_map: a `carla.Map`.
        rng: draws.
        strict: as D4RL does: twenty places, each asked for twice, whatever stands there.
        car: where it starts.

    Returns:
        Places for all vehicles apart from each other and the car, as many as were found; with `strict` forty.
    """
    places = [] if scenario.vehicles_road is not None else spawn_points(road_map)

    def draw() -> Pose:
        if scenario.vehicles_road is None:
            x, y, z, *turn = _drawn(places, rng)
        else:
            lane = _drawn(scenario.vehicles_lanes, rng)
            place = None
            while place is None:  # where a lane does not go the whole way
                along = float(rng.uniform(0.0, scenario.vehicles_length_m))
                place = road_map.get_waypoint_xodr(scenario.vehicles_road, lane, along)
            x, y, z, *turn = _pose(place.transform)
        return x, y, z + _ABOVE_ROAD_M, turn[0], turn[1], turn[2]

    if strict:
        return [draw() for _ in range(VEHICLES)] * 2
    taken = [car]
    for _ in range(_DRAWS):
        if len(taken) == VEHICLES + 1:
            break
        pose = draw()
        if all(_apart(pose, other) for other in taken):
            taken.append(pose)
    return taken[1:]


def _apart(pose: Pose, other: Pose) -> bool:
    """Whether two poses are in different lanes or far enough from each other."""
    x, y, turned = pose[0] - other[0], pose[1] - other[1], math.radians(other[4])
    across = abs(y * math.cos(turned) - x * math.sin(turned))
    return math.hypot(x, y) >= _APART_M or (across > 2.0 and abs(math.cos(math.radians(pose[4] - other[4]))) > 0.9)


def vehicle_blueprints(library: Any, count: int, rng: np.random.Generator) -> list[Any]:
    """Draw kinds and colours of vehicles with four wheels, for the traffic manager or the lite server to drive.

    Args:
        library: a `carla.BlueprintLibrary`.
        count: how many; each is a blueprint of its own.
        rng: draws.
    """
    kinds = sorted(kind.id for kind in library.filter("vehicle.*") if int(kind.get_attribute("number_of_wheels")) == 4)
    drawn = []
    for _ in range(count):
        blueprint = library.find(_drawn(kinds, rng))
        for name in ("color", "driver_id"):
            if blueprint.has_attribute(name):
                blueprint.set_attribute(name, _drawn(blueprint.get_attribute(name).recommended_values, rng))
        blueprint.set_attribute("role_name", "autopilot")
        drawn.append(blueprint)
    return drawn


def car_blueprint(library: Any) -> Any:
    """Return the car's kind, in one colour, which a client drives."""
    blueprint = library.find(CAR)
    blueprint.set_attribute("role_name", "hero")
    return blueprint


def _drawn(values: Sequence[Any], rng: np.random.Generator) -> Any:
    return values[int(rng.integers(len(values)))]


def _pose(transform: Any) -> Pose:
    place, turn = transform.location, transform.rotation
    return place.x, place.y, place.z, turn.pitch, turn.yaw, turn.roll


def _location(x: float, y: float, z: float) -> Any:
    import carla

    return carla.Location(x, y, z)
