"""What a monitor does on a policy: false alarms on demonstrations held out, and flags before failures on rollouts.

Shapes: N steps, D observation numbers, E episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import read_minari
from mcnn_ray.encoders.embeddings import embed
from mcnn_ray.errors import ConfigError, DatasetError
from mcnn_ray.learned import Learned, held_out_episodes
from mcnn_ray.monitor import Monitor, Per, fewest_episodes
from mcnn_ray.policies.base import Policy
from mcnn_ray.rollout.episode import Rollout
from mcnn_ray.rollout.replay import see_same
from mcnn_ray.stats import Interval, mean_interval, rate_interval
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import make_environment

__all__ = [
    "Watch",
    "Watched",
    "default_calibration",
    "held_out_demonstrations",
    "measure_watch",
    "reference_of",
    "watch_rollouts",
]

_LIKELY = 0.9  # share of calibrations whose false-alarm rate is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One rollout as a monitor saw it.

    Attributes:
        episode_seed: of it.
        success: whether it did what was asked.
        length: steps.
        first_flag: first step outside; None where none is.
        share_outside: of its steps.
        largest_distance: of them, standardised units.
    """

    episode_seed: int
    success: bool
    length: int
    first_flag: int | None
    share_outside: float
    largest_distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a monitor did.

    Attributes:
        alpha: false-alarm rate that was asked for.
        per: what it is a rate of.
        threshold: distance, standardised units.
        calibration: held-out demonstrations that it was chosen from.
        likely_rates: between these lie the true rates of 90 % of calibrations of this size, where distances have no
            ties; None per step.
        false_alarms: on further held-out demonstrations: share of episodes flagged, per step of their steps.
        failures: likewise on rollouts that failed; None without any.
        successes: likewise on those that succeeded.
        lead_steps: steps from the first flag to the end of a flagged failure, mean; None without any.
        lead_quartiles: of the same.
        rollouts: one by one.
    """

    alpha: float
    per: Per
    threshold: float
    calibration: int
    likely_rates: tuple[float, float] | None
    false_alarms: Interval | None
    failures: Interval | None
    successes: Interval | None
    lead_steps: Interval | None
    lead_quartiles: tuple[float, float, float] | None
    rollouts: tuple[Watched, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def held_out_demonstrations(
    policy: Policy, learned: Learned | str, dataset: str | None, observation_key: str | None = None
) -> Demonstrations:
    """Return demonstrations that a policy did not learn from; images as its encoder gives them.

    Args:
        policy: that did not.
        learned: what it learned from, or why that is not known here.
        dataset: Minari id to take them from; None takes the rest of what the policy learned from a part of.
        observation_key: as of `read_minari`.

    Raises:
        DatasetError: there are none.
    """
    if dataset is None:
        if isinstance(learned, str):
            raise DatasetError(f"{learned}; name demonstrations that it did not learn from with --held-out DATASET")
        if len(learned.held_out_E) == 0:
            raise DatasetError(
                f"the policy learned from all of {learned.whole.source}: nothing of it is held out; name other "
                "demonstrations of the same kind with --held-out DATASET, recorded from other seeds: mcnn data collect "
                "TASK --episodes 100 --seed 10000 --dataset DATASET"
            )
        return learned.whole.take(learned.held_out_E)
    data = read_minari(dataset, observation_key)
    if policy.encoder is not None:
        data = embed(data, policy.encoder)
    if isinstance(learned, str):
        return data
    held_out_E = held_out_episodes(data, learned.data)
    if len(held_out_E) == 0:
        raise DatasetError(f"the policy learned from all of {dataset}; name demonstrations that it did not learn from")
    return data.take(held_out_E)


def default_calibration(episodes: int, alpha: float) -> int:
    """Return half of the episodes, or more where fewer cannot hold alpha; the rest is there to measure on."""
    return min(episodes, max(episodes // 2, fewest_episodes(alpha)))


def reference_of(policy: Policy, learned: Learned | str, to_demonstrations: bool) -> npt.NDArray[np.float32] | None:
    """Return what a monitor's distances are taken to: (N, D) raw observations, or None for the policy's memories.

    Args:
        policy: to be watched.
        learned: what it learned from, or why that is not known here.
        to_demonstrations: take them also where there are memories.

    Raises:
        DatasetError: distances are to be taken to demonstrations that are not here.
    """
    has_memories = policy.explain(np.zeros((1, policy.observation_dim), np.float32)) is not None
    if has_memories and not to_demonstrations:
        return None
    if isinstance(learned, str):
        raise DatasetError(f"distances to the demonstrations cannot be taken: {learned}")
    return learned.data.observations_ND


def watch_rollouts(
    monitor: Monitor,
    rollouts: Sequence[Rollout],
    task: Task,
    least_return: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[bool, npt.NDArray[np.float32]]]:
    """Run recorded episodes again and measure every step.

    Args:
        monitor: measures.
        rollouts: of the task.
        task: theirs.
        least_return: episodes of less failed; None goes by what the environment calls success.
        progress: called with the episodes done.

    Returns:
        Per episode whether it succeeded, and (T,) distances.

    Raises:
        SimulationError: an episode is another one now.
        ConfigError: the environment tells no success, and no least return is given.
    """
    env, found = make_environment(task), []
    try:
        for done, rollout in enumerate(rollouts, 1):
            record = rollout.record
            if least_return is None and record.success is None:
                raise ConfigError(
                    f"{record.task} does not tell which episodes succeed; give the return that one must reach with "
                    "--least-return"
                )
            seen = see_same(rollout, env)
            good = bool(record.success) if least_return is None else record.episode_return >= least_return
            found.append((good, monitor.distances(monitor.policy.encode(seen.observations_TD[:-1]))))
            if progress is not None:
                progress(done)
    finally:
        env.close()
    return found


def measure_watch(
    monitor: Monitor,
    alpha: float,
    per: Per,
    calibration: int,
    held_out: Sequence[npt.NDArray[np.float32]],
    rollouts: Sequence[tuple[int, bool, npt.NDArray[np.float32]]],
) -> Watch:
    """Count flags.

    Args:
        monitor: calibrated.
        alpha: that it was calibrated for.
        per: likewise.
        calibration: episodes that it was calibrated on.
        held_out: (T,) distances of each further held-out demonstration.
        rollouts: seed, success and (T,) distances of each.
    """
    watched = tuple(_watched(seed, good, d_T, monitor.threshold) for seed, good, d_T in rollouts)
    failed = [one for one in watched if not one.success]
    leads = [one.length - one.first_flag for one in failed if one.first_flag is not None]
    quartiles = np.percentile(leads, [25, 50, 75]).tolist() if leads else None
    place = calibration - int(np.floor(alpha * (calibration + 1) - 1 + 1e-9))
    # The rate of the k-th smallest of n is distributed as Beta(n + 1 - k, k), whatever the distances are.
    low, high = stats.beta.interval(_LIKELY, calibration + 1 - place, place)
    return Watch(
        alpha=alpha,
        per=per,
        threshold=monitor.threshold,
        calibration=calibration,
        likely_rates=(float(low), float(high)) if per == "episode" else None,
        false_alarms=_share([_watched(0, True, d_T, monitor.threshold) for d_T in held_out], per),
        failures=_share(failed, per),
        successes=_share([one for one in watched if one.success], per),
        lead_steps=mean_interval([leads]) if leads else None,
        lead_quartiles=(quartiles[0], quartiles[1], quartiles[2]) if quartiles else None,
        rollouts=watched,
    )


def _watched(seed: int, good: bool, distance_T: npt.NDArray[np.float32], threshold: float) -> Watched:
    outside_T = distance_T > threshold
    return Watched(
        episode_seed=seed,
        success=good,
        length=len(distance_T),
        first_flag=int(outside_T.argmax()) if outside_T.any() else None,
        share_outside=float(outside_T.mean()),
        largest_distance=float(distance_T.max()),
    )


def _share(episodes: Sequence[Watched], per: Per) -> Interval | None:
    if not episodes:
        return None
    if per == "step":
        return mean_interval([[one.share_outside for one in episodes]])
    return rate_interval(sum(one.first_flag is not None for one in episodes), len(episodes))
