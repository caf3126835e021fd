"""What works on this machine, what does not, and the one command that mends it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mcnn_ray.errors import McnnError

if TYPE_CHECKING:
    from mcnn_ray.carla.plan import ServerPlan

__all__ = ["Finding", "examine"]

_PACKAGES = ("torch", "numpy", "ray", "mlflow", "gymnasium", "gymnasium-robotics", "mujoco", "minari")
_LOW_DISK_GIB = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: its name.
        works: whether it can be used.
        detail: what was found.
        mend: the command or step that helps, empty when nothing needs mending.
    """

    what: str
    works: bool
    detail: str
    mend: str = ""


def examine(storage: Path) -> list[Finding]:
    """Look at Python, packages, devices, simulators, demonstrations and storage.

    Args:
        storage: folder for results.
    """
    return [
        _python(),
        *_packages(),
        _devices(),
        *_simulators(),
        *_driving(),
        *_demonstrations(),
        _disk(storage),
        _tracking(storage),
    ]


def _python() -> Finding:
    works = (3, 11) <= sys.version_info[:2] <= (3, 12)
    return Finding(
        what="Python",
        works=works,
        detail=platform.python_version(),
        mend="" if works else "install Python 3.11 or 3.12 and run: make setup PYTHON=python3.11",
    )


def _packages() -> list[Finding]:
    findings = []
    for name in _PACKAGES:
        try:
            findings.append(Finding(what=name, works=True, detail=importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(what=name, works=False, detail="not installed", mend="make setup"))
    return findings


def _devices() -> Finding:
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return Finding(what="devices", works=True, detail=f"{os.cpu_count()} CPUs, {cuda}")


def _simulators() -> list[Finding]:
    from mcnn_ray.tasks.catalogue import ADROIT_NAMES, CATALOGUE
    from mcnn_ray.tasks.environments import environment_id, make_environment

    tasks = {name: CATALOGUE[f"{name}-expert-v1"] for name in ADROIT_NAMES} | {"kitchen": CATALOGUE["kitchen-relay-v0"]}

    def check(name: str) -> str:
        task = tasks[name]
        env = make_environment(task)
        env.reset(seed=0)
        env.step(env.action_space.sample())
        env.close()
        mended = getattr(env, "correction", 0.0)
        return environment_id(task) + (", sign of its reward corrected to D4RL's" if mended else "")

    return [_tried(name, check, "make setup") for name in tasks]


def _tried(name: str, check: Callable[[str], str], mend: str) -> Finding:
    try:
        return Finding(what=f"simulator {name}", works=True, detail=check(name))
    except McnnError as error:
        return Finding(what=f"simulator {name}", works=False, detail=str(error), mend=mend)


def _driving() -> list[Finding]:
    from mcnn_ray.carla.plan import CARLA_VERSION, find_plan

    mend = f"pip install carla=={CARLA_VERSION} msgpack"
    try:
        client = importlib.metadata.version("carla")
    except importlib.metadata.PackageNotFoundError:
        return [Finding(what="carla client", works=False, detail="not installed; driving tasks need it", mend=mend)]
    fits = client == CARLA_VERSION
    found = Finding(what="carla client", works=fits, detail=client, mend="" if fits else mend)
    try:
        detail = _try_servers(find_plan("Town04", "HighwayLoop"))
    except McnnError as error:
        return [found, Finding(what="carla servers", works=False, detail=str(error), mend="mcnn carla status")]
    return [found, Finding(what="carla servers", works=True, detail=detail)]


def _try_servers(plan: ServerPlan) -> str:
    """Return what was found of servers: one is started if it is lite, and one that runs is asked for its version.

    Raises:
        McnnError: they cannot be used.
    """
    from mcnn_ray.carla.servers import ask_version
    from mcnn_ray.carla.supervisor import Supervisor

    if plan.kind == "docker":
        return f"started by docker when needed, on {plan.gpus} GPUs"
    if plan.kind == "install":
        return f"CARLA {plan.installed_version()} in {plan.root}, started when needed, on {plan.gpus} GPUs"
    if plan.kind == "attach":
        return ", ".join(f"{ask_version(address)} at {address}" for address in plan.addresses)
    supervisor = Supervisor(plan)
    try:
        supervisor.ready()
        return (
            f"lite server {supervisor.record.version} with {supervisor.record.map_name} works; neither MCNN_CARLA nor "
            "CARLA_ROOT names a CARLA"
        )
    finally:
        supervisor.close()


def _demonstrations() -> list[Finding]:
    from mcnn_ray.data.minari_store import dataset_exists
    from mcnn_ray.tasks.catalogue import CATALOGUE

    here = [task.id for task in CATALOGUE.values() if any(map(dataset_exists, task.datasets))]
    detail = f"{len(here)} of {len(CATALOGUE)} tasks have some here" + (f": {', '.join(here)}" if here else "")
    mend = "" if here else "mcnn data collect door-expert-v1 --episodes 25"
    return [Finding(what="demonstrations", works=bool(here), detail=detail, mend=mend)]


def _disk(storage: Path) -> Finding:
    folder = next(path for path in [storage.resolve(), *storage.resolve().parents] if path.exists())
    free_gib = shutil.disk_usage(folder).free / 2**30
    usable = folder.is_dir() and os.access(folder, os.W_OK)
    works = free_gib >= _LOW_DISK_GIB and usable
    detail = f"{storage}: {free_gib:.1f} GiB free" + ("" if usable else f", {folder} is no folder to write in")
    return Finding(
        what="storage", works=works, detail=detail, mend="" if works else "choose another folder: --storage DIR"
    )


def _tracking(storage: Path) -> Finding:
    from mcnn_ray.tracking import public_address, tracking_uri

    uri = tracking_uri(storage)
    address = public_address(uri)
    if uri.startswith("http"):
        parts = urlsplit(uri)
        try:
            socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2).close()
        except OSError as error:
            mend = "start it, or unset MLFLOW_TRACKING_URI"
            return Finding(what="MLflow", works=False, detail=f"no answer from {address}: {error}", mend=mend)
    return Finding(what="MLflow", works=True, detail=f"results go to {address}")
