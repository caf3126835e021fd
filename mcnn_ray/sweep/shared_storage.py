"""Whether all nodes of a cluster see the folder that a sweep writes into, seen before it starts."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, TaskUnschedulableError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mcnn_ray.artifacts import write_text
from mcnn_ray.errors import ConfigError, McnnError

__all__ = ["check_shared"]

_ANSWER_S = 120.0  # for a node to start a process


def check_shared(storage: Path) -> None:
    """Have every node of a cluster look for a file written here; one node alone needs none.

    Args:
        storage: folder that all nodes must reach at this path; made if need be.

    Raises:
        ConfigError: some do not.
        McnnError: some do not answer.
    """
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if len(nodes) < 2:
        return
    # A new name each time: a network file system may remember for a while that a name was not there.
    marker = storage.resolve() / f".shared-{uuid.uuid4().hex}"
    write_text(marker, "")
    try:
        answers = {_ask(node, marker): address for node, address in nodes.items()}
        ready, late = ray.wait(list(answers), num_returns=len(answers), timeout=_ANSWER_S)
        silent = [answers[answer] for answer in late]
        blind = [answers[answer] for answer in ready if not _answer(answer)]
    finally:
        marker.unlink()
    if blind:
        raise ConfigError(
            f"{len(blind)} of {len(nodes)} nodes ({_shortened(blind)}) do not see {marker.parent} as this machine "
            "does; mount one file system at the same path on all nodes and name a folder on it with --storage"
        )
    if silent:
        raise McnnError(
            f"{len(silent)} of {len(nodes)} nodes ({_shortened(silent)}) did not say within {_ANSWER_S:.0f} s whether "
            f"they see {marker.parent}; look at them with `ray status`"
        )


def _exists(path: str) -> bool:
    return Path(path).is_file()


_REMOTE_EXISTS: Any = ray.remote(num_cpus=0)(_exists)


def _ask(node: str, marker: Path) -> Any:
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return _REMOTE_EXISTS.options(scheduling_strategy=there).remote(str(marker))


def _answer(answer: Any) -> bool:
    try:
        return bool(ray.get(answer))
    except (TaskUnschedulableError, NodeDiedError, WorkerCrashedError):
        return True  # the node has gone meanwhile


def _shortened(names: list[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
