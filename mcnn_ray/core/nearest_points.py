"""The nearest points of many observations at once, to float32 rounding, in little memory: what neural gas learns from.

`mcnn_ray.core.distance` gives the true nearest instead, at twice the cost.

Shapes: B observations, M points, D numbers, R observations of a chunk, T points of a tile, S strips of W points.
"""

from __future__ import annotations

import math

import torch

__all__ = ["PointFinder"]

_TILE_POINTS = 1 << 14  # at most: their table, 3 MiB at D = 46, is read from the cache by every chunk
_CHUNK_ELEMENTS = 1 << 21  # of the observation x point matrix held at once: 8 MiB, so that it stays in the cache


class PointFinder:
    """Finds the nearest points by matrix products of chunks of observations and tiles of points, in a buffer it keeps.

    A fresh block for every product costs more in page faults than the product itself (3x, measured).

    Args:
        device: of all tensors given later.
    """

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.empty(0, device=device)

    def __call__(self, obs_BD: torch.Tensor, points_MD: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the nearest points of each observation.

        Args:
            obs_BD: (B, D) float32, about 0, where products round least.
            points_MD: (M, D) float32.
            k: how many, 1 to M.

        Returns:
            (B, k) int64 indices, nearest first; (B, k) float32 squared distances. Both are true to the rounding of
            `|m|^2 - 2 x.m` in float32.
        """
        size, dim = points_MD.shape
        tile = math.ceil(size / math.ceil(size / _TILE_POINTS))
        # Whole cache lines a strip: products 1.3x and minima 5x as fast as with any width (measured).
        width = 32 * math.ceil(math.sqrt(tile) / 32)
        if k * width >= tile:
            width = 1  # the k least of all points at once
        tile = width * math.ceil(tile / width)
        # Points as [-2 m, |m|^2], queries as [x, 1]: the product ranks the points. Padding is infinitely far.
        table = points_MD.new_zeros(tile * math.ceil(size / tile), dim + 1)
        torch.mul(points_MD, -2.0, out=table[:size, :dim])
        table[:size, dim] = points_MD.square().sum(1)
        table[size:, dim] = torch.inf
        query_BD = torch.cat([obs_BD, obs_BD.new_ones(len(obs_BD), 1)], 1)
        rows = max(1, _CHUNK_ELEMENTS // tile)
        if self._buffer.numel() < rows * tile:
            self._buffer = obs_BD.new_empty(rows * tile)
        chunks = [self._nearest(chunk_RD, table.split(tile), width, k) for chunk_RD in query_BD.split(rows)]
        value_Bk = torch.cat([value for _, value in chunks]) + obs_BD.square().sum(1, keepdim=True)
        return torch.cat([index for index, _ in chunks]), value_Bk.clamp_min(0.0)

    def _nearest(
        self, query_RD: torch.Tensor, tiles: tuple[torch.Tensor, ...], width: int, k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (R, k) indices and ranks of the points that rank lowest."""
        rows, tile = len(query_RD), len(tiles[0])
        first_R1 = torch.arange(0, rows * tile, tile, device=query_RD.device)[:, None] // width  # strip of each row
        least = min(k, tile)  # of one tile
        indices, values = [], []
        for number, tile_TD in enumerate(tiles):
            value_RT = self._buffer[: rows * tile].view(rows, tile)
            torch.mm(query_RD, tile_TD.T, out=value_RT)
            # A row's k least lie in the k strips with the least minima: far cheaper than topk over the row.
            strip_Rk = value_RT.view(rows, -1, width).amin(2).topk(least, largest=False).indices
            near_RkW = value_RT.view(-1, width).index_select(0, (first_R1 + strip_Rk).flatten())
            least_Rk, place_Rk = near_RkW.view(rows, -1).topk(least, largest=False)
            indices.append(strip_Rk.gather(1, place_Rk // width) * width + place_Rk % width + number * tile)
            values.append(least_Rk)
        if len(tiles) == 1:
            return indices[0], values[0]
        value_Rk, order_Rk = torch.cat(values, 1).topk(k, largest=False)
        return torch.cat(indices, 1).gather(1, order_Rk), value_Rk
