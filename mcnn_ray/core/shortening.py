"""Fewer numbers that still tell which memories cannot be the nearest, so that a search has less to read.

Shapes: B observations, M memories, D observation numbers, K numbers that are left of them, S rows of a sample.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["Shortening", "shorten"]

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

_SHORT_FROM = 50_000  # memories; below, a shorter product saves less than measuring more memories costs
_SHORT_SHARE = 0.6  # of the D numbers, at most
_SHORT_VARIANCE = 0.96  # of the memories', in the components that are kept
_SPREAD_ROWS = 20_000  # that principal components are taken of
_ROWS_AT_ONCE = 4096  # in float64: 1.5 MiB at D = 46


class Shortening:
    """A map to fewer numbers that never lengthens a distance: what it leaves far apart is far apart.

    It keeps the leading principal components, and of the others their norm alone: by the triangle inequality the
    difference of two such norms is at most the distance within the other components.

    Args:
        memories_MD: (M, D) float32, finite, M >= 1.
        axes_DD: (D, D) float64, orthonormal columns, leading first.
        kept: components that stay, 1 to D - 1.

    Attributes:
        length: K = kept + 1, of what it returns.
    """

    def __init__(self, memories_MD: Float32Array, axes_DD: Float64Array, kept: int) -> None:
        self.length = kept + 1
        self._kept = kept
        self._axes_DD = axes_DD
        self._centre_D = memories_MD.mean(0, dtype=np.float64)
        self._rotated_D = np.empty(len(axes_DD))

    def one(self, x_D: Float64Array, out_K: Float64Array) -> None:
        """Write the K numbers of one observation, (D,) float64."""
        np.subtract(x_D, self._centre_D).dot(self._axes_DD, self._rotated_D)
        rest = self._rotated_D[self._kept :]
        out_K[: self._kept] = self._rotated_D[: self._kept]
        out_K[self._kept] = math.sqrt(rest.dot(rest))

    def many(self, obs_BD: Float32Array) -> Float64Array:
        """Return the (B, K) float64 numbers of many observations."""
        short_BK = np.empty((len(obs_BD), self.length))
        for start in range(0, len(obs_BD), _ROWS_AT_ONCE):
            rotated = (obs_BD[start : start + _ROWS_AT_ONCE] - self._centre_D) @ self._axes_DD
            part = short_BK[start : start + _ROWS_AT_ONCE]
            part[:, :-1] = rotated[:, : self._kept]
            part[:, -1] = np.sqrt(np.square(rotated[:, self._kept :]).sum(1))
        return short_BK


def shorten(memories_MD: Float32Array) -> Shortening | None:
    """Return a shortening that makes ranks of (M, D) finite memories cheaper, or None if none does.

    It needs many memories, whose variance lies in a part of their principal components: otherwise too many memories
    would be as near as the nearest in what is kept, to be measured one by one.
    """
    count, dim = memories_MD.shape
    if count < _SHORT_FROM:
        return None
    rows_SD = memories_MD[:: -(-count // _SPREAD_ROWS)].astype(np.float64)
    rows_SD -= rows_SD.mean(0)
    variance_D, axes_DD = np.linalg.eigh(rows_SD.T @ rows_SD)  # ascending
    share_D = variance_D[::-1].cumsum() / max(variance_D.sum(), np.finfo(np.float64).tiny)
    kept = 1 + int((share_D < _SHORT_VARIANCE).sum())
    if kept > _SHORT_SHARE * dim:
        return None
    return Shortening(memories_MD, np.ascontiguousarray(axes_DD[:, ::-1]), kept)
