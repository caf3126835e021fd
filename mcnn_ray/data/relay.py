"""The human demonstrations of the Franka Kitchen (Relay Policy Learning), from their `.mjl` logs."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import check_fits_memory
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.mjl import MujocoLog, parse_mjl
from mcnn_ray.errors import DatasetError
from mcnn_ray.tasks.catalogue import KITCHEN_OBJECTS
from mcnn_ray.tasks.kitchen import POSITIONS, ROBOT_JOINTS, objects_done

__all__ = ["RECORDS_A_STEP", "read_relay"]

RECORDS_A_STEP = 40  # of 2 ms: FrankaKitchen's step


def read_relay(path: Path) -> Demonstrations:
    """Read logs as demonstrations of `kitchen-relay-v0`: every 40th record, 12.5 a second.

    Observations are the 30 recorded positions, actions the 9 recorded joint targets (`ctrl`). Rewards, of which logs
    have none, are the objects that are done for the first time after a step, as FrankaKitchen pays them. An episode's
    last record has no step after it and is the final observation.

    Args:
        path: a log, or a folder or zip file with logs at any depth; an episode each, in the order of their names.

    Raises:
        DatasetError: a log is damaged, of another model or shorter than a step, or there is none.
        ValueError: memory cannot hold them, or the zip file is damaged.
    """
    logs: list[MujocoLog] = []
    for name, content in _contents(path):
        log = parse_mjl(content, name, RECORDS_A_STEP)
        if (log.counts.nq, log.counts.nu) != (POSITIONS, ROBOT_JOINTS):
            raise DatasetError(
                f"{name} is of a model with {log.counts.nq} positions and {log.counts.nu} actuators; Franka Kitchen's "
                f"has {POSITIONS} and {ROBOT_JOINTS}"
            )
        if len(log.records_TR) < 2:
            raise DatasetError(f"{name} is shorter than a step, {RECORDS_A_STEP + 1} records; leave it out")
        logs.append(log)
    if not logs:
        raise DatasetError(f"{path} holds no .mjl log")
    return Demonstrations(
        observations_ND=np.concatenate([log.qpos_TQ[:-1] for log in logs]),
        actions_NA=np.concatenate([log.ctrl_TU[:-1] for log in logs]),
        rewards_N=np.concatenate([_rewards(log) for log in logs]),
        offsets=np.cumsum([0, *(len(log.records_TR) - 1 for log in logs)], dtype=np.int64),
        final_observations_ED=np.stack([log.qpos_TQ[-1] for log in logs]),
        source=path.name,
        provenance={
            "file": path.name,
            "logs": len(logs),
            "records_a_step": RECORDS_A_STEP,
            "seconds_a_step": float(np.median(np.concatenate([np.diff(log.time_T) for log in logs]))),
        },
    )


def _rewards(log: MujocoLog) -> npt.NDArray[np.float32]:
    done_TO = np.maximum.accumulate(objects_done(log.qpos_TQ[1:], KITCHEN_OBJECTS), axis=0)
    rewards_T: npt.NDArray[np.float32] = np.diff(done_TO.sum(1), prepend=0).astype(np.float32)
    return rewards_T


def _contents(path: Path) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    """Yield name and bytes of each log; those of files are read when they are used."""
    if path.suffix == ".zip" and path.is_file():
        with zipfile.ZipFile(path) as file:
            members = [member for member in file.infolist() if _is_log(PurePath(member.filename))]
            sizes = [member.file_size for member in members]
            check_fits_memory(max(sizes, default=0) + 2 * sum(sizes) // RECORDS_A_STEP)
            for member in sorted(members, key=lambda member: member.filename):
                yield f"{path.name}/{member.filename}", np.frombuffer(file.read(member), dtype=np.uint8)
        return
    files = sorted(found for found in path.rglob("*") if _is_log(found)) if path.is_dir() else [path]
    check_fits_memory(2 * sum(found.stat().st_size for found in files) // RECORDS_A_STEP)
    for found in files:
        empty = found.stat().st_size == 0  # of which no map can be made
        yield str(found), np.zeros(0, np.uint8) if empty else np.memmap(found, dtype=np.uint8, mode="r")


def _is_log(path: PurePath) -> bool:
    return path.suffix == ".mjl" and not path.name.startswith(".")  # macOS adds files named ._NAME
