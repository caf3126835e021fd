"""How vehicles move along the centrelines of lanes, several frames at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.geometry import wrapped
from mcnn_ray.carla.lite.lanes import LaneGraph

__all__ = ["Paths", "Trip"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trip:
    """What some vehicles do in the coming frames: F frames, the present one first, of D vehicles.

    Attributes:
        passed_FD: segments of its route that each has left behind.
        offset_FD: metres along the segment it is on.
        speed_FD: m/s.
        motion_FDM: what clients are told, M = 15: x, y, z, metres; pitch, yaw, roll, degrees; velocity, m/s; angular
            velocity, degrees a second; acceleration, m/s2. Rates are those of the way from the frame before.
    """

    passed_FD: I64
    offset_FD: F64
    speed_FD: F64
    motion_FDM: F64


class Paths:
    """The centrelines of a map.

    Args:
        lanes: of the map.
    """

    def __init__(self, lanes: LaneGraph) -> None:
        self._poses_N5 = lanes.poses_N5
        self._length_S = lanes.length_S
        self._spacing_S = lanes.spacing_S
        self._first_S = lanes.first_S
        self._last_S = lanes.first_S + lanes.count_S - 2  # sample that still has one after it

    def pose(self, segments: I64, offsets: F64) -> F64:
        """Return x, y, z, metres, and pitch and yaw, radians, of places on centrelines, between samples linearly.

        Args:
            segments: (...).
            offsets: metres along them, (...); beyond a segment's end it goes on straight.
        """
        first = self._first_S[segments]
        place = offsets / self._spacing_S[segments]
        at = np.minimum(first + place.astype(np.int64), self._last_S[segments])
        here = self._poses_N5[at]
        pose: F64 = here + (self._poses_N5[at + 1] - here) * (place - (at - first))[..., None]
        return pose

    def drive(
        self,
        routes: Sequence[Sequence[int]],
        offsets: Sequence[float],
        speeds: Sequence[float],
        accelerations: Sequence[float],
        *,
        frames: int,
        delta_s: float,
    ) -> Trip:
        """Let vehicles hold an acceleration each for some frames; who comes to a stop stands.

        Args:
            routes: segments that each goes along, the present one first, and far enough; -1 is beyond a dead end.
            offsets: metres along the present ones.
            speeds: m/s.
            accelerations: m/s2.
            frames: how many after the present one.
            delta_s: from one to the next.
        """
        seconds_F1 = np.arange(frames + 1)[:, None] * delta_s
        speed_FD = np.maximum(np.asarray(speeds) + seconds_F1 * np.asarray(accelerations), 0.0)
        steps_FD = speed_FD * delta_s
        steps_FD[0] = offsets
        offset_FD = np.cumsum(steps_FD, axis=0)
        segment_FD = np.repeat(np.array([[route[0] for route in routes]]), frames + 1, axis=0)
        passed_FD = np.zeros_like(segment_FD)
        for index in np.flatnonzero(offset_FD[-1] >= self._length_S[segment_FD[0]]).tolist():
            self._change_segments(routes[index], passed_FD[:, index], offset_FD[:, index], segment_FD[:, index])
        pose_FD5 = self.pose(segment_FD, offset_FD)
        motion_FDM = np.zeros((*speed_FD.shape, 15))
        motion_FDM[..., :3] = pose_FD5[..., :3]
        motion_FDM[..., 3:5] = np.degrees(pose_FD5[..., 3:])
        motion_FDM[..., 4] = wrapped(motion_FDM[..., 4])
        course_FD3 = np.stack([np.cos(pose_FD5[..., 4]), np.sin(pose_FD5[..., 4]), np.tan(pose_FD5[..., 3])], axis=-1)
        motion_FDM[..., 6:9] = speed_FD[..., None] * course_FD3
        motion_FDM[1:, :, 11] = wrapped(np.diff(motion_FDM[..., 4], axis=0)) / delta_s
        motion_FDM[1:, :, 12:] = (np.diff(speed_FD, axis=0) / delta_s)[..., None] * course_FD3[1:]
        return Trip(passed_FD, offset_FD, speed_FD, motion_FDM)

    def _change_segments(self, route: Sequence[int], passed_F: I64, offset_F: F64, segment_F: I64) -> None:
        """Take one vehicle over the ends of segments."""
        for frame, offset in enumerate(offset_F.tolist()):
            place = 0
            while offset >= self._length_S[route[place]] and route[place + 1] >= 0:
                offset -= self._length_S[route[place]]
                place += 1
            passed_F[frame], offset_F[frame], segment_F[frame] = place, offset, route[place]
