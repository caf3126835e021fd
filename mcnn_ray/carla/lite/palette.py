"""Colours by weather and distance: of the ground, the sky and vehicles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.raster import ASPHALT

__all__ = ["CLEAR", "Palette"]

F64 = npt.NDArray[np.float64]

_BAND_MIDDLE_M = np.array([4.0, 12.0, 22.0, 36.0, 57.0, 90.0, 140.0, 210.0])

_GROUND = np.array([[86, 110, 60], [124, 120, 104], [76, 76, 79], [228, 228, 222], [216, 176, 56]], dtype=np.float64)
_ZENITH, _HORIZON, _OVERCAST = np.array([88.0, 138, 206]), np.array([184.0, 205, 228]), np.array([150.0, 155, 160])
_WINDOW, _TYRES = np.array([38.0, 44, 52]), np.array([22.0, 22, 24])

# The client's weather as it is sent: these are the places of what is used here.
_CLOUDS, _DEPOSITS, _ALTITUDE, _FOG, _WETNESS = 0, 2, 5, 6, 9
CLEAR: tuple[float, ...] = (5.0, 0.0, 0.0, 10.0, 0.0, 90.0, 2.0, 0.75, 0.1, 0.0, 1.0, 0.03, 0.0331, 0.0)

_SHADE = (0.72, 0.85, 1.1, 0.9)  # of the colour, by face


class Palette:
    """Colours, uint32 (B, G, R, A from the lowest byte up), under one weather.

    Args:
        weather: CARLA's 14 parameters in the order of its protocol.
        vehicle_colours: (C, 3) R, G, B in [0, 255].

    Attributes:
        ground: (materials, bands).
        vehicles: (C, faces, bands).
    """

    def __init__(self, weather: Sequence[float], vehicle_colours: F64) -> None:
        clouds = min(max(weather[_CLOUDS] / 100, 0.0), 1.0)
        fog = min(max(weather[_FOG] / 100, 0.0), 1.0)
        wet = min(max(weather[_WETNESS], weather[_DEPOSITS], 0.0) / 100, 1.0)
        day = 0.12 + 0.88 * math.sqrt(max(math.sin(math.radians(weather[_ALTITUDE])), 0.0))
        self._light = day * (1 - 0.3 * clouds)
        self._zenith = day * (_ZENITH + (_OVERCAST - _ZENITH) * clouds)
        self._horizon = day * (_HORIZON + (_OVERCAST - _HORIZON) * max(clouds, fog))
        self._fog = fog
        haze = 1 - np.exp(-_BAND_MIDDLE_M * (1 / 700 + fog**2 / 15))
        ground = _GROUND.copy()
        ground[ASPHALT] *= 1 - 0.45 * wet
        self.ground = self._shaded(ground, haze)
        colours = np.asarray(vehicle_colours, dtype=np.float64).reshape(-1, 1, 3)
        faces = np.concatenate(
            [
                np.minimum(colours * np.array(_SHADE)[:, None], 255.0),
                np.broadcast_to([_WINDOW, _TYRES], (len(colours), 2, 3)),
            ],
            axis=1,
        )
        self.vehicles = self._shaded(faces, haze)

    def sky(self, elevation: F64) -> npt.NDArray[np.uint32]:
        """Return the colours of directions without ground.

        Args:
            elevation: radians above the horizon; below it is the ground too far to be seen.
        """
        share = np.clip(elevation / math.radians(35.0), 0.0, 1.0)[:, None] ** 0.7 * (1 - self._fog)
        return _packed(self._horizon + (self._zenith - self._horizon) * share)

    def _shaded(self, colours: F64, haze: F64) -> npt.NDArray[np.uint32]:
        lit = np.minimum(colours * self._light, 255.0)[..., None, :]
        return _packed(lit + (self._horizon - lit) * haze[:, None])


def _packed(rgb: F64) -> npt.NDArray[np.uint32]:
    red, green, blue = np.moveaxis(np.clip(np.rint(rgb), 0, 255).astype(np.uint32), -1, 0)
    packed: npt.NDArray[np.uint32] = blue | green << np.uint32(8) | red << np.uint32(16) | np.uint32(0xFF000000)
    return packed
