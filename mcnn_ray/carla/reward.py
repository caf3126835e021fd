"""D4RL's rewards for driving, and what ends an episode.

With `strict` both are D4RL's to the letter; otherwise the faults that docs/driving.md lists are mended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mcnn_ray.carla.lite.geometry import boxes_overlap
from mcnn_ray.carla.routes import Route
from mcnn_ray.carla.scenarios import Pose

__all__ = ["COLLISION_REWARD", "Vehicle", "ending", "lane_reward", "strict_ending", "strict_town_reward", "town_reward"]

COLLISION_REWARD = -100.0  # beside what the step earns, where `ending` or `strict_ending` say something
_BEST = 5.0
_ACROSS = 5.0  # times what is driven across the lane
_AHEAD_M = 0.1
_XODR_STEP_M = 0.02  # map queries miss a road's ends by so much
_CONTACT_M = 0.1  # boxes so near touch


@dataclass(frozen=True, slots=True)
class Vehicle:
    """A vehicle in one frame.

    Attributes:
        id: its actor's number.
        pose: metres, degrees.
        velocity: x and y, m/s.
        extent: half length, width and height, metres.
    """

    id: int
    pose: Pose
    velocity: tuple[float, float]
    extent: tuple[float, float, float]

    @property
    def speed(self) -> float:
        """m/s."""
        return math.hypot(*self.velocity)


def lane_reward(road_map: Any, here: Any, car: Vehicle) -> float | None:
    """Return the speed along the lane less five times that across it, within [-5, 5].

    The lane is the innermost of the car's road and direction.

    Args:
        road_map: a `carla.Map`.
        here: the `carla.Waypoint` nearest to the car.
        car: the car.

    Returns:
        None where that lane does not go on, which ends an episode.
    """
    lane = 1 if here.lane_id > 0 else -1
    goal = None
    for shift in (0.0, -_XODR_STEP_M, _XODR_STEP_M):
        goal = goal or road_map.get_waypoint_xodr(here.road_id, lane, here.s + shift)
    ways = goal.next(_AHEAD_M) if goal is not None else []
    if goal is None or not ways:
        return None
    first, second = goal.transform.location, ways[0].transform.location
    along, across = _split(car.velocity, (second.x - first.x, second.y - first.y))
    return min(max(along - _ACROSS * across, -_BEST), _BEST)


def town_reward(route: Route, car: Vehicle) -> float:
    """Return the speed along the route to the goal, m/s."""
    return _split(car.velocity, route.direction())[0]


def strict_town_reward(
    segment_starts: dict[tuple[int, int, int], tuple[float, float]], here: Any, car: Vehicle
) -> float:
    """Return the speed towards the first node of the route, which is where the car's stretch of road begins: behind it.

    Args:
        segment_starts: by road, section and lane: x, y, rounded to metres as CARLA 0.9.8's route planner has them.
        here: the `carla.Waypoint` nearest to the car.
        car: the car.
    """
    start = segment_starts.get((here.road_id, here.section_id, here.lane_id))
    if start is None:
        return 0.0
    return _split(car.velocity, (start[0] - car.pose[0], start[1] - car.pose[1]))[0]


def _split(velocity: tuple[float, float], direction: tuple[float, float]) -> tuple[float, float]:
    """Return the parts of a velocity along a direction, and across it, never negative."""
    length = math.hypot(*direction) or 1.0
    x, y = direction[0] / length, direction[1] / length
    return velocity[0] * x + velocity[1] * y, abs(velocity[1] * x - velocity[0] * y)


def strict_ending(here: Any) -> str:
    """Return `lane` where the nearest lane is not an innermost one, else nothing."""
    return "" if here.lane_id in (-1, 1) else "lane"


def ending(
    here: Any, on_road: bool, car: Vehicle, speed_before: float, others: Sequence[Vehicle], any_lane: bool
) -> str:
    """Return what ends the episode, or nothing.

    Args:
        here: the `carla.Waypoint` nearest to the car.
        on_road: whether the car's middle is on a lane.
        car: the car.
        speed_before: its speed a step ago, m/s: servers that let no boxes overlap stop it so far before what it hits.
        others: all other vehicles.
        any_lane: whether it may leave the innermost lane.
    """
    reach = _CONTACT_M + 0.05 * speed_before
    extent = (car.extent[0] + reach, car.extent[1] + _CONTACT_M, car.extent[2])
    if any(boxes_overlap(car.pose, extent, other.pose, other.extent) for other in others):
        return "vehicle"
    if not on_road:
        return "off road"
    # In a junction the nearest of the lanes that cross there may be another than the car's.
    if not here.is_junction and math.cos(math.radians(here.transform.rotation.yaw - car.pose[4])) < 0.0:
        return "wrong way"
    return "" if any_lane or here.lane_id in (-1, 1) else "lane"
