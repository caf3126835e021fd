"""Vehicles the server drives: along lane centrelines, by the Intelligent Driver Model (Treiber et al. 2000).

What one of them chooses, at forks and as its speed, follows from where it was spawned and from nothing else: neither
actor numbers nor what the server did before. A client that draws spawn poses from a seed has repeatable traffic.

One vehicle after the other in plain Python: for the tens there are it is faster than arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcnn_ray.carla.lite.lanes import LaneGraph

__all__ = ["DEFAULT_LIMIT_KMH", "Driver", "LanePose", "Obstacle", "Traffic"]

LanePose = tuple[float, float, float, float, float]  # x, y, z, metres; pitch, yaw, radians

DEFAULT_LIMIT_KMH = 30.0
_SPEED_SHARE = (0.55, 0.85)  # of the limit; CARLA's traffic manager at 30 % below it drives at 0.7
_ACCELERATION_MPS2, _COMFORT_MPS2, _HARDEST_MPS2 = 2.0, 3.0, 8.0
_CLOSING_MPS2 = 2 * math.sqrt(_ACCELERATION_MPS2 * _COMFORT_MPS2)
_HEADWAY_S, _JAM_M, _CLOSEST_M = 1.2, 2.5, 0.3
_ROUTE = 5  # segments known ahead, the present one among them
_SIGHT_M = 40.0
_STOP_LINE_M = 1.5
_LEAVE_M = 1.0
_SIDE_M = 1.4  # what comes so near a centreline stands in the way
_LEVEL_M = 2.5  # above or below, it is on another road
_FREE_M = 1e6


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that the client drives: metres, radians, m/s."""

    x: float
    y: float
    z: float
    yaw: float
    half_length: float
    half_width: float
    speed: float


@dataclass(slots=True)
class Driver:
    """One vehicle on its way.

    Attributes:
        actor: its number.
        route: segments, the present one first; -1 is beyond a dead end.
        offset: metres along the present one.
        half_length: metres.
        choices: draws its forks.
        wanted: the speed it would have alone, m/s.
        speed: m/s.
        acceleration: m/s2.
        pose: of its middle on the road.
        starts: metres ahead that each segment of the route begins, as far as it sees.
        held: segments of junctions that others must keep out of for it.
    """

    actor: int
    route: list[int]
    offset: float
    half_length: float
    choices: np.random.Generator
    wanted: float
    pose: LanePose
    speed: float = 0.0
    acceleration: float = 0.0
    starts: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


