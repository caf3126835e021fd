"""Whether the running set-up keeps to itself: servers, passwords, secrets and pickles, each with what to do."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from mcnn_ray.doctor import Finding
from mcnn_ray.errors import ArtifactError
from mcnn_ray.stored_secrets import is_scratch, known_secrets, stored_pickles, stored_secrets

__all__ = ["examine_security", "is_loopback"]

_PICKLES = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
# What each value permits, where a variable has it.
_UNSAFE = {
    _PICKLES: (r"true|1", "MLflow may load pickles, which can run code"),
    "MLFLOW_SERVER_ALLOWED_HOSTS": (r".*\*.*", "MLflow's server answers to any host name"),
    "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": (r".*\*.*", "any web page may use MLflow's server"),
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": (r"true|1", "MLflow's server checks no hosts and origins"),
    "MLFLOW_TRACKING_INSECURE_TLS": (r"true|1", "whoever sits between may pose as the tracking server"),
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": (r"true|1|y|yes", "torch.load runs what is in its files"),
}


def examine_security(storage: Path) -> list[Finding]:
    """Look at the servers of this user, at Ray's token, at addresses and variables, and at what the storage holds.

    Args:
        storage: folder for results; need not exist.
    """
    return [
        *_servers(),
        _ray_token(),
        _usage_statistics(),
        *_addresses(os.environ),
        *_variables(os.environ),
        _storage(storage),
        _secrets(storage),
        _pickles(storage),
    ]


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address can be reached from this machine alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _servers() -> Iterator[Finding]:
    """Yield a finding for each server of Ray's and MLflow's that this user runs."""
    places: dict[tuple[str, bool], dict[str, bool]] = {}  # by program and whether it asks who is there
    for connection in psutil.net_connections("inet"):
        if connection.status != psutil.CONN_LISTEN or connection.pid is None:
            continue
        try:
            process = psutil.Process(connection.pid)
            if process.uids().real != os.getuid():
                continue
            program = _program(process)
            if program is not None:
                address = f"{connection.laddr.ip}:{connection.laddr.port}"
                asks = _asks(process, program)
                places.setdefault((program, asks), {})[address] = is_loopback(connection.laddr.ip)
        except psutil.Error:
            continue  # it has ended
    for (program, asks), addresses in sorted(places.items()):
        open_ones = sorted(address for address, loopback in addresses.items() if not loopback)
        works = asks or not open_ones
        detail = f"listens on {_few(open_ones or sorted(addresses))}" + (", asks for a token or password" * asks)
        mend = "" if works else _mend_server(program)
        yield Finding(what=f"server {program}", works=works, detail=detail, mend=mend)
    if not places:
        yield Finding(what="servers", works=True, detail="none of Ray or MLflow is running")


def _program(process: psutil.Process) -> str | None:
    command = process.cmdline()
    name, line = Path(command[0]).name if command else "", " ".join(command)
    if (
        name in ("gcs_server", "raylet")
        or line.startswith("ray::")
        or re.search(r"/ray/(dashboard|_private|util)/", line)
    ):
        parts = {"gcs_server": "GCS", "dashboard/dashboard.py": "dashboard", "ray.util.client.server": "client server"}
        return "Ray " + next((part for sign, part in parts.items() if sign in line), "workers")
    return "MLflow" if re.search(r"(^|[\s/])mlflow(\s|\.server)", line) else None


def _asks(process: psutil.Process, program: str) -> bool:
    if program == "MLflow":
        return "basic-auth" in process.cmdline()
    # Workers write their titles over their environment, which is that of the raylet above them.
    above = [process, *process.parents()]
    process = next((found for found in above if not "".join(found.cmdline()[:1]).startswith("ray::")), process)
    return bool(process.environ().get("RAY_AUTH_MODE", "").lower() == "token")


def _mend_server(program: str) -> str:
    if program == "MLflow":
        return "start it with --host 127.0.0.1 (as mcnn ui does) and reach it through an SSH tunnel"
    return (
        "stop it, ray get-auth-token --generate, and start it with RAY_AUTH_MODE=token and --dashboard-host 127.0.0.1"
    )


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _ray_token() -> Finding:
    mode = os.environ.get("RAY_AUTH_MODE")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if mode is not None and mode.lower() != "token":
        detail = f"RAY_AUTH_MODE={mode}: whoever reaches Ray's ports runs code as you"
        return Finding(what="Ray's token", works=False, detail=detail, mend="export RAY_AUTH_MODE=token")
    if not path.is_file():
        return Finding(what="Ray's token", works=True, detail=f"no {path} yet: mcnn has Ray make one when it starts it")
    if _others_may(path, stat.S_IROTH):
        return Finding(
            what="Ray's token", works=False, detail=f"{path} can be read by others", mend=f"chmod 600 {path}"
        )
    return Finding(what="Ray's token", works=True, detail=f"{path}, for you alone")


def _others_may(path: Path, access: int) -> bool:
    """Tell whether users of other groups have an access to what lies at a path, through all its folders."""
    parents = path.resolve().parents
    return bool(path.stat().st_mode & access) and all(parent.stat().st_mode & stat.S_IXOTH for parent in parents)


def _usage_statistics() -> Finding:
    config = Path(os.environ.get("RAY_USAGE_STATS_CONFIG_PATH") or Path.home() / ".ray" / "config.json")
    off = os.environ.get("RAY_USAGE_STATS_ENABLED") == "0"
    off = off or (config.is_file() and re.search(r'"usage_stats": *false', config.read_text()) is not None)
    detail = "off" if off else "off where mcnn starts Ray; `ray start` sends them to its makers"
    return Finding(
        what="Ray's usage statistics", works=True, detail=detail, mend="" if off else "ray disable-usage-stats"
    )


def _addresses(variables: Mapping[str, str]) -> Iterator[Finding]:
    sent_apart = any(variables.get(f"MLFLOW_TRACKING_{name}") for name in ("PASSWORD", "TOKEN"))
    for name, apart in (("MLFLOW_TRACKING_URI", sent_apart), ("RAY_ADDRESS", False)):
        uri = variables.get(name, "")
        if not uri:
            continue
        try:
            parts = urlsplit(uri)
            host, carries = parts.hostname or "", apart or parts.password is not None or parts.username is not None
        except ValueError:
            yield Finding(what=name, works=False, detail="is no address", mend=f"mend it, or unset {name}")
            continue
        if parts.scheme == "http" and carries and not is_loopback(host):
            detail = f"sends a password to {host} over plain http, for all on the way to read"
            yield Finding(what=name, works=False, detail=detail, mend="use https, or an SSH tunnel to 127.0.0.1")
        else:
            yield Finding(what=name, works=True, detail="sends no password over plain http to other machines")


def _variables(variables: Mapping[str, str]) -> Iterator[Finding]:
    for name, (unsafe, permits) in _UNSAFE.items():
        value = variables.get(name, "").strip().lower()
        if re.fullmatch(unsafe, value):
            mend = f"export {name}=false" if name == _PICKLES else f"unset {name}"  # MLflow's default permits them
            yield Finding(what=name, works=False, detail=f"is {value}: {permits}", mend=mend)


def _storage(storage: Path) -> Finding:
    if not storage.exists():
        return Finding(what="storage", works=True, detail=f"{storage} is not there yet")
    open_ones = [
        path for path in (storage, *storage.rglob("*")) if not path.is_symlink() and _others_may(path, stat.S_IWOTH)
    ]
    if open_ones:
        detail = f"others can write to {_few([str(path) for path in open_ones])}"
        return Finding(what="storage", works=False, detail=detail, mend=f"chmod -R o-w {storage}")
    return Finding(what="storage", works=True, detail=f"others cannot write to {storage}")


def _secrets(storage: Path) -> Finding:
    secrets = known_secrets(os.environ)
    try:
        found = stored_secrets(storage, secrets)
    except ArtifactError as error:
        return Finding(what="secrets", works=False, detail=str(error), mend="look whether another program uses it")
    if found:
        places = [f"{name} in {place}" for name, place in found]
        mend = "change them where they are valid, and delete what holds them"
        return Finding(what="secrets", works=False, detail=f"the values of {_few(places)}", mend=mend)
    looked = f"{len(secrets)} of the environment" if secrets else "none in the environment to look for"
    return Finding(what="secrets", works=True, detail=f"not in {storage} ({looked})")


def _pickles(storage: Path) -> Finding:
    found = stored_pickles(storage)
    scratch = [path for path in found if is_scratch(storage, path)]
    foreign = [str(path) for path in found if path not in scratch]
    note = (
        f"; {len(scratch)} are Ray's own, in the scratch folder of a sweep that runs or was killed" if scratch else ""
    )
    if foreign:
        detail = f"{_few(foreign)} can run code where loaded; mcnn neither writes nor loads such files{note}"
        return Finding(what="pickles", works=False, detail=detail, mend="delete them unless you know what they are")
    return Finding(what="pickles", works=True, detail=f"none of others in {storage}{note}")
