"""Which servers to drive with, and the commands that start them."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mcnn_ray.errors import ConfigError

__all__ = [
    "ARGUMENTS_VARIABLE",
    "CARLA_VERSION",
    "SERVERS_VARIABLE",
    "ServerPlan",
    "check_attached",
    "find_plan",
    "listens",
    "servers_at_once",
]

CARLA_VERSION = "0.9.16"
SERVERS_VARIABLE = "MCNN_CARLA"
ARGUMENTS_VARIABLE = "MCNN_CARLA_ARGUMENTS"
_VARIABLES = (SERVERS_VARIABLE, "MCNN_CARLA_SERVER", "CARLA_ROOT")
_KNOCK_S = 1.0
_IMAGE = f"carlasim/carla:{CARLA_VERSION}"
_BINARY = "CarlaUE4/Binaries/Linux/CarlaUE4-Linux-Shipping"
_FORMS = (
    f"{SERVERS_VARIABLE} may be lite, lite:MAP, docker, the folder of a CARLA {CARLA_VERSION}, or addresses "
    "HOST:PORT,HOST:PORT of servers that run"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """How one worker gets its server. All values are plain, so that it can be handed to another process.

    Attributes:
        kind: `lite` and `install` are started here, `docker` in a container, `attach` is there already.
        maps: last parts of the names of maps that will do; the first is shown by those that are started.
        map_file: of the first, where it is none of the packaged maps.
        root: folder of an installed CARLA.
        addresses: HOST:PORT of servers to attach to.
        arguments: more of them for the server's command line.
        start_limit_s: seconds from its start until it has shown that it works.
        answer_limit_s: seconds for each answer meanwhile.
        stall_limit_s: seconds without a step after which a server, and who drives with it, is ended.
        tries: starts in a row until it is given up.
        backoff_s: pause after the first failure; it doubles with each.
        quarantine_s: for which a block of ports is left alone after as many failures as `tries`.
        episodes: after which it is started anew, since servers lose memory.
        memory_gib: likewise.
        gpus: graphics cards that servers are spread over.
        folder: for leases, records and logs, on this machine's own disk.
    """

    kind: Literal["lite", "install", "docker", "attach"]
    maps: tuple[str, ...]
    map_file: str = ""
    root: str = ""
    addresses: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    start_limit_s: float = 120.0
    answer_limit_s: float = 5.0
    stall_limit_s: float = 60.0
    tries: int = 3
    backoff_s: float = 1.0
    quarantine_s: float = 600.0
    episodes: int = 500
    memory_gib: float = 2.0
    gpus: int = 1
    folder: str = ""

    def installed_version(self) -> str:
        """Return the version that an installed CARLA says it is, or `of unknown version`.

        Raises:
            ConfigError: it is another than the client's.
        """
        file = Path(self.root) / "VERSION"
        found = file.read_text().strip() if file.is_file() else "of unknown version"
        if file.is_file() and not found.startswith(CARLA_VERSION):
            raise ConfigError(f"{self.root} holds CARLA {found}, and the carla client is {CARLA_VERSION}; install that")
        return found

    @property
    def place(self) -> Path:
        """The folder for leases, records and logs: private, and one for all of this user's processes."""
        return Path(self.folder or Path(tempfile.gettempdir()) / f"mcnn-carla-{os.getuid()}")

    def command(self, port: int, gpu: int) -> list[str]:
        """Return what starts a server.

        Args:
            port: of its calls; streams take the next, and real servers the one after that.
            gpu: index of its graphics card.

        Raises:
            ConfigError: there is nothing to start.
        """
        if self.kind == "lite":
            own = [sys.executable, "-m", "mcnn_ray", "carla", "serve", "--lite", "--port", str(port)]
            return [*own, "--map", self.map_file or self.maps[0], *self.arguments]
        flags = [f"-carla-rpc-port={port}", f"-carla-streaming-port={port + 1}", "-RenderOffScreen", "-nosound"]
        if self.kind == "docker":
            return [
                *("docker", "run", "--rm", "--name", container_name(port), "--gpus", f"device={gpu}"),
                *(
                    "--env",
                    "NVIDIA_DRIVER_CAPABILITIES=all",
                    "--publish",
                    f"127.0.0.1:{port}-{port + 2}:{port}-{port + 2}",
                ),
                *(_IMAGE, "bash", "CarlaUE4.sh", *flags, *self.arguments),
            ]
        self.installed_version()
        binary = Path(self.root) / _BINARY
        if not os.access(binary, os.X_OK):
            raise ConfigError(f"{binary} is no program; {_FORMS}")
        # The binary itself: the script in front of it would die alone and leave it running.
        return [str(binary), "CarlaUE4", *flags, f"-graphicsadapter={gpu}", *self.arguments]


