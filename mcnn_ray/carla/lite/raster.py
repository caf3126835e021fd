"""The ground of a map as one picture from above, a material every 0.2 m."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mcnn_ray.carla.lite.lanes import BROKEN, NO_LINE, YELLOW, LaneGraph

__all__ = ["ASPHALT", "CELL_M", "GRASS", "MATERIALS", "VERGE", "WHITE_PAINT", "YELLOW_PAINT", "Raster", "draw_raster"]

GRASS, VERGE, ASPHALT, WHITE_PAINT, YELLOW_PAINT = MATERIALS = range(5)
CELL_M = 0.2
_MARGIN_M = 60.0
_VERGE_M = 1.5
_LEVEL_M = 4.0  # roads this much higher are drawn over those below


@dataclass(frozen=True, slots=True)
class Raster:
    """Materials of the ground.

    Attributes:
        cells: (rows, columns) uint8, materials; rows along y, columns along x.
        origin: x and y, metres, of the corner of the first cell.
    """

    cells: npt.NDArray[np.uint8]
    origin: tuple[float, float]


def draw_raster(lanes: LaneGraph) -> Raster:
    """Draw the lanes of a map with their markings and verges.

    Args:
        lanes: of the map.
    """
    xy = lanes.points_N3[:, :2]
    low = np.floor(xy.min(axis=0) - _MARGIN_M)
    columns, rows = np.ceil((xy.max(axis=0) + _MARGIN_M - low) / CELL_M).astype(int)
    picture = Image.new("L", (int(columns), int(rows)), GRASS)
    draw = ImageDraw.Draw(picture)
    normal_N2 = np.stack([-np.sin(lanes.yaw_N), np.cos(lanes.yaw_N)], axis=1)
    half_N1 = lanes.width_N[:, None] / 2

    def edge(extra_m: float, side: int) -> npt.NDArray[np.float64]:
        # A pixel's centre, not its corner, stands for its place.
        cells: npt.NDArray[np.float64] = (xy + side * normal_N2 * (half_N1 + extra_m) - low) / CELL_M - 0.5
        return cells

    bands = [(VERGE, edge(_VERGE_M, -1), edge(_VERGE_M, 1)), (ASPHALT, edge(0.05, -1), edge(0.05, 1))]
    lines = [edge(0.0, -1), edge(0.0, 1)]
    inner_N = np.ones(len(xy), dtype=bool)  # has a next sample in its segment
    inner_N[lanes.first_S + lanes.count_S - 1] = False
    level_N = np.round(lanes.points_N3[:, 2] / _LEVEL_M)
    for level in np.unique(level_N):
        samples = np.flatnonzero(inner_N & (level_N == level))
        for material, left_N2, right_N2 in bands:
            quads = np.stack([left_N2[samples], right_N2[samples], right_N2[samples + 1], left_N2[samples + 1]], axis=1)
            for quad in quads.reshape(len(samples), 8).tolist():
                draw.polygon(quad, fill=material)
        for side, line_N2 in enumerate(lines):
            marked = samples[lanes.lines_N2[samples, side] != NO_LINE]
            for sample in marked.tolist():
                colour = YELLOW_PAINT if int(lanes.lines_N2[sample, side]) & ~BROKEN == YELLOW else WHITE_PAINT
                draw.line([*line_N2[sample], *line_N2[sample + 1]], fill=colour)
    return Raster(np.array(picture), (float(low[0]), float(low[1])))
