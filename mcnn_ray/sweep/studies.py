"""A sweep's demonstrations: read, seen through an encoder, held against the task, and split into studies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcnn_ray.config import SweepConfig
from mcnn_ray.core.codebook import memory_count
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.data.checks import check_demonstrations
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import task_demonstrations
from mcnn_ray.encoders.embeddings import cached_embeddings, embed
from mcnn_ray.encoders.encoder import Encoder, find_encoder
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member
from mcnn_ray.sweep.study import Study
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.training.data import check_rows
from mcnn_ray.training.learners import LEARNERS
from mcnn_ray.training.module_network import check_backbone

__all__ = ["Studies", "make_study", "open_studies", "open_study"]


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