def container_name(port: int) -> str:
    """Return the name of the container with the server on a port."""
    return f"mcnn-carla-{port}"


def find_plan(town: str, lite_map: str, environment: Mapping[str, str] = os.environ) -> ServerPlan:
    """Return the plan that the user's variables ask for; without any, a lite server.

    Args:
        town: map of a real server, e.g. `Town04`.
        lite_map: map of a lite one, e.g. `HighwayLoop`.
        environment: variables: `MCNN_CARLA`, `MCNN_CARLA_SERVER` or `CARLA_ROOT`, in this order; and
            `MCNN_CARLA_ARGUMENTS` for servers that are started.

    Raises:
        ConfigError: they name nothing that can be used.
    """
    wanted = next(filter(None, map(environment.get, _VARIABLES)), "lite")
    arguments = tuple(shlex.split(environment.get(ARGUMENTS_VARIABLE, "")))
    attached = ServerPlan(
        kind="attach",
        maps=(town, lite_map),
        start_limit_s=300.0,
        answer_limit_s=20.0,
        stall_limit_s=180.0,
        memory_gib=16.0,
        backoff_s=2.0,
    )
    started = replace(attached, maps=(town,), arguments=arguments)
    kind, _, given = wanted.partition(":")
    if kind == "lite":
        return ServerPlan(kind="lite", maps=(Path(given or lite_map).stem,), map_file=given, arguments=arguments)
    if wanted == "docker":
        if shutil.which("docker") is None:
            raise ConfigError(f"docker is not on the path of this machine; {_FORMS}")
        return replace(started, kind="docker", gpus=_count_gpus())
    if (Path(wanted) / _BINARY).is_file():
        return replace(started, kind="install", root=wanted, gpus=_count_gpus())
    # A traffic manager's port may follow, which is leased here.
    addresses = tuple(":".join(address.split(":")[:2]) for address in wanted.split(","))
    if not all(_is_address(address) for address in addresses):
        raise ConfigError(f"'{wanted}' names no CARLA servers, and has no {_BINARY}; {_FORMS}")
    return replace(attached, addresses=addresses)


def servers_at_once() -> int:
    """Return how many of the servers that the user's variables ask for this machine has room for; else 1.

    Whoever drives is told what is wrong with the variables; to others it does not matter.
    """
    try:
        plan = find_plan("", "")
    except ConfigError:
        return 1
    if plan.kind == "attach":
        return len(plan.addresses)
    return plan.gpus if plan.kind != "lite" else os.cpu_count() or 1


def check_attached() -> None:
    """See that one of the servers listens which the user's variables name by address, if they do.

    Raises:
        ConfigError: none does, or the variables name nothing that can be used.
    """
    plan = find_plan("", "")
    if plan.addresses and not any(map(listens, plan.addresses)):
        raise ConfigError(
            f"nothing listens at {' or '.join(plan.addresses)}, where {SERVERS_VARIABLE} names servers; "
            f"start them (mcnn doctor tells when they work), or unset {SERVERS_VARIABLE} for lite ones"
        )


def listens(address: str) -> bool:
    """Tell whether something accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
    except OSError:
        return False
    return True


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 65536


def _count_gpus() -> int:
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return max(1, sum(line.startswith("GPU ") for line in found.stdout.splitlines()))
