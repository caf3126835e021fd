"""What a sweep learns from: demonstrations, scaled, and codebooks, kept in a cache by content."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.artifacts import content_hash, locked
from mcnn_ray.config import SweepConfig
from mcnn_ray.core.codebook import Codebook, learn_codebook, memory_count
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.data.checks import check_demonstrations
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import task_demonstrations
from mcnn_ray.encoders.embeddings import cached_embeddings, embed
from mcnn_ray.encoders.encoder import Encoder, find_encoder
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import CodebookKey, DataKey, Member, MemoryKey
from mcnn_ray.policies.base import Policy
from mcnn_ray.policies.bet import BetPolicy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.diffusion import DiffusionPolicy
from mcnn_ray.policies.implicit import ImplicitPolicy
from mcnn_ray.policies.lstm_gmm import LstmGmmPolicy
from mcnn_ray.policies.mlp import MlpPolicy, mlp_layers
from mcnn_ray.policies.module import ModulePolicy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.sweep.codebook_cache import read_codebook, write_codebook
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.training.chunks import action_places, memory_chunks
from mcnn_ray.training.data import NearestMemories, TrainingData, check_rows, make_training_data
from mcnn_ray.training.learners import LEARNERS
from mcnn_ray.training.module_network import check_backbone

__all__ = ["Studies", "Study", "make_study", "open_studies", "open_study"]

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
        """Build a member's policy.

        Args:
            member: what it is.
            parameters: of its trained network, as `Pack.parameters` gives them; None for methods without one.
        """
        policy = self._policy(member, self.card(member), parameters)
        policy.encoder = self.encoder
        return policy

    def _policy(
        self, member: Member, card: dict[str, Any], parameters: Mapping[str, npt.NDArray[np.float32]] | None
    ) -> Policy:
        if parameters is None:
            return self._nearest_policy(member, card)
        if member.family == "ibc":
            return ImplicitPolicy.from_parts(
                card, self.standardiser, self.action_scale, dict(parameters), dict(member.options)
            )
        if member.family == "lstm-gmm":
            return LstmGmmPolicy(card, self.standardiser, self.action_scale, dict(member.options), parameters)
        memories = None
        if member.memory_key is not None and member.lambda_ is not None and member.L is not None:
            rows_M = self.codebooks[member.memory_key[:3]].rows_M
            memories = Memories(
                observations_MD=self.obs_ND[rows_M],
                actions_MA=self.memory_actions(member.memory_key),
                rows_M=rows_M,
                lambda_=member.lambda_ / self.distance_unit(member.memory_key),
                L=member.L,
            )
        if member.family == "bet":
            options = dict(member.options)
            return BetPolicy(card, self.standardiser, self.action_scale, options, parameters, memories)
        if member.family == "diffusion":
            return self._diffusion_policy(member, card, parameters, memories)
        if member.backbone is not None:
            return ModulePolicy(card, self.standardiser, self.action_scale, member.backbone, parameters, memories)
        return MlpPolicy(card, self.standardiser, self.action_scale, mlp_layers(parameters), memories)

    def _diffusion_policy(
        self,
        member: Member,
        card: dict[str, Any],
        parameters: Mapping[str, npt.NDArray[np.float32]],
        memories: Memories | None,
    ) -> DiffusionPolicy:
        options, chunks_MPA = dict(member.options), None
        if member.memory_key is not None:
            places_P = action_places(int(member.option("observed")), int(member.option("predicted")))
            chunks_MPA = self.memory_chunks(member.memory_key, places_P)
        return DiffusionPolicy(card, self.standardiser, self.action_scale, options, parameters, memories, chunks_MPA)

    def _nearest_policy(self, member: Member, card: dict[str, Any]) -> NearestPolicy:
        standardiser, obs_ND = self.standardiser, self.obs_ND
        if member.option("observations") == "raw":
            obs_ND = self.demonstrations.observations_ND
            standardiser = Standardiser(
                mean_D=np.zeros_like(standardiser.mean_D), scale_D=np.ones_like(standardiser.scale_D)
            )
        neighbours = int(dict(member.options).get("neighbours", 1))
        if neighbours > len(obs_ND):
            raise ConfigError(
                f"option neighbours is {neighbours}, but {self.demonstrations.source} has {len(obs_ND)} steps; ask for "
                "fewer"
            )
        return NearestPolicy(card, standardiser, self.action_scale, obs_ND, self.demonstrations.actions_NA, neighbours)

    def card(self, member: Member) -> dict[str, Any]:
        """Return where a policy comes from, for its directory."""
        return {
            "task": self.task.id,
            "member": member.parameters(),
            "identity": self.identity(member),
            "dataset": {
                "source": self.demonstrations.source,
                "sha256": self.demonstrations.sha256,
                "episodes": self.demonstrations.episodes,
                "steps": self.demonstrations.steps,
            },
            **({} if self.encoder is None else {"encoder": self.encoder.description()}),
            "versions": {name: importlib.metadata.version(name) for name in ("mcnn-ray", "torch", "numpy")},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Studies:
    """A task's demonstrations, and a study of each subset that members learn from.

    Attributes:
        task: what is imitated.
        demonstrations: all of the task's, in raw units.
        parts: by number of episodes; None is all of them.
    """

    task: Task
    demonstrations: Demonstrations
    parts: dict[int | None, Study]

    def of(self, member: Member) -> Study:
        """Return what a member learns from."""
        return self.parts[member.demonstrations]

    @property
    def encoder(self) -> Encoder | None:
        """What images are seen through; None where observations are no images."""
        return next(iter(self.parts.values())).encoder

    @property
    def widths(self) -> tuple[int, int]:
        """How many numbers an observation has, and an action."""
        return self.demonstrations.observations_ND.shape[1], self.demonstrations.actions_NA.shape[1]

    def learn_codebooks(
        self, members: list[Member], cache: Path, progress: Callable[[str, float], None] | None = None
    ) -> None:
        """Learn, or read from the cache, each codebook that the members need; see `Study.learn_codebooks`."""
        for part, study in self.parts.items():
            study.learn_codebooks([member for member in members if member.demonstrations == part], cache, progress)


def open_studies(
    config: SweepConfig, cache: Path | None = None, progress: Callable[[str, float], None] | None = None
) -> Studies:
    """Read a sweep's demonstrations, have images seen by its encoder, and hold them against its task.

    Args:
        config: of the sweep.
        cache: folder that embeddings of images are kept in; None computes them anew.
        progress: called with what is done and the share of it.

    Raises:
        DatasetError: missing, damaged, or not fit for the task.
        ConfigError: the task, a subset asked for or the encoder does not exist, or a backbone cannot be used.
        ArtifactError: the encoder is damaged.
    """
    task = config.find_task()
    encoder = _encoder(config, task)
    demonstrations = task_demonstrations(task)
    if encoder is not None:
        numbers = demonstrations.observations_ND.shape[1]
        if numbers != encoder.inputs:
            raise ConfigError(
                f"encoders take 48 x 48 RGB images ({encoder.inputs:,} numbers), and an observation of {task.id} has "
                f"{numbers} numbers; leave --encoder out"
            )
        demonstrations = _embedded(demonstrations, encoder, cache, progress)
    parts = {
        count: make_study(config, task, demonstrations if count is None else demonstrations.subset(count), encoder)
        for count in config.demonstrations or (None,)
    }
    if config.backbone is not None and any(member.trained for member in config.members()):
        check_backbone(
            config.backbone, demonstrations.observations_ND.shape[1], demonstrations.actions_NA.shape[1]
        )  # here, not in a worker after minutes
    return Studies(task=task, demonstrations=demonstrations, parts=parts)


def _embedded(
    demonstrations: Demonstrations,
    encoder: Encoder,
    cache: Path | None,
    progress: Callable[[str, float], None] | None,
) -> Demonstrations:
    def report(share: float) -> None:
        if progress is not None:
            progress(f"embeddings by {encoder.name}", share)

    if cache is None:
        return embed(demonstrations, encoder, report)
    encoder.keep_in(cache / "encoders")
    return cached_embeddings(demonstrations, encoder, cache / "embeddings", report)


def _encoder(config: SweepConfig, task: Task) -> Encoder | None:
    if config.encoder is not None:
        return find_encoder(config.encoder)
    if task.images:
        raise ConfigError(
            f"the observations of {task.id} are images, and no encoder is named; make one (mcnn encoder train "
            f"{task.id} runs/encoders/bc) and pass --encoder runs/encoders/bc, or --encoder random-small as a lower "
            "baseline"
        )
    return None


def open_study(
    config: SweepConfig, cache: Path | None = None, progress: Callable[[str, float], None] | None = None
) -> Study:
    """Return the study of a configuration in which all learn from the same demonstrations; see `open_studies`."""
    (study,) = open_studies(config, cache, progress).parts.values()
    return study


def make_study(
    config: SweepConfig, task: Task, demonstrations: Demonstrations, encoder: Encoder | None = None
) -> Study:
    """Hold demonstrations against a task and scale them.

    Args:
        config: of the sweep.
        task: whose environment they must fit.
        demonstrations: embeddings, where there is an encoder.
        encoder: that made them, or None.

    Raises:
        DatasetError: they are not fit for the task.
        ConfigError: there are fewer steps than a batch has, so few that a fraction gives no memory, or what a method
            learns from is not in them.
    """
    members = config.members()
    demonstrations, action_space = check_demonstrations(
        demonstrations,
        task,
        clip_actions=config.clip_actions,
        constant_columns=config.constant_columns,
        min_episodes=config.min_episodes,
        encoder=encoder,
    )
    for member in members:
        check_rows(member, demonstrations.steps, f"demonstration steps of {demonstrations.source}")
    for member in {(member.family, member.batch_size, member.options): member for member in members}.values():
        if member.family in LEARNERS:
            LEARNERS[member.family].check(member, demonstrations)
    for fraction in {member.memory_fraction for member in members} - {None}:
        try:
            memory_count(demonstrations.steps, fraction or 0.0)
        except ValueError as error:
            raise ConfigError(f"{demonstrations.source}: {error}") from error
    standardiser = Standardiser.fit(demonstrations.observations_ND)
    return Study(
        task=task,
        demonstrations=demonstrations,
        standardiser=standardiser,
        action_scale=ActionScale(
            low_A=action_space.low.astype(np.float32), high_A=action_space.high.astype(np.float32)
        ),
        obs_ND=standardiser(demonstrations.observations_ND),
        encoder=encoder,
    )
