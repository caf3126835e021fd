"""A car driven by throttle, brake and steering: a bicycle whose tyres hold up to a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Car", "Controls", "advance"]

_ENGINE_MPS2 = 4.0  # at a standstill; above `_POWER_W_PER_KG / _ENGINE_MPS2` the power limits
_POWER_W_PER_KG = 45.0
_BRAKE_MPS2 = 8.0
_HAND_BRAKE_MPS2 = 5.0
_ROLLING_MPS2 = 0.15
_DRAG_PER_M = 5e-4
_GRIP_MPS2 = 7.5  # lateral
_WHEEL_RAD = math.radians(70.0)  # at full steering and a standstill
# CARLA's cars turn their wheels less the faster they go: km/h, share of the angle.
_STEERING_CURVE = ((0.0, 1.0), (20.0, 0.9), (60.0, 0.8), (120.0, 0.7))
_WHEELBASE_SHARE = 0.62  # of the length


@dataclass(slots=True)
class Controls:
    """What a client sends: throttle and brake in [0, 1], steer in [-1, 1], right positive."""

    throttle: float = 0.0
    steer: float = 0.0
    brake: float = 0.0
    hand_brake: bool = False
    reverse: bool = False


@dataclass(slots=True)
class Car:
    """Where a car is on the plane of its road and how it moves.

    Attributes:
        x: metres.
        y: metres.
        yaw: radians.
        speed: m/s along its velocity, never negative.
        slip: radians from heading to velocity.
        yaw_rate: radians a second.
        acceleration: m/s2 along its velocity.
    """

    x: float
    y: float
    yaw: float
    speed: float = 0.0
    slip: float = 0.0
    yaw_rate: float = 0.0
    acceleration: float = 0.0


def advance(car: Car, controls: Controls, *, half_length: float, slope: float, delta_s: float) -> None:
    """Move a car on.

    Where the tyres cannot hold the turn that the wheels ask for, it turns as much as they hold: it understeers.

    Args:
        car: is changed.
        controls: are clipped to their ranges.
        half_length: of the car, metres.
        slope: radians, up positive, of the road along the heading.
        delta_s: seconds.
    """
    throttle = min(max(controls.throttle, 0.0), 1.0)
    braking = min(max(controls.brake, 0.0), 1.0) * _BRAKE_MPS2 + controls.hand_brake * _HAND_BRAKE_MPS2
    wheelbase = 2 * half_length * _WHEELBASE_SHARE
    speed = car.speed
    push = throttle * min(_ENGINE_MPS2, _POWER_W_PER_KG / max(speed, 1e-3)) if not controls.reverse else 0.0
    drive = push - 9.81 * math.sin(slope) - _DRAG_PER_M * speed * speed
    # Brakes and rolling resistance stop a car and hold it, but do not push it back.
    resistance = braking + _ROLLING_MPS2
    change = drive - resistance
    if speed == 0.0:
        change = math.copysign(max(abs(drive) - resistance, 0.0), drive)
    new_speed = max(speed + change * delta_s, 0.0)
    mean_speed = (speed + new_speed) / 2

    wheel = min(max(controls.steer, -1.0), 1.0) * _WHEEL_RAD * _steering_share(speed * 3.6)
    turn = math.tan(wheel)
    slip = math.atan(turn / 2)
    curvature = math.cos(slip) * turn / wheelbase
    limit = _GRIP_MPS2 / max(mean_speed * mean_speed, 1e-6)
    if abs(curvature) > limit:
        slip *= limit / abs(curvature)
        curvature = math.copysign(limit, curvature)
    yaw_rate = mean_speed * curvature
    heading = car.yaw + yaw_rate * delta_s / 2 + slip
    car.x += mean_speed * math.cos(heading) * delta_s
    car.y += mean_speed * math.sin(heading) * delta_s
    car.yaw += yaw_rate * delta_s
    car.acceleration = (new_speed - speed) / delta_s
    car.speed, car.slip, car.yaw_rate = new_speed, slip, yaw_rate


def _steering_share(kmh: float) -> float:
    for (low, share), (high, next_share) in pairwise(_STEERING_CURVE):
        if kmh < high:
            return share + (next_share - share) * (kmh - low) / (high - low)
    return _STEERING_CURVE[-1][1]
