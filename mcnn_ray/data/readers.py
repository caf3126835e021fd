"""Demonstration files of other projects: D4RL's HDF5, numpy's npz, and the Franka Kitchen's logs."""

from __future__ import annotations

import functools
import math
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import check_fits_memory
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.hdf5 import own_dataset
from mcnn_ray.data.relay import read_relay
from mcnn_ray.errors import ConfigError, DatasetError

__all__ = ["read_file"]


def read_file(path: Path, horizon: int | None = None) -> Demonstrations:
    """Read a demonstration file; what it is follows from its ending.

    A folder, .zip or .mjl file is read by `mcnn_ray.data.relay.read_relay`. The other kinds hold arrays `observations`
    (N, D) and `actions` (N, A), maybe `rewards` (N,). Where episodes end is told by `episode_lengths` (E,), or by
    `terminals` and `timeouts` (N,) as in D4RL's v1 files. Steps after the last end are an unfinished episode and are
    kept as one. Large arrays of HDF5 files, as D4RL's images, are copied to a temporary file (in TMPDIR) instead of
    memory.

    Args:
        path: a folder, or a file ending in .npz, .hdf5, .h5, .zip or .mjl.
        horizon: length at which to cut where the file tells no ends (D4RL's v0 files).

    Raises:
        ConfigError: another ending.
        DatasetError: missing, damaged, foreign, or without episode boundaries.
    """
    readers: dict[str, Callable[[Path, int | None], Demonstrations]] = {
        ".npz": functools.partial(_from_arrays, _read_npz),
        ".hdf5": functools.partial(_from_arrays, _read_hdf5),
        ".h5": functools.partial(_from_arrays, _read_hdf5),
        ".zip": lambda path, _: read_relay(path),
        ".mjl": lambda path, _: read_relay(path),
    }
    kind = ".mjl" if path.is_dir() else path.suffix
    if kind not in readers:
        raise ConfigError(f"{path} ends in '{kind}'; demonstrations are read from {', '.join(readers)}")
    if not path.is_dir() and not path.is_file():
        raise DatasetError(f"{path} does not exist or is not a file")
    try:
        return readers[kind](path, horizon)
    except _FAULTS as error:
        raise DatasetError(
            f"{path} cannot be read as {kind[1:]}: {error}; get it again, from where you trust"
        ) from error


def _from_arrays(
    read: Callable[[Path], dict[str, npt.NDArray[Any]]], path: Path, horizon: int | None
) -> Demonstrations:
    arrays = read(path)
    for name in ("observations", "actions"):
        if name not in arrays:
            raise DatasetError(f"{path} has no array '{name}' (found: {', '.join(sorted(arrays)) or 'none'})")
    actions_NA = _as_float32(arrays["actions"])
    rewards = arrays.get("rewards", np.zeros(len(actions_NA), dtype=np.float32))
    return Demonstrations(
        observations_ND=_as_float32(arrays["observations"]),
        actions_NA=actions_NA,
        rewards_N=_as_float32(rewards).reshape(-1),
        offsets=_offsets(arrays, len(actions_NA), horizon, path),
        source=path.name,
        provenance={"file": path.name},
    )


_MAPPED_BYTES = 256 * 2**20  # arrays of HDF5 files that take more, as float32, are not read into memory
_BLOCK_BYTES = 16 * 2**20
_NAMES = ("observations", "actions", "rewards", "episode_lengths", "terminals", "timeouts")
_FAULTS = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, OverflowError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(RuntimeError, SyntaxError),  # encrypted zip members, or packed in other ways; npy headers
)


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    with zipfile.ZipFile(path) as file:
        names = [name for name in _NAMES if f"{name}.npy" in file.namelist()]
        check_fits_memory(sum(_declared_bytes(file, name) for name in names))
        return {name: _read_npy(file, name) for name in names}


def _read_npy(file: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with file.open(f"{name}.npy") as member:
        array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array


def _declared_bytes(file: zipfile.ZipFile, name: str) -> int:
    """Return what an array takes, read and as float32, from its header alone."""
    with file.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"'{name}' has the npy format {version}, known: 1.0 and 2.0")
        shape, _, dtype = readers[version](member)
    _check_numeric(name, dtype)
    size = math.prod(shape)
    if size * dtype.itemsize > file.getinfo(f"{name}.npy").file_size:
        raise ValueError(f"'{name}' has the shape {shape}, more than is in the file")
    return int(size * (dtype.itemsize + 4))


def _read_hdf5(path: Path) -> dict[str, npt.NDArray[Any]]:
    with h5py.File(path, "r") as file:
        names = set(file)  # `in file` would follow links
        found = {name: own_dataset(file, name) for name in _NAMES if name in names}
        for name, dataset in found.items():
            _check_numeric(name, dataset.dtype)
        small = {name: dataset for name, dataset in found.items() if 4 * dataset.size <= _MAPPED_BYTES}
        check_fits_memory(sum(dataset.size * (dataset.dtype.itemsize + 4) for dataset in small.values()))
        return {
            name: np.asarray(dataset[()]) if name in small else _map(name, dataset) for name, dataset in found.items()
        }


def _map(name: str, dataset: h5py.Dataset) -> npt.NDArray[np.float32]:
    """Return an array as float32 that lies in a file without a name, and in memory only where it is looked at."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if 4 * dataset.size > free / 2:  # the rest of the machine needs some too
        raise ValueError(
            f"'{name}' of shape {dataset.shape} takes {4 * dataset.size / 2**30:.1f} GiB of disk, more than half of "
            f"the {free / 2**30:.1f} that {tempfile.gettempdir()} has free; set TMPDIR to a folder with more"
        )
    rows = max(1, _BLOCK_BYTES * len(dataset) // (4 * dataset.size))
    with tempfile.TemporaryFile() as file:
        for start in range(0, len(dataset), rows):
            file.write(_as_float32(dataset[start : start + rows]).data)
        file.flush()
        return np.memmap(file, np.float32, "r", shape=dataset.shape)


def _check_numeric(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "fiub":  # objects above all: numpy's are pickles, HDF5's may point anywhere
        raise ValueError(f"'{name}' holds {dtype}, expected numbers")


def _as_float32(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused with its place
        return np.ascontiguousarray(array, dtype=np.float32)


def _offsets(
    arrays: Mapping[str, npt.NDArray[Any]], steps: int, horizon: int | None, path: Path
) -> npt.NDArray[np.int64]:
    """Return episode offsets from whatever the file tells about ends."""
    if "episode_lengths" in arrays:
        given = arrays["episode_lengths"].reshape(-1)
        lengths = np.where(np.isfinite(given), given, -1).astype(np.int64)
        return np.concatenate([[0], np.cumsum(lengths)])
    if "timeouts" in arrays:
        ends = np.zeros(steps, dtype=bool)
        for name in ("terminals", "timeouts"):
            if name in arrays:
                if arrays[name].size != steps:
                    raise DatasetError(f"{path}: '{name}' has {arrays[name].size} entries for {steps} steps")
                ends |= arrays[name].reshape(-1).astype(bool)
        stops = np.flatnonzero(ends) + 1
    elif horizon is not None:
        stops = np.arange(horizon, steps + 1, horizon)
    else:
        raise DatasetError(
            f"{path} tells no episode ends (neither 'episode_lengths' nor 'timeouts'); "
            "pass --horizon N if all its episodes have N steps"
        )
    if len(stops) == 0 or stops[-1] != steps:
        stops = np.append(stops, steps)
    return np.concatenate([[0], stops]).astype(np.int64)
