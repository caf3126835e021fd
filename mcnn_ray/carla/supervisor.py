"""Starts one server, shows that it works before anyone drives with it, watches it and ends it whole.

It never imports the `carla` client, which can end or stop the process that calls it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mcnn_ray.carla.plan import ServerPlan, listens
from mcnn_ray.carla.ports import Lease, Record, lease_address, lease_block, lease_card, private_folder, read_records
from mcnn_ray.carla.processes import end_group, group_listens, group_memory_bytes, identify, spawn
from mcnn_ray.carla.servers import end_server, remove_leftovers, told_status
from mcnn_ray.errors import ConfigError, ServerError

__all__ = ["Supervisor"]

_LOCAL = "127.0.0.1"
_POLL_S = 0.05
_LOG_BYTES = 64 * 2**20  # a server in trouble can write without end
_LAST_WORDS = 300  # characters of its log in a message


class _StartError(Exception):
    """A start that failed, and may succeed another time."""


class Supervisor:
    """One server and its block of ports, leased until `close`.

    Args:
        plan: which server.
        pause: waits for some seconds; what it raises ends a start.

    Attributes:
        record: what `mcnn carla status` shows.

    Raises:
        SimulationError: no block of ports is free.
        ServerError: all servers to attach to are in use.
    """

    def __init__(self, plan: ServerPlan, pause: Callable[[float], None] = time.sleep) -> None:
        self._plan, self._pause = plan, pause
        self._folder = private_folder(plan.place)
        remove_leftovers(self._folder)
        self._lease: Lease = lease_block(self._folder)
        port = self._lease.port
        address = f"{_LOCAL}:{port}"
        if plan.kind == "attach":
            found = lease_address(plan.addresses)
            if found is None:
                self._lease.release()
                raise ServerError(f"all of {', '.join(plan.addresses)} are in use by other processes of this machine")
            self._lease.locks.append(found[0])
            address = found[1]
        card = None
        if plan.kind in ("install", "docker"):
            lock, card = lease_card(plan.gpus)
            self._lease.locks.append(lock)
        known = {record.port: record for record in read_records(self._folder)}.get(port)
        self.record = Record(
            port=port,
            address=address,
            kind=plan.kind,
            keeper=identify(os.getpid()),
            gpu=card,
            failures=known.failures if known is not None and known.kind == plan.kind else 0,
            log=str(self._folder / f"{port}.log"),
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def traffic_manager_port(self) -> int:
        """Port of this machine for the client's traffic manager."""
        return self._lease.port + 3

    def ready(self) -> None:
        """Return when the server works; start it, again and again if need be, unless it does.

        Raises:
            ServerError: it could not be started, or does not work, `tries` times in a row.
            ConfigError: it never will.
        """
        if self.record.state == "ready" and self.fault() is None:
            return
        for attempt in range(self._plan.tries):
            if attempt:
                self._pause(self._plan.backoff_s * 2 ** (attempt - 1))
            self._end()
            try:
                self._start()
            except _StartError as error:
                self.failed(str(error))
            else:
                self._show("ready")
                return
        raise ServerError(
            f"no {self._plan.kind} server at {self.record.address} in {self._plan.tries} tries: {self.record.reason}"
        )

    def begin(self) -> None:
        """Note that an episode runs."""
        self._show("running")

    def end_episode(self) -> None:
        """Note that an episode ran well; end the server where it is due, for the next one to find a new one."""
        self.record.episodes += 1
        self.record.failures = 0
        due = self.record.episodes >= self._plan.episodes or self.memory_gib() > self._plan.memory_gib
        if due and self._plan.kind != "attach":
            self._end()
        else:
            self._show("ready")

    def failed(self, reason: str) -> None:
        """Note a failure of the server and end it; after too many its block is left alone for a while."""
        if self.record.state == "dead":  # it is known already
            return
        self.record.failures += 1
        self.record.reason = reason
        if self.record.failures >= self._plan.tries and self._plan.kind != "attach":
            self.record.left_alone_until = time.time() + self._plan.quarantine_s
        self._end()

    def death(self) -> str | None:
        """Return how the server's process has ended, or None: it has not, or is not ours."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        return f"the server at {self.record.address} ended with {told_status(status)}{self._last_words()}"

    def fault(self) -> str | None:
        """Return what is wrong with the server as far as it shows from outside, or None. It costs some milliseconds."""
        if (death := self.death()) is not None:
            return death
        if self.memory_gib() > 2 * self._plan.memory_gib:
            return f"the server at {self.record.address} took {self.memory_gib():.1f} GiB of memory"
        if self._plan.kind == "attach" and not listens(self.record.address):
            return f"nothing listens at {self.record.address}"
        if self._process is not None and Path(self.record.log).stat().st_size > _LOG_BYTES:
            os.truncate(self.record.log, 0)
        return None

    def memory_gib(self) -> float:
        """Return the resident memory of the server's processes; 0 for those that are not ours."""
        return 0.0 if self.record.server is None else group_memory_bytes(self.record.server) / 2**30

    def close(self) -> None:
        """End the server and let go of its ports."""
        self._end()
        self.record.settle(self._folder)
        self._lease.release()

    def _start(self) -> None:
        self.record.starts += 1
        self.record.episodes = 0
        self._show("starting")
        end = time.monotonic() + self._plan.start_limit_s
        if self._plan.kind != "attach":
            Path(self.record.log).write_bytes(b"")
            command = self._plan.command(self.record.port, self.record.gpu or 0)
            try:
                self._process = spawn(command, Path(self.record.log), self._lease.descriptors)
            except OSError as error:
                raise ConfigError(f"the server cannot be started: {error}") from error
            self.record.server = identify(self._process.pid)
            self._show("starting")
        while not (listens(self.record.address) and self._is_ours()):
            self._check_start(end, "it does not listen")
            self._pause(_POLL_S)
        self._probe(end)

    def _check_start(self, end: float, otherwise: str) -> None:
        death = self.death()
        if death is not None:
            asked_wrongly = self._plan.kind == "lite" and "ended with status 2" in death
            raise ConfigError(death) if asked_wrongly else _StartError(death)
        if time.monotonic() > end:
            raise _StartError(f"{otherwise} after {self._plan.start_limit_s:g} s{self._last_words()}")

    def _probe(self, end: float) -> None:
        """Have a child drive two frames and take an image."""
        host, _, port = self.record.address.rpartition(":")
        load = str(self._plan.kind in ("install", "docker"))
        answer = str(self._plan.answer_limit_s)
        command = [sys.executable, "-m", "mcnn_ray.carla.probe", host, port, ",".join(self._plan.maps), load, answer]
        child = spawn(command, Path(self.record.log), stdout=subprocess.PIPE)
        leader = identify(child.pid)
        try:
            while child.poll() is None:
                self._check_start(end, "it does not let a client drive")
                self._pause(_POLL_S)
            self._judge(child)
        finally:
            if leader is not None:
                end_group(leader)
            child.communicate()

    def _judge(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        lines = child.stdout.read().splitlines()
        try:
            told = json.loads(lines[-1])
        except (ValueError, IndexError):
            raise _StartError(
                f"the client that tried it ended with {told_status(child.returncode)}{self._last_words()}"
            ) from None
        if "permanent" in told:
            self.record.reason = told["error"]
            self._end()
            raise ConfigError(told["error"])
        if "error" in told:
            raise _StartError(told["error"])
        self.record.map_name, self.record.version = told["map"], told["version"]

    def _is_ours(self) -> bool:
        """Return whether it is the server that listens, and no program that took its port in the meantime."""
        if self.record.server is None or self._plan.kind == "docker":
            return True
        return group_listens(self.record.server, self.record.port)

    def _end(self) -> None:
        if self._process is not None:
            self._show("draining")
            end_server(self.record)
            self._process.wait()
            self._process = None
        self._show("dead")
        self.record.server = None

    def _show(self, state: str) -> None:
        self.record.state = state
        self.record.write(self._folder)

    def _last_words(self) -> str:
        try:
            text = Path(self.record.log).read_text(errors="replace").strip()
        except OSError:
            return ""
        return f"; its last words: {text[-_LAST_WORDS:]}" if text else ""
