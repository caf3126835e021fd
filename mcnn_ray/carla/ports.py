"""Blocks of eight ports, one for each server, leased so that no two servers of this machine meet."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mcnn_ray.carla.processes import Identity
from mcnn_ray.errors import SimulationError

__all__ = [
    "BLOCK_PORTS",
    "Lease",
    "Record",
    "lease_address",
    "lease_block",
    "lease_card",
    "private_folder",
    "read_records",
]

FIRST_PORT = 21000  # below those that the system gives out by itself
BLOCK_PORTS = 8
_BLOCKS = 256
_PREFIX, _NAME_BYTES = "mcnn-ray-carla-", 107  # of a Unix socket's name


@dataclass(slots=True, kw_only=True)
class Record:
    """What is known of the server of a block; the keeper writes it, `mcnn carla status` and the janitor read it.

    Attributes:
        port: first of the block; the server's own unless it is attached.
        address: HOST:PORT of the server.
        kind: as in `ServerPlan`.
        state: one of `starting`, `ready`, `running`, `draining`, `dead`.
        keeper: the process that watches it.
        server: the leader of its group; None where there is none of ours.
        map_name: in full, as the server gave it.
        version: likewise.
        gpu: index of its graphics card; None for lite servers.
        starts: since the block was leased.
        episodes: since the last start.
        failures: in a row.
        left_alone_until: Unix time before which the block is not leased.
        reason: of the last failure.
        log: its output.
    """

    port: int
    address: str = ""
    kind: str = ""
    state: str = "dead"
    keeper: Identity | None = None
    server: Identity | None = None
    map_name: str = ""
    version: str = ""
    gpu: int | None = None
    starts: int = 0
    episodes: int = 0
    failures: int = 0
    left_alone_until: float = 0.0
    reason: str = ""
    log: str = ""

    def write(self, folder: Path) -> None:
        """Replace the record in a folder as a whole. It need not survive a power cut, so it is not synchronised."""
        target = folder / f"{self.port}.json"
        temporary = target.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(target)

    def settle(self, folder: Path) -> None:
        """Keep what is known of failures, now that the server is dead; without any there is nothing to keep."""
        if self.failures:
            self.write(folder)
        else:
            (folder / f"{self.port}.json").unlink(missing_ok=True)


@dataclass(slots=True)
class Lease:
    """A block of ports that is this process's until the lock is let go of: by it and by all who inherit it.

    Attributes:
        port: first of the block.
        locks: of it; a server inherits them, so its ports are taken for as long as anyone may hold them.
    """

    port: int
    locks: list[socket.socket] = field(default_factory=list)

    @property
    def descriptors(self) -> list[int]:
        """The locks, for a child to inherit."""
        return [lock.fileno() for lock in self.locks]

    def release(self) -> None:
        """Let go of the block."""
        for lock in self.locks:
            lock.close()


def private_folder(folder: Path) -> Path:
    """Make a folder that only this user can write to.

    Raises:
        SimulationError: it is someone else's, or open to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SimulationError(f"{folder} is not this user's alone; remove it, or set TMPDIR to a folder of your own")
    return folder


def lease_block(folder: Path) -> Lease:
    """Lease the lowest block whose ports are free and which is not left alone after failures.

    Raises:
        SimulationError: there is none.
    """
    records = {record.port: record for record in read_records(folder)}
    for port in range(FIRST_PORT, FIRST_PORT + BLOCK_PORTS * _BLOCKS, BLOCK_PORTS):
        known = records.get(port)
        if known is not None and known.left_alone_until > time.time():
            continue
        lock = _lock(str(port))
        if lock is None:
            continue
        if _are_free(port):
            return Lease(port, [lock])
        lock.close()
    raise SimulationError(
        f"no block of {BLOCK_PORTS} ports from {FIRST_PORT} on is free for a CARLA server; see mcnn carla status"
    )


def lease_address(addresses: tuple[str, ...]) -> tuple[socket.socket, str] | None:
    """Lease the first of some servers that no other process of this machine drives with; None when there is none."""
    for address in addresses:
        lock = _lock(address)
        if lock is not None:
            return lock, address
    return None


def lease_card(cards: int) -> tuple[socket.socket, int]:
    """Lease a place on the graphics card that the fewest servers of this machine are on.

    Args:
        cards: how many there are, at least 1.

    Returns:
        The lock, to hold and to hand on as those of ports, and the card's index.

    Raises:
        SimulationError: each card has as many servers as there are blocks of ports.
    """
    held = Path("/proc/net/unix").read_text()
    servers = [held.count(f"@{_PREFIX}card-{card}-") for card in range(cards)]
    for card in sorted(range(cards), key=servers.__getitem__):
        for place in range(_BLOCKS):
            lock = _lock(f"card-{card}-{place}")
            if lock is not None:
                return lock, card
    raise SimulationError(f"{_BLOCKS} servers are on each graphics card already; see mcnn carla status")


def _lock(name: str) -> socket.socket | None:
    # A name that the kernel keeps beside the ports: it holds between users and folders too, and goes with its holders.
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0{_PREFIX}{name}"[:_NAME_BYTES])
    except OSError:
        lock.close()
        return None
    return lock


def _are_free(first: int) -> bool:
    with contextlib.ExitStack() as stack:
        for port in range(first, first + BLOCK_PORTS):
            trial = stack.enter_context(socket.socket())
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections linger
            try:
                trial.bind(("", port))
            except OSError:
                return False
    return True


def read_records(folder: Path) -> Iterator[Record]:
    """Read the records of a folder, by port; what is no record is passed over."""
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            values: dict[str, Any] = json.loads(path.read_text())
            for key in ("keeper", "server"):
                values[key] = None if values[key] is None else Identity(**values[key])
            yield Record(**values)
