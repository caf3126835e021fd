"""Processes that must not outlive their purpose: own sessions, death with the parent, ends that find the right one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Identity", "end_group", "group_listens", "group_members", "group_memory_bytes", "identify", "spawn"]

_PR_SET_PDEATHSIG = 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POLL_S = 0.02
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that no later one with the same number is mistaken for.

    Attributes:
        pid: its number.
        started: clock ticks from the machine's start to its own.
        boot: identity of the machine's start.
    """

    pid: int
    started: int
    boot: str

    def alive(self) -> bool:
        """Return whether it runs or is stopped; one that has ended and was not waited for does not."""
        return self.boot == _boot() and (found := _stat(self.pid)) is not None and found.started == self.started


@dataclass(frozen=True, slots=True)
class _Stat:
    group: int
    started: int
    pages: int


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> _Stat | None:
    """Read what the kernel tells of a process; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, _, group, *rest = text.rpartition(")")[2].split()  # the name before may hold anything
    return None if state in "ZX" else _Stat(group=int(group), started=int(rest[16]), pages=int(rest[18]))


def identify(pid: int) -> Identity | None:
    """Return a running process's identity, or None when it has ended."""
    found = _stat(pid)
    return None if found is None else Identity(pid, found.started, _boot())


def spawn(command: Sequence[str], log: Path, keep: Sequence[int] = (), **options: int) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that is killed when the calling thread ends.

    Args:
        command: program and arguments.
        log: file that its output is added to: a full pipe would stop it.
        keep: descriptors that it inherits.
        options: of `subprocess.Popen`, e.g. `stdout`.

    Raises:
        OSError: there is no such program, or it cannot be run.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=options.get("stdout", output.fileno()),
            stderr=output,
            start_new_session=True,
            pass_fds=tuple(keep),
            preexec_fn=die_with_parent,
        )


def group_members(leader: Identity) -> list[int]:
    """Return the processes of the group that a process leads or led."""
    if leader.boot != _boot():
        return []
    own = _stat(leader.pid)
    if own is not None and own.started != leader.started:  # a number is free again only when its group is empty
        return []
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (found := _stat(pid)) is not None and found.group == leader.pid]


def group_memory_bytes(leader: Identity) -> int:
    """Return the resident memory of a group, in bytes."""
    return _PAGE_BYTES * sum(found.pages for pid in group_members(leader) if (found := _stat(pid)) is not None)


def group_listens(leader: Identity, port: int) -> bool:
    """Return whether a process of a group listens on a port."""
    for pid in group_members(leader):
        with contextlib.suppress(psutil.Error):
            for found in psutil.Process(pid).net_connections("tcp"):
                if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                    return True
    return False


def end_group(leader: Identity, wait_s: float = 5.0) -> bool:
    """Kill a group and wait until it is gone; return whether it is."""
    end = time.monotonic() + wait_s
    while group_members(leader):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True
