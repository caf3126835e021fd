"""The demonstrations that a policy learned from, found again, and those of the same dataset that it never saw.

Shapes: N steps, D observation numbers, E episodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.normalise import ActionScale
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import dataset_exists, read_minari
from mcnn_ray.encoders.embeddings import embed
from mcnn_ray.errors import ConfigError
from mcnn_ray.policies.base import Policy
from mcnn_ray.tasks.catalogue import find_task

__all__ = ["Learned", "held_out_episodes", "learned_from"]


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a policy learned from.

    Attributes:
        recorded: the dataset, as it was recorded.
        whole: the same, images as the policy's encoder gives them.
        data: the episodes of it that were learned from, their actions clipped where that was asked.
        episodes_E: (E,) int64, the place in `whole` of each episode of `data`.
        held_out_E: (E,) int64, episodes of `whole` that were not.
    """

    recorded: Demonstrations
    whole: Demonstrations
    data: Demonstrations
    episodes_E: npt.NDArray[np.int64]
    held_out_E: npt.NDArray[np.int64]

    def place_of(self, row: int) -> tuple[int, int]:
        """Return the episode of `whole` and the step in it that a row of `data` is."""
        episode = int(np.searchsorted(self.data.offsets, row, side="right") - 1)
        return int(self.episodes_E[episode]), row - int(self.data.offsets[episode])


def learned_from(policy: Policy) -> Learned | str:
    """Find what a policy learned from, by the sha256 in its card; or return why it is not here, in words.

    Raises:
        DatasetError: the demonstrations here are damaged.
    """
    named = policy.card.get("dataset")
    if not isinstance(named, dict) or not isinstance(named.get("episodes"), int) or "source" not in named:
        return "the policy does not name its demonstrations"
    source = str(named["source"])
    if not dataset_exists(source):
        return f"{source} is not on this machine"
    recorded = read_minari(source, _observation_key(policy.card))
    whole = recorded if policy.encoder is None else embed(recorded, policy.encoder)
    for data in _versions(whole, policy.action_scale):
        learned = data.subset(named["episodes"]) if 1 <= named["episodes"] < data.episodes else data
        if learned.sha256 == named.get("sha256"):
            places = {obs_TD.tobytes(): e for e, obs_TD in enumerate(_episodes(whole))}
            return Learned(
                recorded=recorded,
                whole=whole,
                data=learned,
                episodes_E=np.array([places[obs_TD.tobytes()] for obs_TD in _episodes(learned)], dtype=np.int64),
                held_out_E=held_out_episodes(whole, learned),
            )
    return (
        f"{source} on this machine is not what the policy learned from (sha256 {whole.sha256[:12]}, then "
        f"{str(named.get('sha256'))[:12]})"
    )


def held_out_episodes(data: Demonstrations, learned: Demonstrations) -> npt.NDArray[np.int64]:
    """Return (E,) the episodes of `data` whose observations are not, number for number, learned.

    Args:
        data: all demonstrations.
        learned: those of them that were learned from; their actions may have been clipped.
    """
    known = {obs_TD.tobytes() for obs_TD in _episodes(learned)}
    return np.array([e for e, obs_TD in enumerate(_episodes(data)) if obs_TD.tobytes() not in known], dtype=np.int64)


def _episodes(data: Demonstrations) -> Iterator[npt.NDArray[np.float32]]:
    return map(data.observations_of, range(data.episodes))


def _observation_key(card: dict[str, Any]) -> str | None:
    try:
        return find_task(str(card.get("task"))).observation_key
    except ConfigError:
        return None


def _versions(whole: Demonstrations, scale: ActionScale) -> Iterator[Demonstrations]:
    """Yield the demonstrations as recorded and, where that differs, with actions clipped (`--clip-actions`)."""
    yield whole
    if whole.actions_NA.shape[1] == len(scale.low_A):
        clipped = whole.check_actions(scale.low_A, scale.high_A, clip=True)
        if clipped is not whole:
            yield clipped
