"""The loops over a picture's pixels, compiled by numba when first imported and kept on disk for later.

Pixels are uint32: B, G, R, A from the lowest byte up, row by row.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np
import numpy.typing as npt

__all__ = ["BANDS_M", "FARTHEST_M", "draw_ground", "draw_vehicles"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]

# Numbers that the loops use stand here: what is kept on disk is compiled anew only after a change of this file.
BANDS_M = np.array([8.0, 16.0, 28.0, 45.0, 70.0, 110.0, 170.0], dtype=np.float32)  # haze grows in these steps
BACK, SIDE, TOP, FRONT, GLASS, WHEELS = range(6)  # faces of a vehicle
FARTHEST_M = 250.0
_NEAREST_M = 0.05
_SILL, _GLASS_FROM, _GLASS_TO = np.float32(-0.65), np.float32(0.2), np.float32(0.85)  # -1 at the bottom, 1 at the top
_FACING = np.float32(1e-12)  # no ray is exactly along a face


@nb.njit("void(u4[::1], i8[::1], f4[::1], f4[::1], i8[::1], f8, f8, f8, f8, u1[:,::1], u4[:,::1])", cache=True)
def draw_ground(
    pixels_P: U32,
    places_G: npt.NDArray[np.int64],
    x_G: F32,
    y_G: F32,
    bands_G: npt.NDArray[np.int64],
    cos: float,
    sin: float,
    column: float,
    row: float,
    cells: npt.NDArray[np.uint8],
    shades: U32,
) -> None:
    """Give the pixels that show the ground its colours.

    Args:
        pixels_P: are changed.
        places_G: of those pixels.
        x_G: what they show, cells of the raster ahead of the frame of the ground.
        y_G: cells to its right.
        bands_G: haze bands.
        cos: of the frame's heading.
        sin: of it.
        column: of the frame's origin in the raster, cells.
        row: of it.
        cells: materials, (rows, columns); beyond its edges the map goes on as its outermost cells, which are grass.
        shades: (materials, bands).
    """
    last_row, last_column = cells.shape[0] - 1, cells.shape[1] - 1
    for k in range(len(places_G)):
        across = cos * x_G[k] - sin * y_G[k] + column
        down = sin * x_G[k] + cos * y_G[k] + row
        material = cells[int(min(max(down, 0.0), last_row)), int(min(max(across, 0.0), last_column))]
        pixels_P[places_G[k]] = shades[material, bands_G[k]]


@nb.njit("Tuple((i8, i8))(f8, f8, f8, f8, i8)", cache=True)
def _span(low: float, high: float, near: float, far: float, pixels: int) -> tuple[int, int]:
    """Return the pixels between two distances from the axis, at the depth where each lies farther out."""
    first = low * (near if low < 0 else far) + pixels / 2
    last = high * (near if high > 0 else far) + pixels / 2 + 1
    return int(min(max(first, 0.0), pixels)), int(min(max(last, 0.0), pixels))


@nb.njit("i8(i8, f4, f4)", cache=True)
def _face(axis: int, along: np.float32, height: np.float32) -> int:
    """Return which face of a vehicle a ray meets.

    Args:
        axis: 0 for the faces across its length, 1 across its width, 2 across its height.
        along: the ray's part along the vehicle's heading.
        height: of the point on the box, -1 at the bottom, 1 at the top.
    """
    if axis == 2:
        return TOP
    if height <= _SILL:
        return WHEELS
    if _GLASS_FROM < height <= _GLASS_TO:
        return GLASS
    if axis == 1:
        return SIDE
    return BACK if along > 0 else FRONT


@nb.njit(
    "void(u4[::1], f4[:,::1], i8, i8, f8, f8[::1], f8[:,::1], f8[::1], f8[:,::1], f4[:,::1], f8[:,::1], "
    "i8[::1], i8, u4[:,:,::1])",
    cache=True,
)
def draw_vehicles(
    pixels_P: U32,
    rays_P3: F32,
    width: int,
    height: int,
    focal: float,
    eye_3: F64,
    axes_33: F64,
    frame_6: F64,
    into_33: F64,
    poses_N: F32,
    extents_N3: F64,
    colours_N: npt.NDArray[np.int64],
    unseen: int,
    shades: U32,
) -> None:
    """Draw vehicles as boxes with windows and wheels over what is there; of several at a pixel the nearest.

    Args:
        pixels_P: are changed.
        rays_P3: of the pixels, in the frame of the ground, not of length one.
        width: pixels.
        height: pixels.
        focal: pixels.
        eye_3: the camera in the frame of the ground, metres.
        axes_33: its forward, right and up there.
        frame_6: pose of that frame in the world; metres, degrees.
        into_33: turns vectors of that frame into the world.
        poses_N: of the vehicles in the world, (N, 6 or more).
        extents_N3: their half lengths, widths and heights.
        colours_N: their rows among the shades.
        unseen: one that is left out, -1 for none.
        shades: (colours, faces, bands).
    """
    enters_P = np.full(len(pixels_P), np.inf, dtype=np.float32)
    forward, right, up = axes_33[0], axes_33[1], axes_33[2]
    away, half = np.empty(3), np.empty(3)
    for n in range(len(poses_N)):
        if n == unseen:
            continue
        for k in range(3):  # from the eye to the vehicle's middle
            offset = 0.0
            for j in range(3):
                offset += (poses_N[n, j] - frame_6[j]) * into_33[j, k]
            away[k] = offset - eye_3[k]
        away[2] += extents_N3[n, 2]
        yaw = math.radians(poses_N[n, 4] - frame_6[4])
        cos, sin = math.cos(yaw), math.sin(yaw)
        for k in range(3):  # half sizes along the camera's axes of what encloses the box there
            x, y, z = axes_33[k]
            half[k] = (
                abs(cos * x + sin * y) * extents_N3[n, 0]
                + abs(cos * y - sin * x) * extents_N3[n, 1]
                + abs(z) * extents_N3[n, 2]
            )
        depth = away[0] * forward[0] + away[1] * forward[1] + away[2] * forward[2]
        if depth + half[0] < _NEAREST_M or depth > FARTHEST_M:
            continue
        near, far = focal / max(depth - half[0], _NEAREST_M), focal / (depth + half[0])
        side = away[0] * right[0] + away[1] * right[1] + away[2] * right[2]
        rise = away[0] * up[0] + away[1] * up[1] + away[2] * up[2]
        left, last = _span(side - half[1], side + half[1], near, far, width)
        top, bottom = _span(-rise - half[2], -rise + half[2], near, far, height)
        length, breadth, tall = np.float32(extents_N3[n, 0]), np.float32(extents_N3[n, 1]), np.float32(extents_N3[n, 2])
        eye_x, eye_y = np.float32(-cos * away[0] - sin * away[1]), np.float32(sin * away[0] - cos * away[1])
        eye_z, c, s = np.float32(-away[2]), np.float32(cos), np.float32(sin)
        for row in range(top, bottom):
            for place in range(row * width + left, row * width + last):
                ray = rays_P3[place]
                ray_x, ray_y, ray_z = (
                    c * ray[0] + s * ray[1] + _FACING,
                    c * ray[1] - s * ray[0] + _FACING,
                    ray[2] + _FACING,
                )
                middle_x, middle_y, middle_z = eye_x / ray_x, eye_y / ray_y, eye_z / ray_z
                half_x, half_y, half_z = length / abs(ray_x), breadth / abs(ray_y), tall / abs(ray_z)
                enter_x, enter_y, enter_z = -middle_x - half_x, -middle_y - half_y, -middle_z - half_z
                enter = max(enter_x, enter_y, enter_z)
                leave = min(half_x - middle_x, half_y - middle_y, half_z - middle_z)
                if not _NEAREST_M < enter < min(leave, enters_P[place]):
                    continue
                enters_P[place] = enter
                axis = 0 if enter == enter_x else 1 if enter == enter_y else 2
                face = _face(axis, ray_x, (eye_z + enter * ray_z) / tall)
                pixels_P[place] = shades[colours_N[n], face, np.searchsorted(BANDS_M, enter)]