class Traffic:
    """All vehicles that the server drives on one map.

    Args:
        lanes: of the map.
    """

    def __init__(self, lanes: LaneGraph) -> None:
        self.drivers: dict[int, Driver] = {}
        self._lanes = lanes
        self._holders: dict[int, int] = {}  # segment of a junction -> vehicles that hold it
        # Single numbers are read faster from lists. What is beyond a dead end is the last, without length.
        self._length: list[float] = [*lanes.length_S.tolist(), 0.0]
        self._is_junction: list[bool] = [*(lanes.junction_S >= 0).tolist(), False]
        self._spacing = [lanes.spacing(segment) for segment in range(len(lanes.count_S))]
        self._first: list[int] = lanes.first_S.tolist()
        self._last: list[int] = (lanes.first_S + lanes.count_S - 2).tolist()  # sample that still has one after it
        self._poses: list[LanePose] = list(map(tuple, lanes.poses_N5.tolist()))
        self._caps: list[float] = lanes.speed_cap_N.tolist()

    def nearest(self, x: float, y: float, z: float, yaw: float) -> tuple[int, float, LanePose]:
        """Return the segment nearest to a pose, how far along it, and the pose there; metres, radians."""
        segment, offset = self._lanes.nearest(x, y, z, yaw)
        return segment, offset, self._pose(segment, offset)

    def add(self, actor: int, segment: int, offset: float, half_length: float, seed: list[int]) -> Driver:
        """Let a vehicle drive, from a standstill.

        Args:
            actor: its number.
            segment: where it is.
            offset: metres along it.
            half_length: metres.
            seed: of what it chooses.
        """
        choices = np.random.default_rng(seed)
        wanted = choices.uniform(*_SPEED_SHARE) * DEFAULT_LIMIT_KMH / 3.6
        pose = self._pose(segment, offset)
        driver = Driver(actor, [segment], offset, half_length, choices, wanted, pose)
        self._extend(driver)
        if self._is_junction[segment]:
            self._hold(driver, segment)
        self.drivers[actor] = driver
        return driver

    def remove(self, actor: int) -> None:
        """Forget a vehicle."""
        for segment in self.drivers.pop(actor).held:
            self._holders[segment] -= 1

    def move(self, actor: int, x: float, y: float, z: float, yaw: float) -> Driver:
        """Put a vehicle on the lane nearest to a pose; metres, radians."""
        old = self.drivers[actor]
        position = list(self.drivers).index(actor)
        self.remove(actor)
        segment, offset, _ = self.nearest(x, y, z, yaw)
        new = self.add(actor, segment, offset, old.half_length, [int(old.choices.integers(2**31))])
        new.speed, new.wanted = old.speed, old.wanted
        for later in list(self.drivers)[position:-1]:  # its turn stays the same
            self.drivers[later] = self.drivers.pop(later)
        return new

    def step(self, delta_s: float, others: Sequence[Obstacle]) -> Iterable[Driver]:
        """Move all vehicles on by so many seconds, in sight of what the client drives, and return them."""
        drivers = list(self.drivers.values())
        for driver in drivers:
            self._look_ahead(driver)
        blocked = [block for other in others for block in self._blocked(other)]
        on = _occupied(drivers)
        gaps = [_gap(driver, on, blocked) for driver in drivers]
        self._yield_at_junctions(drivers, gaps)
        for driver, (gap, lead) in zip(drivers, gaps, strict=True):
            self._advance(driver, gap, lead, delta_s)
        return drivers

    def _look_ahead(self, driver: Driver) -> None:
        begins = -driver.offset
        driver.starts = starts = []
        for segment in driver.route:
            starts.append(begins)
            begins += self._length[segment]
            if begins > _SIGHT_M:
                break

    def _blocked(self, other: Obstacle) -> list[tuple[int, float, float]]:
        """Return the segments an obstacle stands on: number, metres along it to its rear, speed along it."""
        lanes = self._lanes
        near = lanes.around(other.x, other.y)
        away = lanes.poses_N5[near, :3] - (other.x, other.y, other.z)
        cos, sin = math.cos(other.yaw), math.sin(other.yaw)
        beyond_x = np.abs(cos * away[:, 0] + sin * away[:, 1]) - other.half_length
        beyond_y = np.abs(cos * away[:, 1] - sin * away[:, 0]) - other.half_width
        inside = (np.maximum(beyond_x, 0.0) + np.maximum(beyond_y, 0.0) < _SIDE_M) & (np.abs(away[:, 2]) < _LEVEL_M)
        found: dict[int, tuple[int, float, float]] = {}
        for sample in near[inside].tolist():
            segment = int(lanes.segment_N[sample])
            if segment not in found:
                speed = other.speed * math.cos(other.yaw - float(lanes.poses_N5[sample, 4]))
                along = (sample - self._first[segment]) * self._spacing[segment]
                found[segment] = (segment, along, max(speed, 0.0))
        return list(found.values())

    def _yield_at_junctions(self, drivers: list[Driver], gaps: list[tuple[float, float]]) -> None:
        """Let only those enter a junction whose path nobody's in it crosses; first come, first served."""
        coming = []
        for index, driver in enumerate(drivers):
            stopping = driver.speed**2 / (2 * _COMFORT_MPS2) + 8.0
            for segment, begins in zip(driver.route, driver.starts, strict=False):
                if begins > stopping:
                    break
                if begins > 0 and self._is_junction[segment] and segment not in driver.held:
                    coming.append((begins, index, segment))
                    break
        # The nearest first, so that nobody waits for one behind it.
        for begins, index, segment in sorted(coming):
            driver, (gap, lead) = drivers[index], gaps[index]
            behind_it = begins + self._length[segment] + driver.half_length + _JAM_M
            jammed = gap < behind_it and lead < 1.0  # whoever cannot leave a junction does not enter it
            if not jammed and not any(self._holders.get(other, 0) for other in self._lanes.conflicts(segment)):
                self._hold(driver, segment)
            else:
                line = max(begins - _STOP_LINE_M - driver.half_length, 0.0)
                gaps[index] = min((gap, lead), (line, 0.0))

    def _hold(self, driver: Driver, segment: int) -> None:
        driver.held.append(segment)
        self._holders[segment] = self._holders.get(segment, 0) + 1

    def _advance(self, driver: Driver, gap: float, lead: float, delta_s: float) -> None:
        speed, segment = driver.speed, driver.route[0]
        sample = self._first[segment] + int(driver.offset / self._spacing[segment])
        wanted = min(driver.wanted, self._caps[sample])
        closing = speed * (_HEADWAY_S + (speed - lead) / _CLOSING_MPS2)
        pressed = (_JAM_M + max(closing, 0.0)) / max(gap, 0.1)
        change = _ACCELERATION_MPS2 * (1 - (speed / wanted) ** 4 - pressed**2)
        new_speed = speed + max(change, -_HARDEST_MPS2) * delta_s
        # Whatever the model says, nobody drives into what stands before it.
        new_speed = max(min(new_speed, (gap - _CLOSEST_M) / delta_s), 0.0)
        driver.acceleration = (new_speed - speed) / delta_s
        driver.speed = new_speed
        driver.offset += new_speed * delta_s
        while driver.offset >= self._length[driver.route[0]] and driver.route[1] >= 0:
            driver.offset -= self._length[driver.route.pop(0)]
            self._extend(driver)
        if driver.held and driver.held[0] not in driver.route and driver.offset > driver.half_length + _LEAVE_M:
            self._holders[driver.held.pop(0)] -= 1
        driver.pose = self._pose(driver.route[0], driver.offset)

    def _extend(self, driver: Driver) -> None:
        while len(driver.route) < _ROUTE:
            ways = self._lanes.successors[driver.route[-1]] if driver.route[-1] >= 0 else []
            driver.route.append(ways[int(driver.choices.integers(len(ways)))] if len(ways) > 1 else (ways or [-1])[0])

    def _pose(self, segment: int, offset: float) -> LanePose:
        place = offset / self._spacing[segment]
        at = min(self._first[segment] + int(place), self._last[segment])
        part = place - (at - self._first[segment])
        x, y, z, pitch, yaw = self._poses[at]
        next_x, next_y, next_z, next_pitch, next_yaw = self._poses[at + 1]
        return (
            x + (next_x - x) * part,
            y + (next_y - y) * part,
            z + (next_z - z) * part,
            pitch + (next_pitch - pitch) * part,
            yaw + (next_yaw - yaw) * part,
        )


