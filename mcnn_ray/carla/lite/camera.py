"""What a camera sees: sky, the ground's materials, vehicles as boxes with windows; flat shading, weather as a tint.

The ground is the plane its vehicle stands on. Pixels are uint32: B, G, R, A from the lowest byte up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcnn_ray.carla.lite.geometry import rotation_matrix
from mcnn_ray.carla.lite.palette import BANDS, Palette, band_of
from mcnn_ray.carla.lite.raster import CELL_M, Raster

__all__ = ["Camera"]

F64 = npt.NDArray[np.float64]

_FARTHEST_M = 250.0
_NEAREST_M = 0.05
_NONE = np.zeros(0, dtype=np.intp)
_RADIUS_M = 3.5  # no vehicle reaches farther from its middle


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
        self._eye = np.array(mount[:3])
        self._side = width / 2 / self.focal
        self._slant = math.hypot(1.0, self._side)
        self._axes: list[list[float]] = self._turn.T.tolist()
        right = (np.arange(width) + 0.5 - width / 2) / self.focal
        down = (np.arange(height) + 0.5 - height / 2) / self.focal
        ahead = np.empty((height, width, 3))
        ahead[..., 0], ahead[..., 1], ahead[..., 2] = 1.0, right[None, :], -down[:, None]
        rays = (ahead @ self._turn.T).reshape(-1, 3)
        self._rays = np.ascontiguousarray(rays.T.astype(np.float32))  # (3, P), in the frame of the ground
        height_m = mount[2]
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = (
                np.where(rays[:, 2] < 0, -height_m / rays[:, 2], np.inf) if height_m > 0 else np.full(len(rays), np.inf)
            )
        distance = reach * np.hypot(rays[:, 0], rays[:, 1])
        ground = np.flatnonzero(distance < _FARTHEST_M)
        # Mostly the lower part of the picture, which a slice covers faster.
        whole = ground.size and ground[-1] - ground[0] + 1 == ground.size
        self._ground = slice(int(ground[0]), int(ground[-1]) + 1) if whole else ground
        near = reach[ground]
        # In cells of the raster.
        self._ground_x = ((mount[0] + near * rays[ground, 0]) / CELL_M).astype(np.float32)
        self._ground_y = ((mount[1] + near * rays[ground, 1]) / CELL_M).astype(np.float32)
        self._ground_band = band_of(distance[ground]).astype(np.intp)
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
        column = cos * self._ground_x - sin * self._ground_y
        column += np.float32((frame[0] - raster.origin[0]) / CELL_M)
        row = sin * self._ground_x + cos * self._ground_y
        row += np.float32((frame[1] - raster.origin[1]) / CELL_M)
        # Beyond its edges the map goes on as its outermost cells, which are grass.
        np.minimum(np.maximum(column, 0, out=column), columns - 1, out=column)
        np.minimum(np.maximum(row, 0, out=row), rows - 1, out=row)
        cells = row.astype(np.intp)
        cells *= columns
        cells += column.astype(np.intp)
        shades = self._ground_band + raster.cells.ravel().take(cells) * np.intp(BANDS)
        pixels[self._ground] = palette.ground.ravel().take(shades)
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
        centre_N3 = (poses_N6[:, :3] - np.asarray(frame[:3], dtype=np.float32)) @ into
        centre_N3[:, 2] += extents_N3[:, 2]
        seen_N3 = (centre_N3 - self._eye) @ self._turn
        depth_N = seen_N3[:, 0]
        # A sphere around the vehicle meets the wedge between the left and the right edge of the picture.
        visible_N = np.abs(seen_N3[:, 1]) - depth_N * self._side < _RADIUS_M * self._slant
        visible_N &= depth_N < _FARTHEST_M
        order = np.flatnonzero(visible_N)
        if not order.size:
            return
        order = order[np.argsort(-depth_N[order], kind="stable")]
        extent = extents_N3[order]
        yaw = np.radians(poses_N6[order, 4] - np.float32(frame[4]))
        cos, sin = np.cos(yaw), np.sin(yaw)
        boxes, places = self._covered(seen_N3[order].tolist(), extent.tolist(), cos.tolist(), sin.tolist())
        if places.size:
            self._cast(pixels, palette, places, boxes, centre_N3[order], extent, cos, sin, colours_N[order])

    def _covered(
        self, seen: list[list[float]], extents: list[list[float]], cosines: list[float], sines: list[float]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the pixels that each box may cover, far boxes first: numbers of boxes, and of pixels.

        A few boxes at a time are faster one by one than as arrays.
        """
        boxes, places = [], []
        (fx, fy, fz), (rx, ry, rz), (ux, uy, uz) = self._axes
        for box, ((depth, right, up), (ex, ey, ez), c, s) in enumerate(zip(seen, extents, cosines, sines, strict=True)):
            # Half sizes along the camera's axes of the box that encloses the vehicle's there.
            deep = abs(c * fx + s * fy) * ex + abs(c * fy - s * fx) * ey + abs(fz) * ez
            wide = abs(c * rx + s * ry) * ex + abs(c * ry - s * rx) * ey + abs(rz) * ez
            tall = abs(c * ux + s * uy) * ex + abs(c * uy - s * ux) * ey + abs(uz) * ez
            if depth + deep < _NEAREST_M:
                continue
            near, far = self.focal / max(depth - deep, _NEAREST_M), self.focal / (depth + deep)
            left, last = _span(right - wide, right + wide, near, far, self.width)
            top, bottom = _span(-up - tall, -up + tall, near, far, self.height)
            if left < last and top < bottom:
                rows = np.arange(top, bottom) * self.width
                covered = (rows[:, None] + np.arange(left, last)).ravel()
                places.append(covered)
                boxes.append(np.full(covered.size, box))
        if not boxes:
            return _NONE, _NONE
        return np.concatenate(boxes), np.concatenate(places)

    def _cast(
        self,
        pixels: npt.NDArray[np.uint32],
        palette: Palette,
        places: npt.NDArray[np.intp],
        boxes: npt.NDArray[np.intp],
        centre: F64,
        extent: F64,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        colours: npt.NDArray[np.intp],
    ) -> None:
        """Cast the rays of pixels at their boxes; of several at one pixel the last, which is the nearest, is kept."""
        away = self._eye - centre
        geometry = np.empty((8, len(centre)), dtype=np.float32)  # eye in the box's frame, half sizes, turn
        geometry[0], geometry[1] = cos * away[:, 0] + sin * away[:, 1], cos * away[:, 1] - sin * away[:, 0]
        geometry[2], geometry[3:6], geometry[6], geometry[7] = away[:, 2], extent.T, cos, sin
        of_ray = geometry[:, boxes]
        rays = self._rays[:, places]
        origin, reach, c, s = of_ray[:3], of_ray[3:6], of_ray[6], of_ray[7]
        ray = np.empty_like(rays)
        ray[0] = c * rays[0] + s * rays[1]
        ray[1] = c * rays[1] - s * rays[0]
        ray[2] = rays[2]
        ray += np.float32(1e-12)  # none is exactly along a face
        inverse = 1 / ray
        middle, half = origin * inverse, reach * np.abs(inverse)
        entry = -middle - half  # (3, M)
        leave = half - middle
        enter = entry.max(axis=0)
        hit = np.flatnonzero((enter < leave.min(axis=0)) & (enter > _NEAREST_M))
        if not hit.size:
            return
        enter = enter[hit]
        height = (origin[2, hit] + enter * ray[2, hit]) / reach[2, hit]  # -1 at the bottom, 1 at the top
        face = palette.face(entry[:, hit].argmax(axis=0), ray[0, hit], height)
        pixels[places[hit]] = palette.vehicles[colours[boxes[hit]], face, band_of(enter)]


def _span(low: float, high: float, near: float, far: float, pixels: int) -> tuple[int, int]:
    """Return the pixels between two distances from the axis, at the depth where each lies farther out."""
    first = low * (near if low < 0 else far) + pixels / 2
    last = high * (near if high > 0 else far) + pixels / 2 + 1
    return int(min(max(first, 0), pixels)), int(min(max(last, 0), pixels))
