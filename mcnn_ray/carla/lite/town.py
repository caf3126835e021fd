"""A map loaded: its geometry for the client, its lanes and picture for the server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

from mcnn_ray.carla.lite.geometry import Pose, pose_in_degrees
from mcnn_ray.carla.lite.lanes import LaneGraph, read_lanes
from mcnn_ray.carla.lite.maps import MAPS_PREFIX
from mcnn_ray.carla.lite.raster import Raster, draw_raster
from mcnn_ray.errors import SimulationError

__all__ = ["Slope", "Town", "load_town"]

_SPAWN_EVERY_M, _SPAWN_MARGIN_M, _SPAWN_HEIGHT_M = 25.0, 6.0, 0.3
_MOST_SPAWN_POINTS = 400


@dataclass(frozen=True, slots=True)
class Slope:
    """A plane through a point of a lane that rises along the lane and is level across it; metres, radians."""

    x: float
    y: float
    z: float
    pitch: float
    yaw: float

    def height(self, x: float, y: float) -> float:
        """Return the plane's height at a place."""
        along = (x - self.x) * math.cos(self.yaw) + (y - self.y) * math.sin(self.yaw)
        return self.z + along * math.tan(self.pitch)

    def tilt(self, yaw: float) -> tuple[float, float]:
        """Return pitch and roll, radians, of what stands on the plane and heads for `yaw`."""
        return self.pitch * math.cos(yaw - self.yaw), self.pitch * math.sin(yaw - self.yaw)


@dataclass(slots=True)
class Town:
    """A map in use.

    Attributes:
        name: `Lite/Maps/...`.
        opendrive: its file's text.
        lanes: its driving lanes.
        raster: its ground from above.
        spawn_points: on lanes outside junctions, a little above the ground.
    """

    name: str
    opendrive: str
    lanes: LaneGraph
    raster: Raster
    spawn_points: list[Pose]

    def ground(self, x: float, y: float, z: float) -> Slope:
        """Return the road's plane at a place, that of the nearest lane.

        Args:
            x: metres.
            y: metres.
            z: metres; tells the levels of a bridge apart.
        """
        poses_N5 = self.lanes.poses_N5[self.lanes.around(x, y)]
        away_x, away_y, away_z = poses_N5[:, 0] - x, poses_N5[:, 1] - y, poses_N5[:, 2] - z
        return Slope(*poses_N5[(away_x * away_x + away_y * away_y + away_z * away_z).argmin()].tolist())


def load_town(name: str, opendrive: str) -> Town:
    """Load a map.

    Args:
        name: without `Lite/Maps/`.
        opendrive: the text of an OpenDRIVE file.

    Raises:
        SimulationError: the text is no usable map.
    """
    import carla

    try:
        root = ElementTree.fromstring(opendrive)
        if root.tag != "OpenDRIVE":
            raise ValueError(f"its outermost element is {root.tag}")
        lanes = read_lanes(carla.Map(name, opendrive))
    except (RuntimeError, ValueError, ElementTree.ParseError) as error:
        raise SimulationError(f"map {name}: {error}; an OpenDRIVE (.xodr) file with driving lanes is needed") from None
    return Town(MAPS_PREFIX + name, opendrive, lanes, draw_raster(lanes), _spawn_points(lanes))


def _spawn_points(lanes: LaneGraph) -> list[Pose]:
    points: list[Pose] = []
    for segment in np.flatnonzero((lanes.junction_S < 0) & (lanes.length_S > 2 * _SPAWN_MARGIN_M)).tolist():
        samples = lanes.samples(segment)
        for offset in np.arange(_SPAWN_MARGIN_M, lanes.length_S[segment] - _SPAWN_MARGIN_M, _SPAWN_EVERY_M):
            sample = samples.start + int(offset / lanes.spacing(segment))
            x, y, z, *heading = lanes.poses_N5[sample].tolist()
            points.append(pose_in_degrees((x, y, z + _SPAWN_HEIGHT_M, *heading)))
    return points[:: max(1, math.ceil(len(points) / _MOST_SPAWN_POINTS))]
