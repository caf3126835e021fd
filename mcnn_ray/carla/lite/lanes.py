"""The lanes of an OpenDRIVE map as arrays: centrelines by arc length, what follows what, and what crosses."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.geometry import wrapped

__all__ = ["LaneGraph", "read_lanes"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_STEP_M = 1.0
_CLEARANCE_M = 2.6  # paths through a junction that come nearer than this cross
_LATERAL_MPS2 = 2.5
_CELL_M, _MOST_CELLS = 8.0, 10_000
_BROKEN_DASH_M, _BROKEN_PERIOD_M = 3.0, 9.0
NO_LINE, WHITE, YELLOW, BROKEN = 0, 1, 2, 4  # BROKEN is added to a colour


@dataclass(slots=True)
class LaneGraph:
    """Driving lanes as segments: stretches from one fork, merge or end of a lane section to the next.

    Samples of a segment lie one after the other, evenly by arc length; S segments, N samples.

    Attributes:
        poses_N5: of centrelines: x, y, z, metres; pitch, up positive, and yaw, radians.
        segment_N: which each sample belongs to.
        width_N: of the lane, metres.
        lines_N2: left and right marking: NO_LINE, or WHITE or YELLOW, plus BROKEN.
        speed_cap_N: m/s that a bend allows.
        first_S: a segment's first sample.
        count_S: its samples.
        length_S: metres.
        spacing_S: metres from one of its samples to the next.
        junction_S: number of the junction it lies in, else -1.
        successors: segments that continue each.
    """

    poses_N5: F64
    segment_N: I64
    width_N: F64
    lines_N2: npt.NDArray[np.uint8]
    speed_cap_N: F64
    first_S: I64
    count_S: I64
    length_S: F64
    junction_S: I64
    successors: list[list[int]]
    spacing_S: F64 = field(init=False)
    _conflicts: dict[int, frozenset[int]] = field(default_factory=dict)
    _around: dict[tuple[int, int], I64] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spacing_S = self.length_S / (self.count_S - 1)

    @property
    def points_N3(self) -> F64:
        """Places on centrelines: x, y, z, metres."""
        return self.poses_N5[:, :3]

    @property
    def yaw_N(self) -> F64:
        """Headings of traffic, radians."""
        return self.poses_N5[:, 4]

    def spacing(self, segment: int) -> float:
        """Return the metres from one of a segment's samples to the next."""
        return float(self.spacing_S[segment])

    def samples(self, segment: int) -> slice:
        """Return where a segment's samples lie."""
        return slice(int(self.first_S[segment]), int(self.first_S[segment] + self.count_S[segment]))

    def nearest(self, x: float, y: float, z: float, yaw: float) -> tuple[int, float]:
        """Return the segment, and how far along it, of the centreline nearest to a pose.

        Args:
            x: metres.
            y: metres.
            z: metres; levels of a bridge are told apart by it.
            yaw: radians; lanes that lead elsewhere are taken only where none leads there.
        """
        offset_N3 = self.points_N3 - (x, y, z)
        distance_N = np.einsum("ij,ij->i", offset_N3, offset_N3)
        distance_N = np.where(np.cos(self.yaw_N - yaw) > 0.5, distance_N, distance_N + 400.0)
        sample = int(np.argmin(distance_N))
        segment = int(self.segment_N[sample])
        along = (x - self.points_N3[sample, 0]) * math.cos(self.yaw_N[sample]) + (
            y - self.points_N3[sample, 1]
        ) * math.sin(self.yaw_N[sample])
        offset = (sample - int(self.first_S[segment])) * self.spacing(segment) + along
        return segment, float(np.clip(offset, 0.0, self.length_S[segment] - 1e-3))

    def around(self, x: float, y: float) -> I64:
        """Return the samples near a place, all within 8 m and some beyond; the nearest where there is none so near.

        Args:
            x: metres.
            y: metres.
        """
        cell = math.floor(x / _CELL_M), math.floor(y / _CELL_M)
        found = self._around.get(cell)
        if found is None:
            middle = (cell[0] + 0.5) * _CELL_M, (cell[1] + 0.5) * _CELL_M
            away_N = np.maximum(np.abs(self.poses_N5[:, 0] - middle[0]), np.abs(self.poses_N5[:, 1] - middle[1]))
            found = np.flatnonzero(away_N < 1.5 * _CELL_M)
            if not found.size:
                found = np.array([int(away_N.argmin())])
            if len(self._around) >= _MOST_CELLS:
                self._around.clear()
            self._around[cell] = found
        return found

    def conflicts(self, segment: int) -> frozenset[int]:
        """Return the segments of the same junction that cross or join this one, but none from the same lane."""
        if segment not in self._conflicts:
            here = self.points_N3[self.samples(segment)]
            found = set()
            for other in np.flatnonzero(self.junction_S == self.junction_S[segment]):
                there = self.points_N3[self.samples(int(other))]
                if np.linalg.norm(here[0] - there[0]) < 0.5:  # this segment, or one that forks from it
                    continue
                gap = np.linalg.norm(here[:, None] - there[None], axis=-1).min()
                if gap < _CLEARANCE_M:
                    found.add(int(other))
            self._conflicts[segment] = frozenset(found)
        return self._conflicts[segment]