def _occupied(drivers: list[Driver]) -> dict[int, list[tuple[float, Driver]]]:
    """Return who is on a segment, or about to enter it: for each, how far ahead of it the segment begins."""
    on: dict[int, list[tuple[float, Driver]]] = {}
    for driver in drivers:
        for segment, begins in zip(driver.route[:2], driver.starts, strict=False):
            on.setdefault(segment, []).append((begins, driver))
    return on


def _gap(
    driver: Driver, on: dict[int, list[tuple[float, Driver]]], blocked: list[tuple[int, float, float]]
) -> tuple[float, float]:
    """Return the free distance before a vehicle and the speed of what ends it.

    Vehicles about to enter a segment of its route count as if they were on it, so that two lanes merge.
    """
    gap, lead = _FREE_M, 0.0
    half_length = driver.half_length
    for segment, begins in zip(driver.route, driver.starts, strict=False):
        if segment < 0:  # a dead end
            return min((gap, lead), (begins - half_length, 0.0))
        for other_begins, other in on.get(segment, ()):
            ahead = begins - other_begins
            # Of two as far from a merge the one spawned first goes first.
            if ahead > 0 or (ahead == 0 and other.actor < driver.actor):
                ahead -= half_length + other.half_length
                if ahead < gap:
                    gap, lead = ahead, other.speed
        for blocked_segment, along, speed in blocked:
            if blocked_segment == segment and 0 < begins + along < gap + half_length:
                gap, lead = begins + along - half_length, speed
    return gap, lead
