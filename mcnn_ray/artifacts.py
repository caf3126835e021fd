"""Files that appear whole or not at all, and are known again by their content."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from mcnn_ray.errors import ArtifactError

__all__ = [
    "MANIFEST",
    "check_fits_memory",
    "content_hash",
    "locked",
    "read_json",
    "read_tensors",
    "remove_leftovers",
    "replace_directory",
    "verify_manifest",
    "write_bytes",
    "write_directory",
    "write_json",
    "write_text",
]

MANIFEST = "manifest.json"
_LEFTOVER = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{8}\.(?P<kind>tmp|old)")  # names that this module gives
_DAY_S = 86_400.0


def content_hash(value: Any) -> str:
    """Return the sha256 (64 hex digits) of a JSON value in canonical form: the same content, the same hash."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def write_directory(target: Path) -> Iterator[Path]:
    """Write a directory whole: yields a temporary one beside the target and puts it in place when the block ends.

    A manifest with the sha256 of each file is added and all is flushed to disk before the rename. When the block
    raises, nothing of it stays. An existing target is replaced.

    Args:
        target: where the directory shall appear; parents are made.

    Yields:
        The directory to write into.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    temporary.mkdir()
    try:
        yield temporary
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        manifest = {path.relative_to(temporary).as_posix(): _file_hash(path) for path in files}
        (temporary / MANIFEST).write_text(json.dumps({"sha256": manifest}, indent=1) + "\n")
        for path in [*files, temporary / MANIFEST, temporary]:
            _sync(path)
        replace_directory(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(target.parent)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a path inside the block, against other processes on this machine.

    Args:
        path: what is locked; the lock is a file beside it with `.lock` added, which stays.
        wait: wait for a lock that another process holds; else refuse.

    Raises:
        ArtifactError: another process holds it and wait is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as file:
        try:
            # Let go of when the file is closed, also by the process's death.
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(f"{path} is being worked on by another process; wait for its end") from None
        yield


def replace_directory(temporary: Path, target: Path) -> None:
    """Rename a finished directory to its place, over an existing one.

    The system renames over empty directories only, so an existing one is moved aside first and then removed.

    Args:
        temporary: the finished directory, on the target's file system.
        target: its place; the parent must exist.
    """
    old = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.old"
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(folder: Path, older_than_s: float = _DAY_S) -> None:
    """Remove what writers left that were killed before they could rename or tidy up.

    What was moved aside and never replaced is the only copy, and stays.

    Args:
        folder: searched with all folders in it; need not exist.
        older_than_s: since the last change; 0 where nobody else can be writing.
    """
    for path in list(folder.rglob(".*")):
        found = _LEFTOVER.fullmatch(path.name)
        if found is None or (found["kind"] == "old" and not path.with_name(found["target"]).exists()):
            continue
        try:
            if time.time() - path.lstat().st_mtime < older_than_s:
                continue
        except FileNotFoundError:
            continue  # its writer lives
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_fits_memory(size_bytes: int) -> None:
    """Refuse what memory cannot hold before it is read: a small file can stand for a large array.

    Raises:
        ValueError: it is more than this machine has free.
    """
    found = re.search(r"^MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if found is not None and size_bytes > (free_bytes := int(found[1]) * 1024):
        needed, free = size_bytes / 2**30, free_bytes / 2**30
        raise ValueError(f"it takes {needed:,.1f} GiB of memory, and {free:,.1f} GiB are free")


def verify_manifest(directory: Path) -> None:
    """Check that a directory made by `write_directory` is as it was written.

    Args:
        directory: to check.

    Raises:
        ArtifactError: the directory, its manifest or a file is missing, or a file's content has changed.
    """
    recorded = read_json(directory / MANIFEST).get("sha256")
    if not isinstance(recorded, dict):
        raise ArtifactError(f"{directory / MANIFEST} has no list of sha256 sums; it was not written by mcnn")
    for name, expected in recorded.items():
        path = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtifactError(f"the manifest of {directory} lists {name}, which lies outside; make it again")
        if not path.is_file():
            raise ArtifactError(f"{directory} lacks {name}, which its manifest lists; make it again")
        if _file_hash(path) != expected:
            raise ArtifactError(f"{path} is damaged: its sha256 differs from the manifest's; make it again")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ArtifactError: the file is missing, is not JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise ArtifactError(f"{path} is not a readable JSON file: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} holds a {type(value).__name__}, expected a JSON object")
    return value


def read_tensors(path: Path) -> dict[str, Any]:
    """Read a safetensors file into numpy arrays; it can hold no code.

    Raises:
        ArtifactError: the file is missing, cut short, not safetensors, or has numbers of a kind that numpy lacks.
    """
    try:
        check_fits_memory(path.stat().st_size)
        tensors = dict(load_file(path))
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist") from None
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is not a whole safetensors file: {error}") from error
    for name, array in tensors.items():
        if array.dtype.isbuiltin != 1:  # as ml_dtypes has, where that is installed
            raise ArtifactError(f"{path} has numbers of kind {array.dtype} in {name}, which are never written here")
    return tensors


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename; parents are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_bytes(content)
        _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")
