"""Demonstration files of other projects: D4RL's HDF5 and numpy's npz."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ConfigError, DatasetError

__all__ = ["read_file"]


def read_file(path: Path, horizon: int | None = None) -> Demonstrations:
    """Read a demonstration file; what it is follows from its ending.

    Both kinds hold arrays `observations` (N, D) and `actions` (N, A), and may hold `rewards` (N,). Where episodes end
    is told by `episode_lengths` (E,), or by `terminals` and `timeouts` (N,) as in D4RL's v1 files. Steps after the last
    end are an unfinished episode and are kept as one.

    Args:
        path: a file ending in .npz, .hdf5 or .h5.
        horizon: length at which to cut where the file tells no ends (D4RL's v0 files).

    Raises:
        ConfigError: another ending.
        DatasetError: missing, damaged, foreign, or without episode boundaries.
    """
    readers: dict[str, Callable[[Path], dict[str, npt.NDArray[Any]]]] = {
        ".npz": _read_npz,
        ".hdf5": _read_hdf5,
        ".h5": _read_hdf5,
    }
    if path.suffix not in readers:
        raise ConfigError(f"{path} ends in '{path.suffix}'; demonstrations are read from {', '.join(readers)}")
    if not path.is_file():
        raise DatasetError(f"{path} does not exist or is not a file")
    try:
        arrays = readers[path.suffix](path)
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # numpy refuses object arrays (pickles) with a ValueError, since allow_pickle is off.
        raise DatasetError(
            f"{path} cannot be read as {path.suffix[1:]}: {error}; get it again, it may be cut short"
        ) from error
    for name in ("observations", "actions"):
        if name not in arrays:
            raise DatasetError(f"{path} has no array '{name}' (found: {', '.join(sorted(arrays)) or 'none'})")
    actions_NA = _as_float32(arrays["actions"], "actions", path)
    rewards = arrays.get("rewards", np.zeros(len(actions_NA), dtype=np.float32))
    return Demonstrations(
        observations_ND=_as_float32(arrays["observations"], "observations", path),
        actions_NA=actions_NA,
        rewards_N=_as_float32(rewards, "rewards", path).reshape(-1),
        offsets=_offsets(arrays, len(actions_NA), horizon, path),
        source=path.name,
        provenance={"file": path.name},
    )


_NAMES = ("observations", "actions", "rewards", "episode_lengths", "terminals", "timeouts")


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    with np.load(path, allow_pickle=False) as file:
        if not isinstance(file, Mapping):
            raise ValueError("it holds a single array, not named ones")
        return {name: np.asarray(file[name]) for name in _NAMES if name in file}


def _read_hdf5(path: Path) -> dict[str, npt.NDArray[Any]]:
    with h5py.File(path, "r") as file:
        return {name: np.asarray(file[name][()]) for name in _NAMES if name in file}


def _as_float32(array: npt.NDArray[Any], name: str, path: Path) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused with its place
        return np.ascontiguousarray(_numbers(array, name, path), dtype=np.float32)


def _numbers(array: npt.NDArray[Any], name: str, path: Path) -> npt.NDArray[Any]:
    if array.dtype.kind not in "fiub":
        raise DatasetError(f"{path}: '{name}' holds {array.dtype}, expected numbers")
    return array


def _offsets(
    arrays: Mapping[str, npt.NDArray[Any]], steps: int, horizon: int | None, path: Path
) -> npt.NDArray[np.int64]:
    """Return episode offsets from whatever the file tells about ends."""
    if "episode_lengths" in arrays:
        given = _numbers(arrays["episode_lengths"], "episode_lengths", path).reshape(-1)
        lengths = np.where(np.isfinite(given), given, -1).astype(np.int64)
        return np.concatenate([[0], np.cumsum(lengths)])
    if "timeouts" in arrays:
        ends = np.zeros(steps, dtype=bool)
        for name in ("terminals", "timeouts"):
            if name in arrays:
                if arrays[name].size != steps:
                    raise DatasetError(f"{path}: '{name}' has {arrays[name].size} entries for {steps} steps")
                ends |= _numbers(arrays[name], name, path).reshape(-1).astype(bool)
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
