"""Servers as they are seen from outside: what they are, what is left of them, and their end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mcnn_ray.carla.plan import container_name
from mcnn_ray.carla.ports import Record, read_records
from mcnn_ray.carla.processes import end_group, group_memory_bytes
from mcnn_ray.errors import ServerError

__all__ = ["ask_version", "end_server", "list_servers", "remove_leftovers", "told_status"]


def end_server(record: Record) -> None:
    """End a server with all of its processes, and wait until they are gone."""
    if record.kind == "docker":
        subprocess.run(["docker", "rm", "--force", container_name(record.port)], capture_output=True, check=False)
    if record.server is not None:
        end_group(record.server)


def remove_leftovers(folder: Path) -> list[Record]:
    """End servers whose keeper has died without ending them, and return their records.

    Args:
        folder: of a plan.
    """
    left = []
    for record in read_records(folder):
        if record.state != "dead" and (record.keeper is None or not record.keeper.alive()):
            end_server(record)
            record.state, record.server = "dead", None
            record.settle(folder)
            left.append(record)
    return left


def list_servers(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each server that is kept, or whose ports are left alone.

    Args:
        folder: of a plan.
    """
    rows = []
    for record in read_records(folder):
        kept = record.keeper is not None and record.keeper.alive()
        alone_s = record.left_alone_until - time.time()
        if record.state == "dead" and not kept and alone_s <= 0:
            continue
        state = record.state if kept or record.state == "dead" else f"{record.state}, supervisor dead: --clean ends it"
        rows.append(
            {
                "server": record.address,
                "kind": record.kind,
                "state": state if alone_s <= 0 else f"{state}, left alone for {alone_s:.0f} s",
                "map": record.map_name,
                "version": record.version,
                "gpu": record.gpu,
                "pid": None if record.server is None else record.server.pid,
                "memory_mib": None if record.server is None else round(group_memory_bytes(record.server) / 2**20),
                "starts": record.starts,
                "episodes": record.episodes,
                "failures": record.failures,
                "last_failure": record.reason or None,
            }
        )
    return rows


def ask_version(address: str, limit_s: float = 5.0) -> str:
    """Return the version of a server that runs, without touching its world.

    Args:
        address: HOST:PORT.
        limit_s: seconds for its answer.

    Raises:
        ServerError: it does not answer as a CARLA server does.
    """
    program = (
        "import sys, carla; client = carla.Client(sys.argv[1], int(sys.argv[2])); "
        "client.set_timeout(float(sys.argv[3])); print(client.get_server_version())"
    )
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-c", program, host, port, str(limit_s)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=4 * limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise ServerError(f"the server at {address} keeps its client waiting; start it again") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [told_status(done.returncode)]
        raise ServerError(f"no CARLA server answers at {address} ({last[0]}); start it, or name another in MCNN_CARLA")
    return done.stdout.strip()


def told_status(status: int) -> str:
    """Return how a process ended, from what `subprocess` tells: a status, or a signal's name."""
    return f"status {status}" if status >= 0 else signal.Signals(-status).name
