"""Episode records and actions as a Parquet file: what an analysis reads, and what an episode is replayed from."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import check_fits_memory, write_bytes
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.rollout.episode import EpisodeRecord, Rollout

__all__ = ["read_records", "read_rollout", "read_rollouts", "write_rollouts"]

_ACTIONS = "actions"
_VALUE_BYTES = 40  # of a number as an object of Python's in a list


def write_rollouts(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write a row per episode: the record's fields, and `actions`, a list of (A,) float32 lists.

    The file appears whole or not at all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [rollout.record.row() for rollout in rollouts]
    table = pa.Table.from_pylist([_with_items(row) for row in rows], _schema())
    actions = pa.array([list(rollout.actions_TA) for rollout in rollouts], pa.list_(pa.list_(pa.float32())))
    buffer = io.BytesIO()
    pq.write_table(table.append_column(_ACTIONS, actions), buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())


def read_records(path: Path) -> list[EpisodeRecord]:
    """Read the records of a file by `write_rollouts`, in its order.

    Raises:
        ArtifactError: missing, damaged, or of another version.
    """
    return [_record(path, row) for row in _rows(path, list(_schema().names))]


def read_rollouts(path: Path) -> list[Rollout]:
    """Read all episodes of a file by `write_rollouts` with their actions, in its order.

    Raises:
        ArtifactError: missing, damaged, or of another version.
    """
    return [_rollout(path, row) for row in _rows(path, None)]


def read_rollout(path: Path, seed: int | None) -> Rollout:
    """Read one episode with its actions.

    Args:
        path: of a file by `write_rollouts`.
        seed: of the episode; None where the file holds only one.

    Raises:
        ArtifactError: missing, damaged, or of another version.
        ConfigError: no such episode.
    """
    rows = _rows(path, None)
    seeds = [_record(path, _without_actions(row)).episode_seed for row in rows]
    if seed is None and len(rows) != 1:
        raise ConfigError(f"{path} holds {len(rows)} episodes; name one by --episode-seed, of {_span(seeds)}")
    chosen = [row for row in rows if seed is None or row["episode_seed"] == seed]
    if not chosen:
        raise ConfigError(f"{path} holds no episode of seed {seed}, but {_span(seeds)}")
    return _rollout(path, chosen[0])


def _with_items(row: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(value.items()) if isinstance(value, dict) else value for name, value in row.items()}


def _rollout(path: Path, row: dict[str, Any]) -> Rollout:
    record = _record(path, _without_actions(row))
    try:
        actions_TA: npt.NDArray[np.float32] = np.array(row[_ACTIONS], dtype=np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} lacks actions, or has steps with more of them than others: {error!r}") from error
    return Rollout(record=record, actions_TA=actions_TA)


def _without_actions(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != _ACTIONS}


def _span(seeds: list[int]) -> str:
    return f"{min(seeds)} to {max(seeds)}" if seeds else "none"


def _rows(path: Path, columns: list[str] | None) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow
            # A column of equal values is a few bytes in the file, whatever its length.
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            values = sum(group.column(j).num_values for group in groups for j in range(group.num_columns))
            check_fits_memory(_VALUE_BYTES * values + sum(group.total_byte_size for group in groups))
            for field in _schema():
                if field.name in found.names and found.field(field.name).type != field.type:
                    raise ArtifactError(
                        f"{path} holds episodes of another version: {field.name} is {found.field(field.name).type}, "
                        f"expected {field.type}; run them again"
                    )
            rows: list[dict[str, Any]] = file.read(columns=columns).to_pylist()
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException) as error:
        raise ArtifactError(f"{path} is not a readable Parquet file of episodes: {error}") from error
    return rows


def _record(path: Path, row: dict[str, Any]) -> EpisodeRecord:
    try:
        subtasks = row.get("subtasks")  # files from before there were any lack it
        subtasks = None if subtasks is None else dict(subtasks)
        return EpisodeRecord(**{**row, "versions": dict(row["versions"]), "subtasks": subtasks})
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} holds episodes of another version ({error}); run them again") from error


def _schema() -> Any:
    import pyarrow as pa

    numbers = ("episode_return", "normalised_score", "most_isolated_distance", "mean_memory_weight", "wall_s")
    kinds = {
        **dict.fromkeys(("member", "task", "simulator"), pa.string()),
        **dict.fromkeys(("episode_seed", "length"), pa.int64()),
        **dict.fromkeys(numbers, pa.float64()),
        "success": pa.bool_(),
        "versions": pa.map_(pa.string(), pa.string()),
        "subtasks": pa.map_(pa.string(), pa.bool_()),
    }
    return pa.schema([(name, kinds[name]) for name in EpisodeRecord.__slots__])
