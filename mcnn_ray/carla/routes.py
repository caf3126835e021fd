"""The way to a place along a map's lanes: the shortest one from wherever a car is."""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.lanes import read_lanes

__all__ = ["Route", "Router"]

_LOST_M = 4.0  # from the route, a new one is looked for
_WINDOW = 12  # samples ahead that a car may have come to since it was last asked
_BEYOND_M = 60.0  # of way that a route goes on behind the goal
_MOST_SEGMENTS = 1000


class Router:
    """Ways to one place.

    Args:
        road_map: a `carla.Map`.
        goal: metres.

    Attributes:
        goal: where the lane passes it, metres.
    """

    def __init__(self, road_map: Any, goal: tuple[float, float, float]) -> None:
        self._lanes = read_lanes(road_map)
        away_N = np.linalg.norm(self._lanes.points_N3 - goal, axis=1)
        sample = int(away_N.argmin())
        self.goal: tuple[float, float, float] = tuple(self._lanes.points_N3[sample].tolist())
        self._goal_segment, self._goal_sample = int(self._lanes.segment_N[sample]), sample
        goal_offset = self._along(sample)
        self._left_S = _distances(self._lanes.successors, self._lanes.length_S, self._goal_segment, goal_offset)

    def _along(self, sample: int) -> float:
        segment = int(self._lanes.segment_N[sample])
        return float((sample - self._lanes.first_S[segment]) * self._lanes.spacing(segment))

    def plan(self, x: float, y: float, z: float, yaw_deg: float) -> Route:
        """Return the shortest way from a pose; metres, degrees.

        Where none leads to the goal, the way goes on along the lane.
        """
        segment, offset = self._lanes.nearest(x, y, z, math.radians(yaw_deg))
        first = int(self._lanes.first_S[segment]) + int(offset / self._lanes.spacing(segment))
        parts = [np.arange(first, self._lanes.samples(segment).stop)]
        leads = segment == self._goal_segment and first <= self._goal_sample
        beyond = 0.0
        while len(parts) < _MOST_SEGMENTS:
            ways = self._lanes.successors[segment]
            if not ways or beyond > _BEYOND_M:
                break
            segment = min(ways, key=lambda way: self._left_S[way])
            samples = self._lanes.samples(segment)
            parts.append(np.arange(samples.start, samples.stop))
            if leads or not math.isfinite(self._left_S[segment]):
                beyond += float(self._lanes.length_S[segment])
            leads = leads or segment == self._goal_segment
        return Route(self, self._lanes.poses_N5[np.concatenate(parts)], leads)


def _distances(
    successors: list[list[int]], length_S: npt.NDArray[np.float64], goal: int, goal_offset: float
) -> list[float]:
    """Return metres to the goal from the beginning of each segment, infinite where no way leads there."""
    before: list[list[int]] = [[] for _ in successors]
    for segment, ways in enumerate(successors):
        for way in ways:
            before[way].append(segment)
    left = [math.inf] * len(successors)
    left[goal] = goal_offset
    waiting = [(goal_offset, goal)]
    while waiting:
        distance, segment = heapq.heappop(waiting)
        if distance > left[segment]:
            continue
        for earlier in before[segment]:
            further = distance + float(length_S[earlier])
            if further < left[earlier]:
                left[earlier] = further
                heapq.heappush(waiting, (further, earlier))
    return left


class Route:
    """A way, and how far along it a car has come.

    Args:
        router: that planned it.
        poses_R5: samples a metre apart: x, y, z, metres; pitch and yaw, radians.
        leads: whether it passes the goal.

    Attributes:
        leads: as given.
    """

    def __init__(self, router: Router, poses_R5: npt.NDArray[np.float64], leads: bool) -> None:
        self._router, self.leads = router, leads
        self.poses_R5 = poses_R5
        self._at = 0

    def follow(self, x: float, y: float, z: float, yaw_deg: float) -> Route:
        """Take note of where a car is; return this route, or a new one where it has left or ended this one."""
        window_W2 = self.poses_R5[self._at : self._at + _WINDOW, :2] - (x, y)
        away_W = np.einsum("ij,ij->i", window_W2, window_W2)
        nearest = int(away_W.argmin())
        self._at += nearest
        if away_W[nearest] > _LOST_M**2 or self._at >= len(self.poses_R5) - _WINDOW:
            return self._router.plan(x, y, z, yaw_deg)
        return self

    def ahead(self, metres: float) -> npt.NDArray[np.float64]:
        """Return the (5,) pose so far ahead, or the last."""
        pose: npt.NDArray[np.float64] = self.poses_R5[min(self._at + round(metres), len(self.poses_R5) - 1)]
        return pose

    def stretch(self, metres: float) -> npt.NDArray[np.float64]:
        """Return the (R, 5) poses from where the car is to so far ahead."""
        return self.poses_R5[self._at : self._at + max(round(metres), 1) + 1]

    def direction(self) -> tuple[float, float]:
        """Return the unit vector (x, y) along the route where the car is."""
        yaw = float(self.ahead(1.0)[4])
        return math.cos(yaw), math.sin(yaw)
