"""How hard a vehicle accelerates behind another: the Intelligent Driver Model (Treiber et al. 2000), compiled by numba.

Metres, seconds, m/s, m/s2.
"""

from __future__ import annotations

import math

import numba as nb

__all__ = ["COMFORT_MPS2", "JAM_M", "MOST_MPS2", "acceleration", "most_acceleration"]

COMFORT_MPS2, JAM_M = 3.0, 2.5
MOST_MPS2, _HARDEST_MPS2 = 2.0, 8.0
_CLOSING_MPS2 = 2 * math.sqrt(MOST_MPS2 * COMFORT_MPS2)
_HEADWAY_S, _CLOSEST_M = 1.2, 0.3


@nb.njit("f8(f8, f8, f8, i8)", cache=True)
def most_acceleration(speed: float, room: float, delta_s: float, frames: int) -> float:
    """Return the acceleration with which a vehicle gets no farther than so many metres in so many frames."""
    if room <= 0.0:
        return -speed / delta_s
    seconds = frames * delta_s
    change = (room - speed * seconds) / (delta_s * delta_s * frames * (frames + 1) / 2)
    # Who would come to a stop before, must do so within the room.
    return change if speed + change * seconds > 0.0 else -speed * speed / (2 * room)


@nb.njit("f8(f8, f8, f8, f8, f8, i8)", cache=True)
def acceleration(speed: float, wanted: float, gap: float, lead: float, delta_s: float, frames: int) -> float:
    """Return the acceleration that a vehicle chooses, to hold it for so many frames.

    Args:
        speed: of it.
        wanted: the speed it would have alone.
        gap: free metres before it.
        lead: speed of what ends them.
        delta_s: from one frame to the next.
        frames: how many.
    """
    closing = speed * (_HEADWAY_S + (speed - lead) / _CLOSING_MPS2)
    pressed = (JAM_M + max(closing, 0.0)) / max(gap, 0.1)
    change = max(MOST_MPS2 * (1 - (speed / wanted) ** 4 - pressed * pressed), -_HARDEST_MPS2)
    # Whatever the model says, nobody drives into what stands before it.
    return min(change, most_acceleration(speed, gap - _CLOSEST_M, delta_s, frames))
