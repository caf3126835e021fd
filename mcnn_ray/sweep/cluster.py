"""Starting Ray, or joining a cluster that RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from mcnn_ray.errors import McnnError

__all__ = ["cluster_cpus", "cluster_gpus", "ray_session"]


@contextmanager
def ray_session() -> Iterator[None]:
    """Have Ray running inside the block: a cluster already joined, the one RAY_ADDRESS names, or one of our own."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" in os.environ:
        ray.init(**options)
    else:
        _start_local(options)
    try:
        yield
    finally:
        ray.shutdown()


def _start_local(options: dict[str, Any]) -> None:
    """Start Ray on this machine; on a busy one its node may miss Ray's fixed limit of 30 s, so that is tried again."""
    for last in (False, True):
        try:
            ray.init(address="local", include_dashboard=False, num_cpus=os.cpu_count(), **options)
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
