"""A worker's hold on a server: asks its keeper for one that works, and shows it that time goes on."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import subprocess
import sys
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mcnn_ray.carla.keeper import BEAT_BYTES
from mcnn_ray.carla.plan import ServerPlan
from mcnn_ray.errors import ConfigError, ServerError, ServerStartError

__all__ = ["ServerLease"]

_END_S = 15.0  # that a server may take to end


class ServerLease:
    """One server at a time for this process, by a keeper that lives beside it and dies after it.

    Args:
        plan: which server.
    """

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan
        self._keeper: subprocess.Popen[bytes] | None = None
        self._beat: mmap.mmap | None = None
        self._count = 0

    def acquire(self) -> tuple[str, int]:
        """Have a server that works; it is this process's until `release`.

        Returns:
            HOST:PORT:TRAFFIC_MANAGER_PORT, and how often the server there has been started.

        Raises:
            ServerStartError: none can be had now.
            ConfigError: none can ever be had.
        """
        if self._keeper is None:
            command = [sys.executable, "-m", "mcnn_ray.carla.keeper", json.dumps(asdict(self._plan)), str(os.getpid())]
            self._keeper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self._let_go = weakref.finalize(self, _let_go, self._keeper)
        assert self._keeper.stdout is not None
        try:
            self._order({"do": "acquire"})
            told: dict[str, Any] = json.loads(self._keeper.stdout.readline())
        except (OSError, ValueError):
            self.close()
            raise ServerStartError("the process that keeps the server has died") from None
        if "error" in told:
            self.close()
            raise (ConfigError if told["permanent"] else ServerStartError)(told["error"])
        if self._beat is None:
            with Path(told["beat"]).open("r+b") as file:
                self._beat = mmap.mmap(file.fileno(), BEAT_BYTES)
        return told["address"], told["starts"]

    def beat(self) -> None:
        """Show that a step has been taken."""
        self._count += 1
        if self._beat is not None:
            self._beat[:] = self._count.to_bytes(BEAT_BYTES, "little")

    def release(self, failed: str = "") -> None:
        """Give the server back after an episode.

        Args:
            failed: what it did wrong, for which it is ended.
        """
        with contextlib.suppress(OSError):
            self._order({"do": "release", "failed": failed})

    def close(self) -> None:
        """End the server."""
        if self._keeper is not None:
            self._let_go()
        self._keeper, self._beat = None, None

    def _order(self, order: dict[str, Any]) -> None:
        if self._keeper is None:
            raise ServerError("there is no server to give back")
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
        self._keeper.stdin.flush()


def _let_go(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None and keeper.stdout is not None
    with contextlib.suppress(OSError):
        keeper.stdin.close()
    select.select([keeper.stdout], [], [], _END_S)  # its end closes the other side
    keeper.stdout.close()
    keeper.wait()
