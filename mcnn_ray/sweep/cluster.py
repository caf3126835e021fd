"""Starting Ray, or joining a cluster that RAY_ADDRESS names."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from mcnn_ray.carla.plan import check_attached, servers_at_once
from mcnn_ray.errors import McnnError
from mcnn_ray.tasks.catalogue import Task

__all__ = ["cluster_cpus", "cluster_gpus", "ray_session"]

_CONNECT_S = 10.0
_INSTALLED = {"site-packages", "dist-packages"}  # folders of what a cluster's image has too


@contextmanager
def ray_session(task: Task | None = None, backbone: str | None = None) -> Iterator[None]:
    """Have Ray running inside the block: a cluster already joined, the one RAY_ADDRESS names, or one of our own.

    A cluster is sent a user's modules that are not installed here, since its other machines do not have them.

    Args:
        task: that is worked on.
        backbone: dotted name of a user's network.

    Raises:
        McnnError: there is no such cluster, or Ray does not start.
        ConfigError: the task's servers should run on this machine already, and do not.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" in os.environ:
        try:
            _knock(os.environ["RAY_ADDRESS"])
            places = _paths(_own_modules(task, backbone))
            # Ray 2.60 cannot start a process with an empty list of modules.
            ray.init(runtime_env={"py_modules": places} if places else None, **options)
        except (OSError, AuthenticationError) as error:
            raise McnnError(
                f"no Ray cluster could be joined at RAY_ADDRESS={os.environ['RAY_ADDRESS']} "
                f"({str(error).splitlines()[0]}); is it running, and does it ask for a token (RAY_AUTH_MODE=token, "
                "with the token in ~/.ray/auth_token)? Unset RAY_ADDRESS to run on this machine alone"
            ) from error
    else:
        if task is not None and task.server is not None:
            check_attached()
        _start_local(options)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # where Ray tells of deaths; standard output is for results
            yield
    finally:
        ray.shutdown()


def _own_modules(task: Task | None, backbone: str | None) -> list[str]:
    """Return the top-level names of what a user's environment and network are imported from."""
    module, colon, _ = (task.environment if task is not None else "").partition(":")
    return [name.partition(".")[0] for name in (module if colon else None, backbone) if name]


def _paths(modules: Sequence[str]) -> list[str]:
    specs = [spec for name in dict.fromkeys(modules) if (spec := find_spec(name)) is not None]
    places = [spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin for spec in specs]
    return [place for place in places if place is not None and not set(Path(place).parts) & _INSTALLED]


def _knock(address: str) -> None:
    """Connect to HOST:PORT once, since Ray tries for ever where nothing listens."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "://" not in host:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def _start_local(options: dict[str, Any]) -> None:
    """Start Ray on this machine; on a busy one its node may miss Ray's fixed limit of 30 s, so that is tried again."""
    for last in (False, True):
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                num_cpus=os.cpu_count(),
                resources={"carla": servers_at_once()},
                **options,
            )
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" not in str(error):
                raise
            if last:
                raise McnnError("Ray did not start within 30 s, twice; this machine is too busy, try later") from error
        else:
            return


def cluster_cpus() -> int:
    """Return how many processors the cluster has, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def cluster_gpus() -> int:
    """Return how many GPUs the cluster has."""
    return int(ray.cluster_resources().get("GPU", 0))
