"""Starting Ray, or joining a cluster that RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

__all__ = ["cluster_cpus", "ray_session"]


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
        ray.init(address="local", include_dashboard=False, num_cpus=os.cpu_count(), **options)
    try:
        yield
    finally:
        ray.shutdown()


def cluster_cpus() -> int:
    """Return how many processors the cluster has, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))
