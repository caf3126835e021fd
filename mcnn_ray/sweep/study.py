"""What a sweep learns from: demonstrations, scaled, and codebooks, kept in a cache by content."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import content_hash, locked
from mcnn_ray.core.codebook import Codebook, learn_codebook, memory_count
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.encoders.encoder import Encoder
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import CodebookKey, DataKey, Member, MemoryKey
from mcnn_ray.policies.base import Policy
from mcnn_ray.sweep.codebook_cache import read_codebook, write_codebook
from mcnn_ray.sweep.member_policies import make_policy
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.training.chunks import memory_chunks
from mcnn_ray.training.data import NearestMemories, TrainingData, make_training_data

__all__ = ["Study"]

_CODEBOOK_FORMAT = 2  # raised whenever the same settings give another codebook


@dataclass(kw_only=True)
class Study:
    """Demonstrations of a task, scaled, and the codebooks learned from them.

    Attributes:
        task: what is imitated.
        demonstrations: raw units, checked against the task.
        standardiser: fitted to the demonstrations.
        action_scale: of the environment's bounds.
        obs_ND: (N, D) float32, standardised.
        codebooks: by (way of picking, fraction, seed).
        encoder: that the demonstrations' images were seen through, or None.
    """

    task: Task
    demonstrations: Demonstrations
    standardiser: Standardiser
    action_scale: ActionScale
    obs_ND: npt.NDArray[np.float32]
    codebooks: dict[CodebookKey, Codebook] = field(default_factory=dict)
    encoder: Encoder | None = None

    @property
    def units(self) -> npt.NDArray[np.float32]:
        """(N, A) float32 demonstrated actions, in [-1, 1]."""
        return self.action_scale.to_unit(self.demonstrations.actions_NA)

    def identity(self, member: Member) -> str:
        """Return what names this member's training on this data."""
        data, successes_E = self.demonstrations.sha256, self.demonstrations.successes_E
        if member.family == "cql" and successes_E is not None:
            data = content_hash([data, successes_E.tolist()])
        return member.identity(self.task.id, data)

    def learn_codebooks(
        self, members: list[Member], cache: Path, progress: Callable[[str, float], None] | None = None
    ) -> None:
        """Have the codebooks that the members need, and no others: learned now, read from the cache, or here already.

        Args:
            members: whose codebooks are needed.
            cache: folder of codebooks by content hash.
            progress: called with the codebook's name and the share done.

        Raises:
            ConfigError: a fraction asks for more memories than there are distinct observations.
        """
        keys = sorted({member.codebook_key for member in members if member.codebook_key is not None})
        self.codebooks = {key: self.codebooks[key] for key in keys if key in self.codebooks}
        for key in keys:
            method, fraction, seed = key
            name = f"{method} {100 * fraction:g}%"

            def report(share: float, name: str = name) -> None:
                if progress is not None:
                    progress(name, share)

            entry = cache / content_hash(
                {
                    "observations": self._obs_hash,
                    "method": method,
                    "fraction": fraction,
                    "seed": seed,
                    "format": _CODEBOOK_FORMAT,
                }
            )
            if key in self.codebooks:
                continue
            with locked(entry):  # whoever comes second finds the codebook learned
                book = read_codebook(entry, self.demonstrations.steps)
                if book is None:
                    try:
                        book = learn_codebook(self.obs_ND, fraction, method=method, seed=seed, progress=report)
                    except ValueError as error:
                        raise ConfigError(f"{self.demonstrations.source}: {error}") from error
                    write_codebook(entry, book)
            report(1.0)
            self.codebooks[key] = book

    @property
    def _obs_hash(self) -> str:
        return content_hash([self.demonstrations.sha256, self.standardiser.mean_D.tolist()])

    def memory_actions(self, key: MemoryKey) -> npt.NDArray[np.float32]:
        """Return a codebook's (M, A) float32 raw memory actions: the expert's, or the mean over their cells."""
        return self.memory_chunks(key, np.zeros(1, dtype=np.int64))[:, 0]

    def memory_chunks(self, key: MemoryKey, places_P: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return (M, P, A) float32 raw actions around each memory, at (P,) places in steps from it."""
        book, demonstrations = self.codebooks[key[:3]], self.demonstrations
        return memory_chunks(
            demonstrations.actions_NA, demonstrations.offsets, book.rows_M, book.nearest_N, key[3], places_P
        )

    def distance_unit(self, key: MemoryKey) -> float:
        """Return how many standardised units make one of those in which members of this key give their lambda.

        Raises:
            ConfigError: the demonstrations' median distance to their nearest memory is 0.
        """
        if key[4] == "per-dimension":
            return math.sqrt(self.obs_ND.shape[1])
        if key[4] != "median":
            return 1.0
        book = self.codebooks[key[:3]]
        others = np.ones(len(book.distances_N), dtype=bool)
        others[book.rows_M] = False
        median = float(np.median(book.distances_N[others])) if others.any() else 0.0
        if median == 0.0:
            raise ConfigError(
                f"{self.demonstrations.source}: the median distance to {100 * key[1]:g} % memories is 0, so distances "
                "cannot be told in its units; take a smaller memory_fraction or distance euclidean"
            )
        return median

    def nearest_memories(self, key: MemoryKey) -> NearestMemories:
        """Return the nearest memory of every demonstration row, as training wants it."""
        book = self.codebooks[key[:3]]
        units_MA = self.action_scale.to_unit(self.memory_actions(key))
        distances_N = book.distances_N / np.float32(self.distance_unit(key))
        return NearestMemories(
            actions_NA=units_MA[book.nearest_N], distances_N=distances_N, rows_N=book.rows_M[book.nearest_N]
        )

    def rows(self, member: Member) -> int:
        """Return from how many rows a member's batches are drawn."""
        _, times, key = member.data_key
        return len(self.obs_ND) + (0 if key is None else (times - 1) * memory_count(len(self.obs_ND), key[1]))

    def training_data(self, key: DataKey, memories: Iterable[MemoryKey], device: str) -> TrainingData:
        """Put what members of a `data_key` learn from on a device.

        Args:
            key: theirs; memories that are seen several times are appended as often.
            memories: kinds that they blend with.
            device: `cpu` or `cuda`.
        """
        rows_N = np.arange(len(self.obs_ND))
        if key[2] is not None:
            rows_N = np.concatenate([rows_N, np.repeat(self.codebooks[key[2]].rows_M, key[1] - 1)])
        return make_training_data(
            self.obs_ND[rows_N],
            self.units[rows_N],
            {memory: self.nearest_memories(memory) for memory in memories if memory[:3] in self.codebooks},
            device,
            offsets=self.demonstrations.offsets,
            successes=self.demonstrations.successes_E,
        )

    def policy(self, member: Member, parameters: Mapping[str, npt.NDArray[np.float32]] | None = None) -> Policy:
        """Build a member's policy; see `make_policy`."""
        return make_policy(self, member, parameters)
