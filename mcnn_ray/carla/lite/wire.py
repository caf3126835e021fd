"""Binary layouts of CARLA 0.9.16's streams: tokens, sensor headers, actor states, images.

All little-endian and unaligned; angles in degrees, lengths in metres, times in seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

__all__ = [
    "ACTOR_STATE",
    "CAMERA_STREAM",
    "COLLISION_STREAM",
    "MOTION",
    "PROTOCOL_VERSION",
    "WORLD_STREAM",
    "collision_message",
    "episode_message",
    "frame_bytes",
    "image_message",
    "stream_token",
]

PROTOCOL_VERSION = "0.9.16"  # sensor numbers and layouts change with every version

# Positions of the sensors in the client's registry.
COLLISION_STREAM = 0
CAMERA_STREAM = 13
WORLD_STREAM = 17

ACTOR_STATE = np.dtype(
    [
        ("id", "<u4"),
        ("state", "u1"),  # 1: active
        ("pose", "<f4", 6),  # x, y, z, pitch, yaw, roll
        ("velocity", "<f4", 3),
        ("angular_velocity", "<f4", 3),  # degrees a second
        ("acceleration", "<f4", 3),
        ("pedals", "<f4", 3),  # throttle, steer, brake
        ("switches", "u1", 3),  # hand brake, reverse, manual gear shift
        ("gear", "<i4"),
        ("speed_limit", "<f4"),  # km/h
        ("traffic_light_state", "u1"),
        ("has_traffic_light", "u1"),
        ("traffic_light_id", "<u4"),
        ("failure_state", "u1"),
        ("unused", "V24"),
    ]
)

# Pose, velocity, angular velocity and acceleration lie together: written as one.
MOTION = np.dtype(
    {
        "names": ["motion"],
        "formats": [("<f4", 15)],
        "offsets": [ACTOR_STATE.fields["pose"][1] if ACTOR_STATE.fields else 0],
        "itemsize": ACTOR_STATE.itemsize,
    }
)

_SENSOR_HEADER = struct.Struct("<QQd6f")
_EPISODE_HEADER = struct.Struct("<Qdf3iI")
_IMAGE_HEADER = struct.Struct("<IIf")
_TOKEN = struct.Struct("<IHBB16s")
_LENGTH = struct.Struct("<I")
_TCP, _IPV4, _LOOPBACK = 1, 1, bytes([127, 0, 0, 1])
_NO_POSE = (0.0,) * 6


def stream_token(stream: int, port: int) -> bytes:
    """Return the 24 bytes by which a client finds a stream on 127.0.0.1."""
    return _TOKEN.pack(stream, port, _TCP, _IPV4, _LOOPBACK)


def frame_bytes(message: bytes) -> bytes:
    """Return a stream's message with its length before it."""
    return _LENGTH.pack(len(message)) + message


def episode_message(
    frame: int, elapsed_s: float, delta_s: float, episode: int, states: npt.NDArray[np.void], *, wall_s: float
) -> bytes:
    """Return the message of the world's stream: all actors in one frame.

    Args:
        frame: number of the frame.
        elapsed_s: simulated seconds since the episode began.
        delta_s: simulated seconds since the frame before.
        episode: number of the episode.
        states: ACTOR_STATE, one an actor.
        wall_s: the platform's time.
    """
    header = _SENSOR_HEADER.pack(WORLD_STREAM, frame, elapsed_s, *_NO_POSE)
    return header + _EPISODE_HEADER.pack(episode, wall_s, delta_s, 0, 0, 0, 0) + states.tobytes()


def image_message(
    frame: int, elapsed_s: float, pose: Sequence[float], fov_deg: float, pixels: npt.NDArray[np.uint32]
) -> bytes:
    """Return the message of a camera's stream.

    Args:
        frame: number of the frame.
        elapsed_s: simulated seconds since the episode began.
        pose: x, y, z, pitch, yaw, roll of the camera in the world.
        fov_deg: horizontal field of view.
        pixels: (height, width), each B, G, R, A from the lowest byte up.
    """
    height, width = pixels.shape
    header = _SENSOR_HEADER.pack(CAMERA_STREAM, frame, elapsed_s, *pose)
    return header + _IMAGE_HEADER.pack(width, height, fov_deg) + pixels.tobytes()


def collision_message(
    frame: int, elapsed_s: float, pose: Sequence[float], actor: list[Any], other: list[Any], impulse: Sequence[float]
) -> bytes:
    """Return the message of a collision sensor's stream.

    Args:
        frame: number of the frame.
        elapsed_s: simulated seconds since the episode began.
        pose: x, y, z, pitch, yaw, roll of the sensor in the world.
        actor: that carries the sensor, as the client is told of it.
        other: that it hit.
        impulse: N s, in the world.
    """
    header = _SENSOR_HEADER.pack(COLLISION_STREAM, frame, elapsed_s, *pose)
    packed: bytes = msgpack.packb([actor, other, list(impulse)])
    return header + packed
