"""MuJoCo's `.mjl` logs: reading and writing.

A log is little-endian: seven int32 (`nq, nv, nu, nmocap, nsensordata, nuserdata`, and the length of the name), the
name, then float32 records of time, qpos, qvel, ctrl, 3 positions and 4 quaternion numbers for each mocap body,
sensors and user data.

Shapes: T records, R numbers of one; Q qpos, V qvel, U ctrl.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import check_fits_memory, write_bytes
from mcnn_ray.errors import DatasetError

__all__ = ["Counts", "MujocoLog", "parse_mjl", "write_mjl"]

_HEADER = struct.Struct("<7i")
_NUMBER = np.dtype("<f4")


class Counts(NamedTuple):
    """How many numbers a record has of what."""

    nq: int
    nv: int
    nu: int
    nmocap: int = 0
    nsensordata: int = 0
    nuserdata: int = 0

    @property
    def record(self) -> int:
        """Numbers R of a record."""
        return 1 + self.nq + self.nv + self.nu + 7 * self.nmocap + self.nsensordata + self.nuserdata


@dataclass(frozen=True, slots=True, kw_only=True)
class MujocoLog:
    """Records of a simulation.

    Attributes:
        name: in the header; of no meaning here.
        counts: what a record has.
        records_TR: (T, R) float32.
    """

    name: str
    counts: Counts
    records_TR: npt.NDArray[np.float32]

    @property
    def time_T(self) -> npt.NDArray[np.float32]:
        """(T,) seconds."""
        return self.records_TR[:, 0]

    @property
    def qpos_TQ(self) -> npt.NDArray[np.float32]:
        """(T, Q) generalised positions."""
        return self._part(1, self.counts.nq)

    @property
    def qvel_TV(self) -> npt.NDArray[np.float32]:
        """(T, V) generalised velocities."""
        return self._part(1 + self.counts.nq, self.counts.nv)

    @property
    def ctrl_TU(self) -> npt.NDArray[np.float32]:
        """(T, U) what the actuators were set to."""
        return self._part(1 + self.counts.nq + self.counts.nv, self.counts.nu)

    def _part(self, start: int, count: int) -> npt.NDArray[np.float32]:
        return self.records_TR[:, start : start + count]


def parse_mjl(content: npt.NDArray[np.uint8], where: str, every: int = 1) -> MujocoLog:
    """Read a log from its bytes.

    Args:
        content: of the file, e.g. a `numpy.memmap`, of which only the records that are kept are read.
        where: the file, for messages.
        every: of so many records the first is kept.

    Raises:
        DatasetError: it is cut short, is no log, or has NaN or infinite numbers in what is kept.
        ValueError: memory cannot hold it.
    """
    if len(content) < _HEADER.size:
        raise DatasetError(f"{where} is cut: {len(content)} bytes, while an .mjl log begins with {_HEADER.size}")
    *numbers, name_length = _HEADER.unpack(content[: _HEADER.size].tobytes())
    counts, start = Counts(*numbers), _HEADER.size + name_length
    if min(counts) < 0 or not 0 <= name_length <= len(content) - _HEADER.size:
        raise DatasetError(
            f"{where} is no .mjl log: its header says {dict(counts._asdict())} and a name of {name_length} bytes, in a "
            f"file of {len(content)}"
        )
    size = counts.record * _NUMBER.itemsize
    records, rest = divmod(len(content) - start, size)
    if not records or rest:
        raise DatasetError(
            f"{where} is cut or damaged: after its header follow {records} records of {size} bytes, and {rest} bytes; "
            "get it again"
        )
    check_fits_memory(-(-records // every) * size)
    records_TR = np.ascontiguousarray(content[start:].view(_NUMBER).reshape(records, -1)[::every], dtype=np.float32)
    bad_T = ~np.isfinite(records_TR).all(1)
    if bad_T.any():
        raise DatasetError(f"{where} has NaN or infinite numbers, the first in record {int(bad_T.argmax()) * every}")
    name = content[_HEADER.size : start].tobytes().partition(b"\0")[0]
    return MujocoLog(name=name.decode(errors="backslashreplace"), counts=counts, records_TR=records_TR)


def write_mjl(path: Path, log: MujocoLog) -> None:
    """Write a log whole or not at all; parents are made."""
    name = log.name.encode()
    header: Any = _HEADER.pack(*log.counts, len(name))
    write_bytes(path, header + name + log.records_TR.astype(_NUMBER).tobytes())
