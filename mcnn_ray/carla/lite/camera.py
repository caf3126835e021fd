"""What a camera sees: sky, the ground's materials, vehicles as boxes with windows; flat shading, weather as a tint.

The ground is the plane its vehicle stands on. Pixels are uint32: B, G, R, A from the lowest byte up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.geometry import rotation_matrix
from mcnn_ray.carla.lite.palette import BANDS_M, Palette, band_of
from mcnn_ray.carla.lite.raster import CELL_M, Raster

__all__ = ["Camera"]

F64 = npt.NDArray[np.float64]

_FARTHEST_M = 250.0
_NEAREST_M = 0.05
_LONGEST_M = 4.0  # no vehicle reaches farther from its middle
_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (0, 2)], dtype=np.float64)


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
        self._turn = rotation_matrix(*mount[3:6])
        right = (np.arange(width) + 0.5 - width / 2) / self.focal
        down = (np.arange(height) + 0.5 - height / 2) / self.focal
        rays = np.empty((height, width, 3))
        rays[..., 0], rays[..., 1], rays[..., 2] = 1.0, right[None, :], -down[:, None]
        rays = (rays @ self._turn.T).reshape(-1, 3)
        self._rays = np.ascontiguousarray(rays.T.astype(np.float32))  # (3, P), in the frame of the ground
        height_m = mount[2]
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = (
                np.where(rays[:, 2] < 0, -height_m / rays[:, 2], np.inf) if height_m > 0 else np.full(len(rays), np.inf)
            )
        distance = reach * np.hypot(rays[:, 0], rays[:, 1])
        self._ground = np.flatnonzero(distance < _FARTHEST_M)
        near = reach[self._ground]
        # In cells of the raster.
        self._ground_x = ((mount[0] + near * rays[self._ground, 0]) / CELL_M).astype(np.float32)
        self._ground_y = ((mount[1] + near * rays[self._ground, 1]) / CELL_M).astype(np.float32)
        self._ground_band = band_of(distance[self._ground]).astype(np.intp)
        self._elevation = np.arctan2(rays[:, 2], np.hypot(rays[:, 0], rays[:, 1]))
        self._sky: tuple[Palette, npt.NDArray[np.uint32]] | None = None

    def see(
        self,
        frame: Sequence[float],
        raster: Raster,
        palette: Palette,
        poses_N6: npt.NDArray[np.float32],
        extents_N3: F64,
        colours_N: npt.NDArray[np.intp],
    ) -> npt.NDArray[np.uint32]:
        """Return the picture, (height, width).

        Args:
            frame: x, y, z, pitch, yaw, roll of the ground's frame, that is of the vehicle that carries the camera.
            raster: of the map.
            palette: of the weather.
            poses_N6: of the vehicles to be seen.
            extents_N3: their half lengths, widths and heights.
            colours_N: their rows in the palette.
        """
        if self._sky is None or self._sky[0] is not palette:
            self._sky = (palette, palette.sky(self._elevation))
        pixels: npt.NDArray[np.uint32] = self._sky[1].copy()
        yaw = math.radians(frame[4])
        cos, sin = np.float32(math.cos(yaw)), np.float32(math.sin(yaw))
        rows, columns = raster.cells.shape
        column = cos * self._ground_x - sin * self._ground_y + np.float32((frame[0] - raster.origin[0]) / CELL_M)
        row = sin * self._ground_x + cos * self._ground_y + np.float32((frame[1] - raster.origin[1]) / CELL_M)
        # Beyond its edges the map goes on as its outermost cells, which are grass.
        cells = np.clip(row, 0, rows - 1).astype(np.intp) * columns + np.clip(column, 0, columns - 1).astype(np.intp)
        pixels[self._ground] = palette.ground[raster.cells.ravel().take(cells), self._ground_band]
        if len(poses_N6):
            self._draw_vehicles(pixels, frame, palette, poses_N6, extents_N3, colours_N)
        return pixels.reshape(self.height, self.width)

    def _draw_vehicles(
        self,
        pixels: npt.NDArray[np.uint32],
        frame: Sequence[float],
        palette: Palette,
        poses_N6: npt.NDArray[np.float32],
        extents_N3: F64,
        colours_N: npt.NDArray[np.intp],
    ) -> None:
        into = rotation_matrix(*frame[3:6])  # world from ground, so that v @ into is in the ground's frame
        centre_N3 = (poses_N6[:, :3] - np.asarray(frame[:3])) @ into
        seen_N3 = (centre_N3 - self.mount[:3]) @ self._turn
        depth_N = seen_N3[:, 0]
        side = self.width / 2 / self.focal
        visible = (
            (depth_N > -_LONGEST_M)
            & (depth_N < _FARTHEST_M)
            & (np.abs(seen_N3[:, 1]) < (np.maximum(depth_N, 0.0) + _LONGEST_M) * side + 2 * _LONGEST_M)
        )
        order = np.flatnonzero(visible)
        order = order[np.argsort(-depth_N[order], kind="stable")]
        if not order.size:
            return
        centre, extent = centre_N3[order], extents_N3[order]
        yaw = np.radians(poses_N6[order, 4] - frame[4]).astype(np.float64)
        cos, sin = np.cos(yaw), np.sin(yaw)
        boxes, places = self._covered(centre, extent, cos, sin)
        if not places.size:
            return
        self._cast(pixels, palette, places, boxes, centre, extent, cos, sin, colours_N[order])

    def _covered(
        self, centre: F64, extent: F64, cos: F64, sin: F64
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the pixels that each box may cover, far boxes first: numbers of boxes, and of pixels."""
        corner = _CORNERS[None] * extent[:, None]  # (B, 8, 3)
        x = corner[..., 0] * cos[:, None] - corner[..., 1] * sin[:, None] + centre[:, :1] - self.mount[0]
        y = corner[..., 0] * sin[:, None] + corner[..., 1] * cos[:, None] + centre[:, 1:2] - self.mount[1]
        z = corner[..., 2] + centre[:, 2:] - self.mount[2]
        seen = np.stack([x, y, z], axis=-1) @ self._turn
        depth = seen[..., 0]
        safe = np.maximum(depth, _NEAREST_M)
        right = self.width / 2 + self.focal * seen[..., 1] / safe
        down = self.height / 2 - self.focal * seen[..., 2] / safe
        # A corner behind the camera is projected from just before it, which is far outside on the right side.
        left, top = np.floor(right.min(axis=1)), np.floor(down.min(axis=1))
        last, bottom = np.ceil(right.max(axis=1)), np.ceil(down.max(axis=1))
        left, last = np.clip(left, 0, self.width), np.clip(last, 0, self.width)
        top, bottom = np.clip(top, 0, self.height), np.clip(bottom, 0, self.height)
        columns = np.where(depth.max(axis=1) > _NEAREST_M, last - left, 0).astype(np.intp)
        counts = columns * (bottom - top).astype(np.intp)
        boxes = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        wide = columns[boxes]
        row = within // np.maximum(wide, 1)
        places = (top.astype(np.intp)[boxes] + row) * self.width + left.astype(np.intp)[boxes] + within - row * wide
        return boxes, places

    def _cast(
        self,
        pixels: npt.NDArray[np.uint32],
        palette: Palette,
        places: npt.NDArray[np.intp],
        boxes: npt.NDArray[np.intp],
        centre: F64,
        extent: F64,
        cos: F64,
        sin: F64,
        colours: npt.NDArray[np.intp],
    ) -> None:
        """Cast the rays of pixels at their boxes; of several at one pixel the last, which is the nearest, is kept."""
        dx, dy, dz = self._rays[:, places]
        away = np.asarray(self.mount[:3]) - centre
        start = np.stack([cos * away[:, 0] + sin * away[:, 1], cos * away[:, 1] - sin * away[:, 0], away[:, 2]], axis=1)
        start[:, 2] -= extent[:, 2]
        start, size = start.astype(np.float32), extent.astype(np.float32)
        c, s = cos.astype(np.float32)[boxes], sin.astype(np.float32)[boxes]
        ray = np.stack([c * dx + s * dy, c * dy - s * dx, dz])
        ray = np.where(np.abs(ray) < 1e-9, np.float32(1e-9), ray)
        origin, reach = start.T[:, boxes], size.T[:, boxes]
        entry = (-np.copysign(reach, ray) - origin) / ray  # (3, M)
        leave = (np.copysign(reach, ray) - origin) / ray
        axis = entry.argmax(axis=0)
        enter = entry.max(axis=0)
        hit = np.flatnonzero((enter < leave.min(axis=0)) & (enter > _NEAREST_M))
        axis, enter, box = axis[hit], enter[hit], boxes[hit]
        height = (origin[2, hit] + enter * dz[hit]) / reach[2, hit]  # -1 at the bottom, 1 at the top
        face = palette.face(axis, ray[0, hit] > 0, height)
        band = np.searchsorted(BANDS_M, enter)
        pixels[places[hit]] = palette.vehicles[colours[box], face, band]
