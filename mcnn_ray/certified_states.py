"""The states over which policies are certified: demonstrations, those held out, random states, rollouts.

Shapes: N states, M memories, D observation numbers, A action numbers, T steps of an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.certificate import Isolation
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.errors import ArtifactError, DatasetError
from mcnn_ray.learned import held_out_episodes, learned_from
from mcnn_ray.policies.base import Policy
from mcnn_ray.rollout.episode import EpisodeRecord
from mcnn_ray.rollout.records import read_records

__all__ = [
    "ALL_DEMONSTRATED",
    "DEMONSTRATED",
    "HELD_OUT",
    "checked_rollouts",
    "demonstrated_states",
    "held_out_states",
    "random_states",
    "recorded_rollouts",
    "rollout_isolation",
]

Float32Array = npt.NDArray[np.float32]

# Sets of states that the expert visited; the second where a sample stands for the first.
DEMONSTRATED, ALL_DEMONSTRATED, HELD_OUT = "demonstrations", "all demonstrations", "held-out demonstrations"
_WIDENED = 0.5  # of the bounding box, as a share of its width, half of it on each side
_NOISE_DECADES = (-4.0, 1.0)  # standard deviations of 1e-4 to 10 standardised units: weights of 1 to 0 at any lambda


def random_states(
    memories_MD: Float32Array, box_ND: Float32Array, ignored_D: npt.NDArray[np.bool_], count: int, seed: int
) -> dict[str, Float32Array]:
    """Draw states where a policy may be led that no demonstration shows.

    Args:
        memories_MD: (M, D) standardised memories.
        box_ND: (N, D) standardised observations that span the bounding box.
        ignored_D: (D,) columns that the policy ignores, which stay as they are.
        count: states of each distribution.
        seed: of both.

    Returns:
        `uniform`: (count, D) in the box widened by half its width; `around memories`: (count, D), a memory drawn at
        random plus Gaussian noise, whose standard deviation is drawn for each state, log-uniform in [1e-4, 10].
    """
    rng = np.random.default_rng(seed)
    low_D, high_D = box_ND.min(0).astype(np.float64), box_ND.max(0).astype(np.float64)
    margin_D = 0.5 * _WIDENED * (high_D - low_D)
    uniform_ND = rng.uniform(low_D - margin_D, high_D + margin_D, (count, len(low_D)))
    deviation_N1 = 10.0 ** rng.uniform(*_NOISE_DECADES, (count, 1))
    noise_ND = deviation_N1 * rng.standard_normal((count, len(low_D))) * ~ignored_D
    around_ND = memories_MD[rng.integers(len(memories_MD), size=count)] + noise_ND
    return {"uniform": uniform_ND.astype(np.float32), "around memories": around_ND.astype(np.float32)}


def checked_rollouts(obs_ND: npt.NDArray[Any], policy: Policy) -> npt.NDArray[Any]:
    """Return (N, D) raw observations seen in rollouts as they are, or embeddings of images.

    Raises:
        DatasetError: they do not fit the policy.
    """
    obs_ND = policy.encode(obs_ND)
    if obs_ND.ndim != 2 or obs_ND.shape[1] != policy.observation_dim or len(obs_ND) == 0:
        raise DatasetError(
            f"the rollouts have the shape {obs_ND.shape}, expected one or more rows of {policy.observation_dim} "
            "numbers; roll the policy out in its own task"
        )
    if not np.isfinite(obs_ND).all():
        raise DatasetError("the rollouts have NaN or infinite observations; leave those episodes out")
    return obs_ND


def demonstrated_states(policy: Policy) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Return the raw observations that the policy learned from and those held out, and what is missing, in words.

    Raises:
        DatasetError: the demonstrations here are damaged.
    """
    learned = learned_from(policy)
    if isinstance(learned, str):
        return {}, [f"{learned}: only memories and random states were checked"]
    states = {DEMONSTRATED: learned.data.observations_ND}
    if len(learned.held_out_E) == 0:
        return states, [f"none of {learned.whole.source} was held out"]
    return {**states, HELD_OUT: learned.whole.take(learned.held_out_E).observations_ND}, []


def held_out_states(data: Demonstrations, learned: Demonstrations) -> Float32Array:
    """Return (N, D) raw observations of the episodes of `data` whose observations are not, number for number, learned.

    Args:
        data: all demonstrations.
        learned: those of them that were learned from; their actions may have been clipped.
    """
    held_out_E = held_out_episodes(data, learned)
    return data.take(held_out_E).observations_ND if len(held_out_E) else data.observations_ND[:0]


def rollout_isolation(records: Sequence[EpisodeRecord]) -> list[Isolation]:
    """Return how far rollouts went from the memories, in one entry; none where no record tells it.

    Args:
        records: of policies that share their memories, over all their episodes.
    """
    known = [(record, record.most_isolated_distance) for record in records if record.most_isolated_distance is not None]
    if not known:
        return []
    return [
        Isolation(
            name="rollouts",
            episodes=len(known),
            states=sum(record.length for record, _ in known),
            most_isolated_distance=max(distance for _, distance in known),
        )
    ]


def recorded_rollouts(directories: Sequence[Path]) -> tuple[list[Isolation], list[str]]:
    """Return what the episode records that a sweep leaves beside its policies tell, and what is missing, in words."""
    records: list[EpisodeRecord] = []
    notes = []
    for directory in directories:
        path = directory.parent / "episodes.parquet"
        try:
            records += read_records(path) if path.is_file() else []
        except ArtifactError as error:
            notes.append(f"rollouts are left out: {error}")
    found = rollout_isolation(records)
    return found, notes if found else [*notes, "no episode records lie beside the policy: no rollouts were looked at"]
