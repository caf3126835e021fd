"""What a camera sees: sky, the ground's materials, vehicles as boxes with windows; flat shading, weather as a tint.

The ground is the plane its vehicle stands on. Pixels are uint32: B, G, R, A from the lowest byte up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.drawing import BANDS_M, FARTHEST_M, draw_ground, draw_vehicles
from mcnn_ray.carla.lite.geometry import rotation_matrix
from mcnn_ray.carla.lite.palette import Palette
from mcnn_ray.carla.lite.raster import CELL_M, Raster

__all__ = ["Camera"]

F64 = npt.NDArray[np.float64]


class Camera:
    """A pinhole camera at a fixed place on a vehicle, or anywhere above the ground.

    Args:
        width: pixels.
        height: pixels.
        fov_deg: horizontal field of view.
        mount: pose in the frame of the ground: x, y, z in metres; pitch, yaw, roll in degrees.
    """

    def __init__(self, width: int, height: int, fov_deg: float, mount: Sequence[float]) -> None:
        self.width, self.height, self.fov_deg = width, height, fov_deg
        self.mount = tuple(mount)
        self.focal = width / 2 / math.tan(math.radians(fov_deg) / 2)  # pixels
        turn = rotation_matrix(*mount[3:6])
        self._eye_3 = np.array(mount[:3], dtype=np.float64)
        self._axes_33 = np.ascontiguousarray(turn.T)
        right = (np.arange(width) + 0.5 - width / 2) / self.focal
        down = (np.arange(height) + 0.5 - height / 2) / self.focal
        ahead = np.empty((height, width, 3))
        ahead[..., 0], ahead[..., 1], ahead[..., 2] = 1.0, right[None, :], -down[:, None]
        rays = (ahead @ turn.T).reshape(-1, 3)
        self._rays_P3 = rays.astype(np.float32)  # in the frame of the ground
        height_m = mount[2]
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = (
                np.where(rays[:, 2] < 0, -height_m / rays[:, 2], np.inf) if height_m > 0 else np.full(len(rays), np.inf)
            )
        distance = reach * np.hypot(rays[:, 0], rays[:, 1])
        self._ground_G = np.flatnonzero(distance < FARTHEST_M)
        near = reach[self._ground_G]
        # In cells of the raster.
        self._x_G = ((mount[0] + near * rays[self._ground_G, 0]) / CELL_M).astype(np.float32)
        self._y_G = ((mount[1] + near * rays[self._ground_G, 1]) / CELL_M).astype(np.float32)
        self._bands_G = np.searchsorted(BANDS_M, distance[self._ground_G])
        self._elevation = np.arctan2(rays[:, 2], np.hypot(rays[:, 0], rays[:, 1]))
        self._sky: tuple[Palette, npt.NDArray[np.uint32]] | None = None

    def see(
        self,
        frame: Sequence[float],
        raster: Raster,
        palette: Palette,
        poses_N: npt.NDArray[np.float32],
        extents_N3: F64,
        colours_N: npt.NDArray[np.intp],
        *,
        unseen: int | None = None,
    ) -> npt.NDArray[np.uint32]:
        """Return the picture, (height, width).

        Args:
            frame: x, y, z, pitch, yaw, roll of the ground's frame, that is of the vehicle that carries the camera.
            raster: of the map.
            palette: of the weather.
            poses_N: of the vehicles, (N, 6 or more); what follows their poses is not regarded.
            extents_N3: their half lengths, widths and heights.
            colours_N: their rows in the palette.
            unseen: the one among them past which the camera looks.
        """
        if self._sky is None or self._sky[0] is not palette:
            self._sky = (palette, palette.sky(self._elevation))
        pixels: npt.NDArray[np.uint32] = self._sky[1].copy()
        yaw = math.radians(frame[4])
        draw_ground(
            pixels,
            self._ground_G,
            self._x_G,
            self._y_G,
            self._bands_G,
            math.cos(yaw),
            math.sin(yaw),
            (frame[0] - raster.origin[0]) / CELL_M,
            (frame[1] - raster.origin[1]) / CELL_M,
            raster.cells,
            palette.ground,
        )
        draw_vehicles(
            pixels,
            self._rays_P3,
            self.width,
            self.height,
            self.focal,
            self._eye_3,
            self._axes_33,
            np.array(frame),
            rotation_matrix(*frame[3:6]),
            poses_N,
            extents_N3,
            colours_N,
            -1 if unseen is None else unseen,
            palette.vehicles,
        )
        return pixels.reshape(self.height, self.width)