@dataclass(slots=True)
class _Piece:
    """A lane of one lane section."""

    rows: list[tuple[float, ...]]  # x, y, z, pitch, yaw, width, left line, right line
    junction: int
    following: list[tuple[int, int, int]]


def read_lanes(road_map: Any) -> LaneGraph:
    """Sample the driving lanes of a map.

    Args:
        road_map: a `carla.Map`.

    Raises:
        ValueError: the map has no driving lane.
    """
    pieces = _read_pieces(road_map)
    if not pieces:
        raise ValueError("it has no driving lane")
    chains = _chain(pieces)
    head = {chain[0]: index for index, chain in enumerate(chains)}
    successors = [[head[key] for key in pieces[chain[-1]].following] for chain in chains]
    parts = [_resample(np.array([row for key in chain for row in pieces[key].rows])) for chain in chains]
    count_S = np.array([len(part) for part in parts])
    everything = np.concatenate(parts)
    length_S = np.array([np.linalg.norm(np.diff(part[:, :3], axis=0), axis=1).sum() for part in parts])
    return LaneGraph(
        poses_N5=everything[:, :5].copy(),
        segment_N=np.repeat(np.arange(len(count_S)), count_S),
        width_N=everything[:, 5].copy(),
        lines_N2=everything[:, 6:8].astype(np.uint8),
        speed_cap_N=np.concatenate([_speed_caps(part) for part in parts]),
        first_S=np.concatenate([[0], np.cumsum(count_S)[:-1]]),
        count_S=count_S,
        length_S=length_S,
        junction_S=np.array([pieces[chain[0]].junction for chain in chains]),
        successors=successors,
    )


def _read_pieces(road_map: Any) -> dict[tuple[int, int, int], _Piece]:
    groups: dict[tuple[int, int, int], list[Any]] = defaultdict(list)
    for waypoint in road_map.generate_waypoints(_STEP_M):
        groups[_key(waypoint)].append(waypoint)
    for start, _ in road_map.get_topology():  # lanes begin up to a step before their first waypoint
        if str(start.lane_type) == "Driving":
            groups[_key(start)].append(start)
    pieces = {}
    for key, waypoints in groups.items():
        waypoints.sort(key=lambda point: point.s, reverse=key[2] > 0)
        last = waypoints[-1]
        junction = last.get_junction().id if last.is_junction else -1
        pieces[key] = _Piece([_row(point) for point in waypoints], junction, _following(last))
    for piece in pieces.values():
        piece.following = [way for way in piece.following if way in pieces]
        if piece.following:  # the start of what follows ends this lane, so that no gap remains between them
            piece.rows.append((*pieces[piece.following[0]].rows[0][:5], *piece.rows[-1][5:]))
    return pieces


