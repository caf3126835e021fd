"""The process between a worker that drives and its server: keeps one for the other, and ends both if they hang.

It reads lines of JSON from the worker: `{"do": "acquire"}`, answered with where the server is or an `error`, and
`{"do": "release", "failed": REASON or ""}`. When the worker ends, so do the server and this process.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import sys
import time
from types import FrameType
from typing import Any

from mcnn_ray.carla.plan import ServerPlan
from mcnn_ray.carla.processes import identify
from mcnn_ray.carla.supervisor import Supervisor
from mcnn_ray.errors import ConfigError, McnnError

__all__ = ["BEAT_BYTES", "main"]

BEAT_BYTES = 8
_POLL_S = 0.25
_LOOK_S = 5.0  # between looks that cost more


class _Keeper:
    def __init__(self, plan: ServerPlan, worker: int) -> None:
        self._plan = plan
        self._worker = identify(worker)
        self._unread = b""
        self._looked = 0.0
        self._supervisor = Supervisor(plan, self._pause)
        self._beat_path = plan.place / f"{self._supervisor.record.port}.beat"
        self._beat_path.write_bytes(b"\0" * BEAT_BYTES)
        with self._beat_path.open("r+b") as file:
            self._beat = mmap.mmap(file.fileno(), BEAT_BYTES)

    def run(self) -> None:
        """Serve the worker until it ends."""
        try:
            while True:
                order = json.loads(self._next_line())
                if order["do"] == "acquire":
                    self._answer(self._acquire())
                elif order["failed"]:
                    self._supervisor.failed(order["failed"])
                else:
                    self._supervisor.end_episode()
        except EOFError:
            pass
        finally:
            self._supervisor.close()
            self._beat_path.unlink(missing_ok=True)

    def _acquire(self) -> dict[str, Any]:
        try:
            self._supervisor.ready()
        except McnnError as error:
            return {"error": str(error), "permanent": isinstance(error, ConfigError)}
        self._supervisor.begin()
        return {
            "address": f"{self._supervisor.record.address}:{self._supervisor.traffic_manager_port}",
            "starts": self._supervisor.record.starts,
            "beat": str(self._beat_path),
        }

    def _answer(self, told: dict[str, Any]) -> None:
        os.write(sys.stdout.fileno(), json.dumps(told).encode() + b"\n")

    def _receive(self, timeout_s: float) -> None:
        """Take what the worker has written, waiting for it at most so long.

        Raises:
            EOFError: the worker has ended.
        """
        ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
        if ready:
            piece = os.read(sys.stdin.fileno(), 65536)
            if not piece:
                raise EOFError
            self._unread += piece

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._receive(left)

    def _next_line(self) -> bytes:
        seen, since = b"", time.monotonic()
        while b"\n" not in self._unread:
            self._receive(_POLL_S)
            if self._beat[:] != seen:
                seen, since = self._beat[:], time.monotonic()
            if self._supervisor.record.state == "running" and time.monotonic() - since > self._plan.stall_limit_s:
                self._end_both(f"no step in {self._plan.stall_limit_s:g} s")
            self._watch()
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _watch(self) -> None:
        """End a server that is no longer well; what drives with it finds it dead."""
        if self._supervisor.record.state not in ("ready", "running"):
            return
        fault = self._supervisor.death()
        if fault is None and time.monotonic() - self._looked > _LOOK_S:
            self._looked, fault = time.monotonic(), self._supervisor.fault()
        if fault is not None:
            self._supervisor.failed(fault)

    def _end_both(self, reason: str) -> None:
        """End the server, and the worker too: it may wait inside the client for ever, or hold what was true once."""
        self._supervisor.failed(reason)
        if self._worker is not None and self._worker.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker.pid, signal.SIGKILL)
        raise EOFError


def _leave(number: int, frame: FrameType | None) -> None:
    raise EOFError


def main() -> None:
    """Keep the server of the plan in the first argument for the process in the second."""
    if os.fork():  # so that this is no child of the worker: Ray kills those with it, before they could tidy up
        return
    plan: dict[str, Any] = json.loads(sys.argv[1])
    for key in ("maps", "addresses", "arguments"):
        plan[key] = tuple(plan[key])
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker gets it too, and ends this process in order
    try:
        keeper = _Keeper(ServerPlan(**plan), int(sys.argv[2]))
    except McnnError as error:
        print(json.dumps({"error": str(error), "permanent": False}), flush=True)  # noqa: T201
        return
    keeper.run()


if __name__ == "__main__":
    main()
