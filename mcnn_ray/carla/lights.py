"""Red traffic lights, which end D4RL's episodes without a penalty."""

from __future__ import annotations

import math
from typing import Any

from mcnn_ray.carla.reward import Vehicle

__all__ = ["TrafficLights"]

_NEAR_M = 5.0


class TrafficLights:
    """The lights of a world, each where it stops traffic.

    Args:
        carla: the client's module.
        world: a `carla.World`.
        road_map: a `carla.Map`.
    """

    def __init__(self, carla: Any, world: Any, road_map: Any) -> None:
        self._red = carla.TrafficLightState.Red
        self._by_road: dict[int, list[tuple[Any, Any]]] = {}
        for light in world.get_actors().filter("*traffic_light*"):
            place = road_map.get_waypoint(light.get_transform().transform(light.trigger_volume.location))
            self._by_road.setdefault(place.road_id, []).append((light, place.transform))

    def stop(self, here: Any, car: Vehicle) -> bool:
        """Tell whether a red light of the car's road and direction is within 5 m ahead.

        Args:
            here: the `carla.Waypoint` nearest to the car.
            car: the car.
        """
        x, y, yaw = car.pose[0], car.pose[1], math.radians(car.pose[4])
        for light, place in self._by_road.get(here.road_id, ()):
            away_x, away_y = place.location.x - x, place.location.y - y
            same_way = math.cos(math.radians(place.rotation.yaw - here.transform.rotation.yaw)) >= 0.0
            ahead = away_x * math.cos(yaw) + away_y * math.sin(yaw) > 0.0
            if same_way and ahead and math.hypot(away_x, away_y) <= _NEAR_M and light.state == self._red:
                return True
        return False
