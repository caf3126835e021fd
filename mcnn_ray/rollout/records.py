"""Episode records and actions as a Parquet file: what an analysis reads, and what an episode is replayed from."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import write_bytes
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.rollout.episode import EpisodeRecord, Rollout

__all__ = ["read_records", "read_rollout", "read_rollouts", "write_rollouts"]

_ACTIONS = "actions"


def write_rollouts(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write a row per episode: the record's fields, and `actions`, a list of (A,) float32 lists.

    The file appears whole or not at all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [rollout.record.row() for rollout in rollouts]
    table = pa.Table.from_pylist([{**row, "versions": sorted(row["versions"].items())} for row in rows], _schema())
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
    seeds = [row["episode_seed"] for row in rows]
    if seed is None and len(rows) != 1:
        raise ConfigError(f"{path} holds {len(rows)} episodes; name one by --episode-seed, of {_span(seeds)}")
    chosen = [row for row in rows if seed is None or row["episode_seed"] == seed]
    if not chosen:
        raise ConfigError(f"{path} holds no episode of seed {seed}, but {_span(seeds)}")
    return _rollout(path, chosen[0])


def _rollout(path: Path, row: dict[str, Any]) -> Rollout:
    record = _record(path, {name: value for name, value in row.items() if name != _ACTIONS})
    actions_TA: npt.NDArray[np.float32] = np.array(row[_ACTIONS], dtype=np.float32)
    return Rollout(record=record, actions_TA=actions_TA)


def _span(seeds: list[int]) -> str:
    return f"{min(seeds)} to {max(seeds)}" if seeds else "none"


def _rows(path: Path, columns: list[str] | None) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(path, columns=columns, partitioning=None).to_pylist()
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist") from None
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{path} is not a readable Parquet file of episodes: {error}") from error
    return rows


def _record(path: Path, row: dict[str, Any]) -> EpisodeRecord:
    try:
        return EpisodeRecord(**{**row, "versions": dict(row["versions"])})
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
    }
    return pa.schema([(name, kinds[name]) for name in EpisodeRecord.__slots__])
