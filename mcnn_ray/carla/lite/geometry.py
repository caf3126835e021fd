"""Poses in CARLA's axes (x forward, y right, z up; yaw clockwise from above, pitch up, roll right down) and boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Pose", "boxes_overlap", "compose", "pose_in_degrees", "rotation_matrix", "wrapped"]

Pose = tuple[float, float, float, float, float, float]  # x, y, z in metres; pitch, yaw, roll in degrees

_Angle = TypeVar("_Angle", float, npt.NDArray[np.float64])


def pose_in_degrees(pose: Sequence[float], roll: float = 0.0) -> Pose:
    """Return a pose from x, y, z, metres, and pitch, yaw and roll in radians."""
    x, y, z, pitch, yaw = pose
    return x, y, z, math.degrees(pitch), wrapped(math.degrees(yaw)), math.degrees(roll)


def wrapped(degrees: _Angle) -> _Angle:
    """Return an angle in [-180, 180), or an array of them."""
    return (degrees + 180.0) % 360.0 - 180.0


def rotation_matrix(pitch_deg: float, yaw_deg: float, roll_deg: float) -> npt.NDArray[np.float64]:
    """Return the (3, 3) matrix that takes vectors of a rotated frame into the frame around it."""
    return np.array(_rotation(pitch_deg, yaw_deg, roll_deg))


def _rotation(pitch_deg: float, yaw_deg: float, roll_deg: float) -> list[list[float]]:
    cp, sp = math.cos(math.radians(pitch_deg)), math.sin(math.radians(pitch_deg))
    cy, sy = math.cos(math.radians(yaw_deg)), math.sin(math.radians(yaw_deg))
    cr, sr = math.cos(math.radians(roll_deg)), math.sin(math.radians(roll_deg))
    return [
        [cp * cy, cy * sp * sr - sy * cr, -cy * sp * cr - sy * sr],
        [cp * sy, sy * sp * sr + cy * cr, -sy * sp * cr + cy * sr],
        [sp, -cp * sr, cp * cr],
    ]


def compose(parent: Sequence[float], relative: Sequence[float]) -> Pose:
    """Return the pose in the world of what is attached to a parent.

    Args:
        parent: pose in the world.
        relative: pose in the parent's frame.
    """
    outer = _rotation(*parent[3:6])
    ahead, right, up = relative[:3]
    x, y, z = (a * ahead + b * right + c * up + at for (a, b, c), at in zip(outer, parent, strict=False))
    if not any(relative[3:6]):
        return x, y, z, parent[3], parent[4], parent[5]
    turned = np.array(outer) @ rotation_matrix(*relative[3:6])
    pitch = math.degrees(math.asin(min(max(turned[2, 0], -1.0), 1.0)))
    yaw = math.degrees(math.atan2(turned[1, 0], turned[0, 0]))
    roll = math.degrees(math.atan2(-turned[2, 1], turned[2, 2]))
    return x, y, z, pitch, yaw, roll


def boxes_overlap(
    first: Sequence[float], first_extent: Sequence[float], second: Sequence[float], second_extent: Sequence[float]
) -> bool:
    """Return whether two upright boxes overlap, by separating axes.

    Args:
        first: pose; pitch and roll are not regarded.
        first_extent: half length, width and height, metres, above the pose.
        second: pose.
        second_extent: as the first.
    """
    low, high = max(first[2], second[2]), min(first[2] + 2 * first_extent[2], second[2] + 2 * second_extent[2])
    if low >= high:
        return False
    dx, dy = second[0] - first[0], second[1] - first[1]
    if dx * dx + dy * dy > (math.hypot(*first_extent[:2]) + math.hypot(*second_extent[:2])) ** 2:
        return False
    turn = math.radians(second[4] - first[4])
    cos, sin = abs(math.cos(turn)), abs(math.sin(turn))
    for yaw, own, other in ((first[4], first_extent, second_extent), (second[4], second_extent, first_extent)):
        c, s = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
        if abs(dx * c + dy * s) >= own[0] + other[0] * cos + other[1] * sin:
            return False
        if abs(dy * c - dx * s) >= own[1] + other[0] * sin + other[1] * cos:
            return False
    return True
