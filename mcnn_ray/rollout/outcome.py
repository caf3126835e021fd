"""What comes of an evaluation: rollouts, episodes lost on the way, and faults of the environment."""

from __future__ import annotations

from dataclasses import dataclass

from mcnn_ray.errors import SimulationError
from mcnn_ray.rollout.episode import Rollout

__all__ = ["EpisodeError", "Evaluation", "Lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An episode that could not be run for no fault of the policy; it is not scored.

    Attributes:
        member: identity.
        episode_seed: of the episode.
        reason: what happened to the processes that ran it.
    """

    member: str
    episode_seed: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Rollouts of policies.

    Attributes:
        rollouts: by policy and then by seed, in the order that was asked for, without those lost.
        lost: episodes lost to the infrastructure.
    """

    rollouts: list[Rollout]
    lost: list[Lost]


class EpisodeError(SimulationError):
    """The environment failed in an episode.

    Attributes:
        evaluation: what could be rolled out all the same.
    """

    def __init__(self, message: str, evaluation: Evaluation) -> None:
        super().__init__(message)
        self.evaluation = evaluation
