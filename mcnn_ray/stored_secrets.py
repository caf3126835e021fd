"""What has no place in a storage folder: values of secrets of the environment, and pickles."""

from __future__ import annotations

import json
import mmap
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mcnn_ray.errors import ArtifactError

__all__ = ["is_scratch", "known_secrets", "stored_pickles", "stored_secrets"]

_SECRET = re.compile(r"(KEY|TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL)S?(_?ID)?$", re.IGNORECASE)
_SHORTEST = 6  # characters: shorter values occur by chance
_ADDRESSES = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")
_TEXTS = (".json", ".jsonl", ".yaml", ".yml", ".csv", ".txt", ".log", ".md")
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib", ".dill")
_SCRATCH = ("tune", "train")  # folders that Ray fills while a sweep trains


def known_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values that no file may hold, by the variable's name.

    Args:
        variables: of the environment. Those named like keys, tokens or passwords count, and passwords in addresses.
    """
    secrets = {name: value for name, value in variables.items() if _SECRET.search(name)}
    for name in _ADDRESSES:
        try:
            password = urlsplit(variables.get(name, "")).password
        except ValueError:
            continue
        secrets |= {name: unquote(password)} if password else {}
    return {name: value for name, value in secrets.items() if len(value) >= _SHORTEST}


def stored_secrets(storage: Path, secrets: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the name of each secret that the storage folder holds, and where; never its value.

    Args:
        storage: folder whose text files and SQLite store are searched; need not exist.
        secrets: values by name.

    Raises:
        ArtifactError: the store cannot be read.
    """
    store = storage / "mlflow.db"
    forms = [(name, form) for name, value in secrets.items() for form in {value, json.dumps(value)[1:-1]}]
    found = list(_in_store(store, forms)) if store.is_file() and forms else []
    for path in _files(storage):
        if path.suffix.lower() in _TEXTS and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                found += [(name, str(path)) for name, form in forms if content.find(form.encode()) >= 0]
    return list(dict.fromkeys(found))


def _in_store(store: Path, forms: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    try:
        connection = sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True)
        try:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                for _, column, kind, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                    if not re.search("CHAR|TEXT|JSON", kind, re.IGNORECASE):
                        continue
                    for name, form in forms:
                        query = f'SELECT 1 FROM "{table}" WHERE instr("{column}", ?) LIMIT 1'
                        if connection.execute(query, (form,)).fetchone():
                            yield name, f"{store}, {table}.{column}"
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ArtifactError(f"{store} cannot be searched for secrets: {error}") from error


def stored_pickles(storage: Path) -> list[Path]:
    """Return the files in the storage folder that are pickles, by their ending or by what they hold."""
    return [path for path in _files(storage) if path.suffix.lower() in _PICKLES or _starts_as_pickle(path)]


def is_scratch(storage: Path, path: Path) -> bool:
    """Tell whether a file lies in a sweep's scratch folder, which Ray fills and every start empties."""
    parts = path.relative_to(storage).parts
    return len(parts) > 2 and parts[1] in _SCRATCH


def _starts_as_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
        if len(start) < 3 or start[0] != 0x80 or not 2 <= start[1] <= 5 or start[8:] == b"{":
            return False  # a brace there: safetensors, whose header's length can begin the same
        file.seek(-1, 2)
        return file.read(1) == b"."  # what ends every pickle


def _files(storage: Path) -> Iterator[Path]:
    return (path for path in sorted(storage.rglob("*")) if path.is_file() and not path.is_symlink())