def _following(last: Any) -> list[tuple[int, int, int]]:
    """Return the lanes that follow a lane's last waypoint, which lies up to a step before its end."""
    for part in (0.25, 0.5, 0.75, 1.0, 1.25):
        ways = last.next(part * _STEP_M)
        # A road that leads into itself has itself as next, far from its end.
        ways = [way for way in ways if _key(way) != _key(last) or abs(way.s - last.s) > 2 * _STEP_M]
        if ways:
            return list(dict.fromkeys(map(_key, ways)))
    return []


def _key(waypoint: Any) -> tuple[int, int, int]:
    return waypoint.road_id, waypoint.section_id, waypoint.lane_id


def _row(waypoint: Any) -> tuple[float, ...]:
    pose = waypoint.transform
    place, turn = pose.location, pose.rotation
    lines = (0, 0)
    if not waypoint.is_junction:
        lines = (_line(waypoint, waypoint.left_lane_marking), _line(waypoint, waypoint.right_lane_marking))
    heading = math.radians(wrapped(turn.pitch)), math.radians(turn.yaw)
    return place.x, place.y, place.z, *heading, waypoint.lane_width, *lines


def _line(waypoint: Any, marking: Any) -> int:
    kind = str(marking.type)
    if kind in ("NONE", "Curb", "Grass", "Other"):
        return NO_LINE
    colour = YELLOW if str(marking.color) == "Yellow" else WHITE
    if "Broken" in kind and "Solid" not in kind:
        return colour | BROKEN if waypoint.s % _BROKEN_PERIOD_M < _BROKEN_DASH_M else NO_LINE
    return colour


def _chain(pieces: dict[tuple[int, int, int], _Piece]) -> list[list[tuple[int, int, int]]]:
    """Join pieces that only follow each other, outside junctions."""
    sources: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for key, piece in pieces.items():
        for way in piece.following:
            sources[way].append(key)

    def continues(key: tuple[int, int, int]) -> tuple[int, int, int] | None:
        ways = pieces[key].following
        if len(ways) != 1 or len(sources[ways[0]]) != 1 or pieces[key].junction != -1 or pieces[ways[0]].junction != -1:
            return None
        return ways[0]

    joined = {continues(key) for key in pieces}
    chains = []
    seen: set[tuple[int, int, int]] = set()
    for key in [*(key for key in pieces if key not in joined), *pieces]:  # rings have no first piece: any will do
        chain = []
        at: tuple[int, int, int] | None = key
        while at is not None and at not in seen:
            seen.add(at)
            chain.append(at)
            at = continues(at)
        if chain:
            chains.append(chain)
    return chains


def _resample(rows: F64) -> F64:
    """Return rows at even distances of about a metre along the line, at least two."""
    steps = np.linalg.norm(np.diff(rows[:, :3], axis=0), axis=1)
    keep = np.concatenate([[True], steps > 1e-3])
    rows = rows[keep] if keep.sum() > 1 else np.stack([rows[0], rows[0] + [1e-2, *[0.0] * 7]])
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(rows[:, :3], axis=0), axis=1))])
    wanted = np.linspace(0.0, along[-1], max(2, round(along[-1] / _STEP_M) + 1))
    result = np.empty((len(wanted), rows.shape[1]))
    for column in range(6):
        values = np.unwrap(rows[:, column]) if column == 4 else rows[:, column]
        result[:, column] = np.interp(wanted, along, values)
    nearest = np.searchsorted((along[1:] + along[:-1]) / 2, wanted)
    result[:, 6:] = rows[nearest, 6:]
    return result


def _speed_caps(rows: F64) -> F64:
    travelled = np.linalg.norm(np.diff(rows[:, :3], axis=0), axis=1)
    bend = np.abs(np.diff(rows[:, 4])) / np.maximum(travelled, 0.5)
    bend = np.concatenate([bend, bend[-1:]])
    caps: F64 = np.sqrt(_LATERAL_MPS2 / np.clip(bend, 2.5e-3, 0.25))
    return caps
