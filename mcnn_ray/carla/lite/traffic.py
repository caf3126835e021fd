"""Vehicles the server drives: along lane centrelines, one behind the other (see `following`).

What one of them chooses, at forks and as its speed, follows from where it was spawned and from nothing else: neither
actor numbers nor what the server did before. A client that draws spawn poses from a seed has repeatable traffic.

They look around every 0.2 s and hold their acceleration in between (SUMO calls it the action step). Looking is done one
vehicle after the other in plain Python, faster than arrays for the tens there are; what follows from it, as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.following import COMFORT_MPS2, JAM_M, MOST_MPS2, acceleration
from mcnn_ray.carla.lite.lanes import LaneGraph
from mcnn_ray.carla.lite.paths import Paths, Trip

__all__ = ["DEFAULT_LIMIT_KMH", "Driver", "Obstacle", "Traffic"]

DEFAULT_LIMIT_KMH = 30.0
_SPEED_SHARE = (0.55, 0.85)  # of the limit; CARLA's traffic manager at 30 % below it drives at 0.7
_LOOK_S, _MOST_FRAMES = 0.2, 100
_ROUTE = 5  # segments known ahead at least, the present one among them
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
    """One vehicle on its way, as it was when it last looked around.

    Attributes:
        actor: its number.
        route: segments, the present one first; -1 is beyond a dead end.
        offset: metres along the present one.
        half_length: metres.
        choices: draws its forks.
        wanted: the speed it would have alone, m/s.
        speed: m/s.
        starts: metres ahead that each segment of the route begins, as far as it sees.
        held: segments of junctions that others must keep out of for it.
    """

    actor: int
    route: list[int]
    offset: float
    half_length: float
    choices: np.random.Generator
    wanted: float
    speed: float = 0.0
    starts: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


class Traffic:
    """All vehicles that the server drives on one map.

    Args:
        lanes: of the map.

    Attributes:
        drivers: by their actors' numbers, in the order of their turns.
    """

    def __init__(self, lanes: LaneGraph) -> None:
        self.drivers: dict[int, Driver] = {}
        self._lanes = lanes
        self._paths = Paths(lanes)
        self._trip: Trip | None = None  # until they look around again
        self._frame, self._delta_s = 0, 0.0  # of the trip
        self._holders: dict[int, int] = {}  # segment of a junction -> vehicles that hold it
        # Single numbers are read faster from lists. What is beyond a dead end is the last, without length.
        self._length: list[float] = [*lanes.length_S.tolist(), 0.0]
        self._is_junction: list[bool] = [*(lanes.junction_S >= 0).tolist(), False]
        self._spacing: list[float] = lanes.spacing_S.tolist()
        self._first: list[int] = lanes.first_S.tolist()
        self._caps: list[float] = lanes.speed_cap_N.tolist()

    def nearest(self, x: float, y: float, z: float, yaw: float) -> tuple[int, float, list[float]]:
        """Return the segment nearest to a pose, how far along it, and the pose there; metres, radians."""
        segment, offset = self._lanes.nearest(x, y, z, yaw)
        return segment, offset, self._paths.pose(np.array(segment), np.array(offset)).tolist()

    def add(self, actor: int, segment: int, offset: float, half_length: float, seed: list[int]) -> Driver:
        """Let a vehicle drive, from a standstill.

        Args:
            actor: its number.
            segment: where it is.
            offset: metres along it.
            half_length: metres.
            seed: of what it chooses.
        """
        self.end_trip()
        choices = np.random.default_rng(seed)
        wanted = choices.uniform(*_SPEED_SHARE) * DEFAULT_LIMIT_KMH / 3.6
        driver = Driver(actor, [segment], offset, half_length, choices, wanted)
        self._extend(driver)
        if self._is_junction[segment]:
            self._hold(driver, segment)
        self.drivers[actor] = driver
        return driver

    def remove(self, actor: int) -> None:
        """Forget a vehicle."""
        self.end_trip()
        for segment in self.drivers.pop(actor).held:
            self._holders[segment] -= 1

    def move(self, actor: int, x: float, y: float, z: float, yaw: float) -> list[float]:
        """Put a vehicle on the lane nearest to a pose, and return the pose there; metres, radians."""
        old = self.drivers[actor]
        position = list(self.drivers).index(actor)
        self.remove(actor)
        segment, offset, pose = self.nearest(x, y, z, yaw)
        new = self.add(actor, segment, offset, old.half_length, [int(old.choices.integers(2**31))])
        new.speed, new.wanted = old.speed, old.wanted
        for later in list(self.drivers)[position:-1]:  # its turn stays the same
            self.drivers[later] = self.drivers.pop(later)
        return pose

    def set_speed(self, actor: int, speed: float) -> None:
        """Set a vehicle's speed, m/s."""
        self.end_trip()
        self.drivers[actor].speed = speed

    def step(self, delta_s: float, others: Iterable[Obstacle]) -> npt.NDArray[np.float64]:
        """Move all vehicles on by so many seconds, in sight of what the client drives.

        Returns:
            The motion of each in the order of `drivers`, as `Trip` has it.
        """
        if self._trip is None or self._frame == len(self._trip.motion_FDM) - 1 or delta_s != self._delta_s:
            self._trip = self._look_around(delta_s, others)
            self._frame, self._delta_s = 0, delta_s
        self._frame += 1
        motion_DM: npt.NDArray[np.float64] = self._trip.motion_FDM[self._frame]
        return motion_DM

    def end_trip(self) -> None:
        """Let all be where the present frame has them, and look around before they drive on."""
        if self._trip is None:
            return
        offsets, speeds = self._trip.offset_FD[self._frame].tolist(), self._trip.speed_FD[self._frame].tolist()
        passed = self._trip.passed_FD[self._frame].tolist()
        for driver, offset, speed, left in zip(self.drivers.values(), offsets, speeds, passed, strict=True):
            driver.offset, driver.speed = offset, speed
            if left:
                del driver.route[:left]
                self._extend(driver)
            while driver.held and driver.held[0] not in driver.route and offset > driver.half_length + _LEAVE_M:
                self._holders[driver.held.pop(0)] -= 1
        self._trip = None

    def _look_around(self, delta_s: float, others: Iterable[Obstacle]) -> Trip:
        self.end_trip()
        drivers = list(self.drivers.values())
        frames = min(max(1, round(_LOOK_S / delta_s)), _MOST_FRAMES)
        seconds = frames * delta_s
        for driver in drivers:
            farthest = (driver.speed + MOST_MPS2 * seconds) * seconds
            self._extend(driver, driver.offset + max(farthest, _SIGHT_M))
            self._look_ahead(driver)
        blocked = [block for other in others for block in self._blocked(other)]
        on = _occupied(drivers)
        gaps = [_gap(driver, on, blocked) for driver in drivers]
        self._yield_at_junctions(drivers, gaps)
        chosen = [
            acceleration(driver.speed, self._wanted(driver), gap, lead, delta_s, frames)
            for driver, (gap, lead) in zip(drivers, gaps, strict=True)
        ]
        return self._paths.drive(
            [driver.route for driver in drivers],
            [driver.offset for driver in drivers],
            [driver.speed for driver in drivers],
            chosen,
            frames=frames,
            delta_s=delta_s,
        )

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
            stopping = driver.speed**2 / (2 * COMFORT_MPS2) + 8.0
            for segment, begins in zip(driver.route, driver.starts, strict=False):
                if begins > stopping:
                    break
                if begins > 0 and self._is_junction[segment] and segment not in driver.held:
                    coming.append((begins, index, segment))
                    break
        # The nearest first, so that nobody waits for one behind it.
        for begins, index, segment in sorted(coming):
            driver, (gap, lead) = drivers[index], gaps[index]
            behind_it = begins + self._length[segment] + driver.half_length + JAM_M
            jammed = gap < behind_it and lead < 1.0  # whoever cannot leave a junction does not enter it
            if not jammed and not any(
                self._holders.get(other, 0) > driver.held.count(other) for other in self._lanes.conflicts(segment)
            ):
                self._hold(driver, segment)
            else:
                line = max(begins - _STOP_LINE_M - driver.half_length, 0.0)
                gaps[index] = min((gap, lead), (line, 0.0))

    def _hold(self, driver: Driver, segment: int) -> None:
        driver.held.append(segment)
        self._holders[segment] = self._holders.get(segment, 0) + 1

    def _wanted(self, driver: Driver) -> float:
        """Return the speed that a vehicle would have here alone, m/s."""
        segment = driver.route[0]
        return min(driver.wanted, self._caps[self._first[segment] + int(driver.offset / self._spacing[segment])])

    def _extend(self, driver: Driver, reach: float = 0.0) -> None:
        """Let a route be known as many metres on, since junctions have segments of centimetres, or to its end."""
        known = sum(self._length[segment] for segment in driver.route)
        while driver.route[-1] >= 0 and (len(driver.route) < _ROUTE or known <= reach):
            ways = self._lanes.successors[driver.route[-1]] or [-1]
            driver.route.append(ways[int(driver.choices.integers(len(ways)))] if len(ways) > 1 else ways[0])
            known += self._length[driver.route[-1]]


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
