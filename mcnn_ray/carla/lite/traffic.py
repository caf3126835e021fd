"""Vehicles the server drives: along lane centrelines, by the Intelligent Driver Model (Treiber et al. 2000).

What one of them chooses, at forks and as its speed, follows from where it was spawned and from nothing else: neither
actor numbers nor what the server did before. A client that draws spawn poses from a seed has repeatable traffic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.lanes import LaneGraph

__all__ = ["DEFAULT_LIMIT_KMH", "Driver", "Traffic"]

F64 = npt.NDArray[np.float64]

DEFAULT_LIMIT_KMH = 30.0
_SPEED_SHARE = (0.55, 0.85)  # of the limit; CARLA's traffic manager at 30 % below it drives at 0.7
_ACCELERATION_MPS2, _COMFORT_MPS2, _HARDEST_MPS2 = 2.0, 3.0, 8.0
_HEADWAY_S, _JAM_M = 1.2, 2.5
_ROUTE = 5  # segments known ahead, the present one among them
_SIGHT_M = 40.0
_STOP_LINE_M = 1.5
_SIDE_M = 0.4  # added to half widths when something stands beside a lane


@dataclass(slots=True)
class Driver:
    """One vehicle on its way.

    Attributes:
        key: of its row among the actors.
        route: segments, the present one first.
        extent: half length and width, metres.
        choices: draws its forks.
        held: segments of junctions that others must keep out of for it.
    """

    key: int
    route: list[int]
    extent: tuple[float, float]
    choices: np.random.Generator
    held: list[int] = field(default_factory=list)


class Traffic:
    """All vehicles that the server drives on one map.

    Args:
        lanes: of the map.
    """

    def __init__(self, lanes: LaneGraph) -> None:
        self._lanes = lanes
        self.drivers: list[Driver] = []
        self._offset = np.zeros(0)  # metres along the first segment of the route
        self._speed = np.zeros(0)
        self._wanted = np.zeros(0)
        self._half = np.zeros((0, 2))
        self._route = np.zeros((0, _ROUTE), dtype=np.int64)
        self._holders: dict[int, int] = {}  # segment of a junction -> vehicles that hold it
        # What is beyond a dead end is segment -1, the last: without length, and nobody is on it.
        self._length = np.append(lanes.length_S, 0.0)
        self._is_junction = np.append(lanes.junction_S >= 0, False)
        self._spacing = lanes.length_S / (lanes.count_S - 1)

    def snap(self, x: float, y: float, z: float, yaw_rad: float) -> tuple[int, float, F64]:
        """Return segment, offset and pose (x, y, z, pitch, yaw; radians) on the nearest lane."""
        segment, offset = self._lanes.nearest(x, y, z, yaw_rad)
        return segment, offset, self._poses(np.array([segment]), np.array([offset]))[0]

    def add(self, key: int, segment: int, offset: float, extent: tuple[float, float], seed: list[int]) -> None:
        """Let a vehicle drive, from a standstill.

        Args:
            key: of its row among the actors.
            segment: where it is.
            offset: metres along it.
            extent: half length and width.
            seed: of what it chooses.
        """
        choices = np.random.default_rng(seed)
        wanted = choices.uniform(*_SPEED_SHARE) * DEFAULT_LIMIT_KMH / 3.6
        driver = Driver(key, [segment], extent, choices)
        self.drivers.append(driver)
        self._extend(driver)
        self._offset = np.append(self._offset, offset)
        self._speed = np.append(self._speed, 0.0)
        self._wanted = np.append(self._wanted, wanted)
        self._half = np.append(self._half, [extent], axis=0)
        self._route = np.append(self._route, [driver.route], axis=0)
        if self._is_junction[segment]:
            self._hold(driver, segment)

    def remove(self, key: int) -> None:
        """Forget a vehicle."""
        at = next(index for index, driver in enumerate(self.drivers) if driver.key == key)
        for segment in self.drivers.pop(at).held:
            self._holders[segment] -= 1
        for name in ("_offset", "_speed", "_wanted", "_half", "_route"):
            setattr(self, name, np.delete(getattr(self, name), at, axis=0))

    def set_speed(self, key: int, speed: float) -> None:
        """Set a vehicle's speed, m/s."""
        at = next(index for index, driver in enumerate(self.drivers) if driver.key == key)
        self._speed[at] = max(speed, 0.0)

    def step(self, delta_s: float, others: F64) -> tuple[F64, F64, F64]:
        """Move all vehicles on.

        Args:
            delta_s: seconds.
            others: (M, 6): x, y, z, yaw (radians), half length, half width of what the client drives.

        Returns:
            Poses (N, 5): x, y, z, pitch, yaw, radians; speeds (N,); accelerations (N,), m/s and m/s2.
        """
        starts_NK = self._starts()
        gap_N, lead_N = self._leaders(starts_NK)
        self._see_others(starts_NK, others, gap_N, lead_N)
        self._yield_at_junctions(starts_NK, gap_N, lead_N)
        cap_N = self._lanes.speed_cap_N[self._sample(self._route[:, 0], self._offset)]
        wanted_N = np.minimum(self._wanted, cap_N)
        speed_N = self._speed
        closing_N = speed_N * (speed_N - lead_N) / (2 * math.sqrt(_ACCELERATION_MPS2 * _COMFORT_MPS2))
        desired_N = _JAM_M + np.maximum(speed_N * _HEADWAY_S + closing_N, 0.0)
        change_N = _ACCELERATION_MPS2 * (1 - (speed_N / wanted_N) ** 4 - (desired_N / np.maximum(gap_N, 0.1)) ** 2)
        change_N = np.maximum(change_N, -_HARDEST_MPS2)
        new_speed_N = np.maximum(speed_N + change_N * delta_s, 0.0)
        # Whatever the model says, nobody drives into what stands before it.
        new_speed_N = np.minimum(new_speed_N, np.maximum(gap_N - 0.3, 0.0) / delta_s)
        acceleration_N = (new_speed_N - speed_N) / delta_s
        self._speed = new_speed_N
        self._offset = self._offset + new_speed_N * delta_s
        for at in np.flatnonzero(self._offset >= self._length[self._route[:, 0]]).tolist():
            self._enter_next(at)
        self._release()
        return self._poses(self._route[:, 0], self._offset), self._speed, acceleration_N

    def _starts(self) -> F64:
        """Return how far ahead each segment of each route begins, metres; the present one behind the vehicle."""
        starts_NK = np.cumsum(self._length[self._route], axis=1)
        starts_NK[:, 1:] = starts_NK[:, :-1]
        starts_NK[:, 0] = 0.0
        starts_NK -= self._offset[:, None]
        return starts_NK

    def _leaders(self, starts_NK: F64) -> tuple[F64, F64]:
        """Return the free distance (bumper to bumper) to the next vehicle on each route and that one's speed.

        A vehicle about to enter a segment that is on the route too counts as if it were on it, so that two lanes merge.
        """
        count = len(self.drivers)
        route, horizon = self._route, 2
        # What is past a dead end is the same segment for nobody.
        same = (route[:, :, None, None] == route[None, None, :, :horizon]) & (route[:, :, None, None] >= 0)
        ahead = starts_NK[:, :, None, None] - starts_NK[None, None, :, :horizon]
        ahead = np.where(same & (ahead > 0), ahead, np.inf).min(axis=(1, 3))  # (N, N)
        ahead[np.arange(count), np.arange(count)] = np.inf
        leader_N = ahead.argmin(axis=1)
        distance_N = ahead[np.arange(count), leader_N] - self._half[:, 0] - self._half[leader_N, 0]
        return np.minimum(distance_N, self._dead_end(starts_NK)), np.where(
            np.isfinite(distance_N), self._speed[leader_N], 0.0
        )

    def _dead_end(self, starts_NK: F64) -> F64:
        ends = self._route < 0
        distance_N: F64 = np.where(ends, starts_NK, np.inf).min(axis=1) - self._half[:, 0]
        return distance_N

    def _see_others(self, starts_NK: F64, others: F64, gap_N: F64, lead_N: F64) -> None:
        """Brake for what the client drives, where it stands on the way ahead."""
        if not len(others):
            return
        # Only routes that come near are followed.
        here_N5 = self._poses(self._route[:, 0], self._offset)
        for other in others:
            near = np.abs(here_N5[:, :3] - other[:3]).max(axis=1) < _SIGHT_M
            for at in np.flatnonzero(near).tolist():
                distance = self._distance_along(at, other)
                if distance is not None and distance < gap_N[at]:
                    gap_N[at] = distance
                    lead_N[at] = 0.0 if len(other) < 7 else max(other[6], 0.0)

    def _distance_along(self, at: int, other: F64) -> float | None:
        """Return how far along a vehicle's way the nearest part of a box is, None where it is not in the way."""
        lanes, half = self._lanes, self._half[at]
        reach = -self._offset[at]
        x, y, z, yaw, length, width = other[:6].tolist()
        for segment in self._route[at].tolist():
            if segment < 0 or reach > _SIGHT_M:
                break
            samples = lanes.samples(segment)
            spacing = self._spacing[segment]
            first = max(0, int(-reach / spacing) - 1)
            last = int((_SIGHT_M - reach) / spacing) + 1
            points = lanes.points_N3[samples][first:last]
            dx, dy = points[:, 0] - x, points[:, 1] - y
            cos, sin = math.cos(yaw), math.sin(yaw)
            beyond_x = np.abs(cos * dx + sin * dy) - length
            beyond_y = np.abs(cos * dy - sin * dx) - width
            distance = np.hypot(np.maximum(beyond_x, 0.0), np.maximum(beyond_y, 0.0))
            blocked = (distance < half[1] + _SIDE_M) & (np.abs(points[:, 2] - z) < 2.5)
            blocked[: max(0, int(-reach / spacing) - first)] = False  # behind its middle
            hits = np.flatnonzero(blocked)
            if hits.size:
                along = (first + int(hits[0])) * spacing + reach
                return float(max(along - half[0], 0.0))
            reach += self._length[segment]
        return None

    def _yield_at_junctions(self, starts_NK: F64, gap_N: F64, lead_N: F64) -> None:
        """Let only those enter a junction whose path nobody's in it crosses; first come, first served."""
        stopping_N = self._speed**2 / (2 * _COMFORT_MPS2) + 8.0
        near_NK = self._is_junction[self._route] & (starts_NK > 0) & (starts_NK < stopping_N[:, None])
        coming = np.flatnonzero(near_NK.any(axis=1))
        column_N = near_NK.argmax(axis=1)
        # The nearest first, so that nobody waits for one behind it.
        for at in sorted(coming.tolist(), key=lambda at: starts_NK[at, column_N[at]]):
            driver, segment = self.drivers[at], int(self._route[at, column_N[at]])
            if segment in driver.held:
                continue
            line = starts_NK[at, column_N[at]] - _STOP_LINE_M - self._half[at, 0]
            end = starts_NK[at, column_N[at]] + self._length[segment]
            jammed = gap_N[at] < end + self._half[at, 0] + _JAM_M and lead_N[at] < 1.0
            if not jammed and not any(self._holders.get(other, 0) for other in self._lanes.conflicts(segment)):
                self._hold(driver, segment)
            elif line < gap_N[at]:
                gap_N[at], lead_N[at] = max(line, 0.0), 0.0

    def _hold(self, driver: Driver, segment: int) -> None:
        driver.held.append(segment)
        self._holders[segment] = self._holders.get(segment, 0) + 1

    def _release(self) -> None:
        for at, driver in enumerate(self.drivers):
            if driver.held and driver.held[0] not in driver.route and self._offset[at] > driver.extent[0] + 1.0:
                self._holders[driver.held.pop(0)] -= 1

    def _enter_next(self, at: int) -> None:
        driver = self.drivers[at]
        while driver.route[1] >= 0 and self._offset[at] >= self._length[driver.route[0]]:
            self._offset[at] -= self._length[driver.route.pop(0)]
            self._extend(driver)
        self._offset[at] = min(self._offset[at], self._length[driver.route[0]] - 1e-6)
        self._route[at] = driver.route

    def _extend(self, driver: Driver) -> None:
        while len(driver.route) < _ROUTE:
            ways = self._lanes.successors[driver.route[-1]] if driver.route[-1] >= 0 else []
            driver.route.append(ways[int(driver.choices.integers(len(ways)))] if ways else -1)

    def _sample(self, segment_N: Any, offset_N: F64) -> npt.NDArray[np.int64]:
        sample_N: npt.NDArray[np.int64] = (self._lanes.first_S[segment_N] + offset_N / self._spacing[segment_N]).astype(
            np.int64
        )
        return sample_N

    def _poses(self, segment_N: npt.NDArray[np.int64], offset_N: F64) -> F64:
        lanes = self._lanes
        place_N = offset_N / self._spacing[segment_N]
        whole_N = np.minimum(place_N.astype(np.int64), lanes.count_S[segment_N] - 2)
        part_N = place_N - whole_N
        sample_N = lanes.first_S[segment_N] + whole_N
        poses_N5 = np.empty((len(offset_N), 5))
        before_N3, after_N3 = lanes.points_N3[sample_N], lanes.points_N3[sample_N + 1]
        poses_N5[:, :3] = before_N3 + (after_N3 - before_N3) * part_N[:, None]
        poses_N5[:, 3] = lanes.pitch_N[sample_N]
        poses_N5[:, 4] = lanes.yaw_N[sample_N] + (lanes.yaw_N[sample_N + 1] - lanes.yaw_N[sample_N]) * part_N
        return poses_N5
