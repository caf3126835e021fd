"""Why a policy acted as it did in an episode: which memory drove each action, how near it was, how much it weighed.

Shapes: T steps, D observation numbers, A action numbers, M memories, N demonstration steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcnn_ray.errors import ConfigError
from mcnn_ray.learned import Learned, learned_from
from mcnn_ray.monitor import Monitor, conformal_threshold, fewest_episodes
from mcnn_ray.policies.base import Policy
from mcnn_ray.policies.search import PolicySearch
from mcnn_ray.rollout.episode import EVALUATION_SEED, LOCKSTEP, Rollout, run_episodes
from mcnn_ray.rollout.replay import see_same
from mcnn_ray.tasks.catalogue import Task
from mcnn_ray.tasks.environments import make_environment

__all__ = ["EpisodeExplained", "Nearest", "Spread", "explain_rollout", "run_as_evaluated"]

_ALPHA = 0.1  # of the threshold that is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distances of demonstrations to what the policy knows.

    Attributes:
        name: which demonstrations.
        held_out: whether the policy did not learn from them.
        episodes: how many.
        distance_N: (N,) float32, of their steps, ascending.
        threshold: conformal, of 10 % false alarms an episode; None where there are too few held out.
    """

    name: str
    held_out: bool
    episodes: int
    distance_N: npt.NDArray[np.float32]
    threshold: float | None

    def percentiles(self, distance_T: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the percentage of the steps that are nearer than each (T,) distance."""
        found: npt.NDArray[np.float64] = 100.0 * np.searchsorted(self.distance_N, distance_T) / len(self.distance_N)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """What the policy knows nearest to each state of an episode.

    Attributes:
        what: `memory`, or `demonstrated step` where the policy has no memories, and the nearest step that it learned
            from is shown for comparison.
        known: how many of them there are.
        index_T: (T,) int64, which of them.
        observations_TD: (T, D) float32, raw.
        differences_TD: (T, D) float32, the state less it, standardised units.
        distance_T: (T,) float32, the same as a distance.
        weight_T: (T,) float32, its share of the action; None where it has none.
        departure_T: (T,) float32, largest difference of the action and its action, in units of half an action's range.
        places_T: the episode of the dataset and the step in it that it is; None where the dataset is not here.
        spread: distances of demonstrations; None likewise.
    """

    what: str
    known: int
    index_T: npt.NDArray[np.int64]
    observations_TD: npt.NDArray[np.float32]
    differences_TD: npt.NDArray[np.float32]
    distance_T: npt.NDArray[np.float32]
    weight_T: npt.NDArray[np.float32] | None
    departure_T: npt.NDArray[np.float32]
    places_T: list[tuple[int, int]] | None
    spread: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeExplained:
    """An episode, step by step.

    Attributes:
        rollout: what was done, and what came of it.
        task: of the episode.
        method: of the policy.
        observations_TD: (T, D) float32, raw, that it acted on; of images what its encoder made of them.
        images_TX: (T, X) float32, the images, flat; None where observations are none.
        nearest: what it knows nearest to them; None where nothing is known here.
        learned: what the policy learned from; None where that is not here.
        notes: what is missing, in sentences.
    """

    rollout: Rollout
    task: Task
    method: str
    observations_TD: npt.NDArray[np.float32]
    images_TX: npt.NDArray[np.float32] | None
    nearest: Nearest | None
    learned: Learned | None
    notes: tuple[str, ...]


def run_as_evaluated(policy: Policy, task: Task, seed: int) -> Rollout:
    """Run one episode to the bits that it has in an evaluation of the reporting seeds.

    Args:
        policy: acts.
        task: its own.
        seed: of the episode; those below the reporting seeds run as the first of an evaluation.

    Raises:
        SimulationError: the environment fails.
    """
    env = make_environment(task)
    place = (seed - EVALUATION_SEED) % LOCKSTEP if seed >= EVALUATION_SEED else 0
    try:
        (rollout,) = run_episodes(policy, task, [env], [seed], str(policy.card.get("identity")), place)
    finally:
        env.close()
    return rollout


def explain_rollout(policy: Policy, rollout: Rollout, task: Task) -> EpisodeExplained:
    """Run a recorded episode again and explain each action.

    Args:
        policy: that acted.
        rollout: what it did.
        task: of both.

    Raises:
        SimulationError: the environment fails, or the episode is another one now.
        DatasetError: the demonstrations here are damaged.
    """
    env = make_environment(task)
    try:
        seen = see_same(rollout, env)
    finally:
        env.close()
    obs_TD = policy.encode(seen.observations_TD[:-1])
    if obs_TD.shape[1] != policy.observation_dim:
        raise ConfigError(
            f"the policy takes {policy.observation_dim} observation numbers, {task.id} gives {obs_TD.shape[1]}; name "
            "the policy that acted in the episode"
        )
    member = policy.card.get("member")
    method = str(member.get("method") if isinstance(member, dict) else policy.kind)
    found = learned_from(policy)
    learned = None if isinstance(found, str) else found
    notes = [f"{found}: where memories come from is not shown"] if isinstance(found, str) else []
    nearest = None
    if policy.explain(obs_TD[:1]) is not None:
        nearest = _memories(policy, obs_TD, rollout.actions_TA, learned)
        if (planned := int(policy.settings().get("executed", 1))) > 1:
            notes.append(
                f"{method} plans {planned} actions at a time, blended with the memory that is nearest then; at the "
                "steps between, the one shown is nearest to the state and drove no action"
            )
    else:
        notes = [f"{method} has no memories, so none drove its actions"]
        if learned is not None:
            notes[0] += "; beside each state stands the nearest step that it learned from, for comparison"
            nearest = _demonstrated_steps(policy, obs_TD, rollout.actions_TA, learned)
    return EpisodeExplained(
        rollout=rollout,
        task=task,
        method=method,
        observations_TD=obs_TD,
        images_TX=None if policy.encoder is None else seen.observations_TD[:-1],
        nearest=nearest,
        learned=learned,
        notes=tuple(notes),
    )


def _memories(
    policy: Policy, obs_TD: npt.NDArray[np.float32], actions_TA: npt.NDArray[np.float32], learned: Learned | None
) -> Nearest:
    told, arrays = policy.explain(obs_TD), policy.arrays()
    assert told is not None
    known_MD = arrays["memory_observations"]
    rows_M = arrays.get("memory_rows", np.arange(len(known_MD)))  # copies of demonstrations are all of their rows
    index_T = np.argsort(rows_M)[np.searchsorted(np.sort(rows_M), told.row_B)]
    scale_D = np.where(np.isfinite(policy.standardiser.scale_D), policy.standardiser.scale_D, np.float32(0.0))
    raw_TD = known_MD[index_T] * scale_D + policy.standardiser.mean_D
    return Nearest(
        what="memory",
        known=len(known_MD),
        index_T=index_T,
        observations_TD=raw_TD if learned is None else learned.data.observations_ND[told.row_B],
        differences_TD=policy.standardiser(obs_TD) - known_MD[index_T],
        distance_T=told.distance_B,
        weight_T=told.weight_B,
        departure_T=_departure(policy, actions_TA, arrays["memory_actions"][index_T]),
        places_T=None if learned is None else [learned.place_of(int(row)) for row in told.row_B],
        spread=None if learned is None else _spread(Monitor(policy, 0.0), learned),
    )


def _demonstrated_steps(
    policy: Policy, obs_TD: npt.NDArray[np.float32], actions_TA: npt.NDArray[np.float32], learned: Learned
) -> Nearest:
    known_ND = learned.data.observations_ND
    row_T, distance_T = PolicySearch(policy.standardiser(known_ND))(policy.standardiser(obs_TD))
    return Nearest(
        what="demonstrated step",
        known=len(known_ND),
        index_T=row_T,
        observations_TD=known_ND[row_T],
        differences_TD=policy.standardiser(obs_TD) - policy.standardiser(known_ND[row_T]),
        distance_T=distance_T,
        weight_T=None,
        departure_T=_departure(policy, actions_TA, learned.data.actions_NA[row_T]),
        places_T=[learned.place_of(int(row)) for row in row_T],
        spread=_spread(Monitor(policy, 0.0, known_ND), learned),
    )


def _departure(
    policy: Policy, actions_TA: npt.NDArray[np.float32], known_TA: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    half_A = np.float32(0.5) * (policy.action_scale.high_A - policy.action_scale.low_A)
    departure_T: npt.NDArray[np.float32] = np.abs((actions_TA - known_TA) / half_A).max(1)
    return departure_T


def _spread(monitor: Monitor, learned: Learned) -> Spread:
    held_out = len(learned.held_out_E) > 0
    data = learned.whole.take(learned.held_out_E) if held_out else learned.data
    distances = [monitor.distances(data.observations_of(e)) for e in range(data.episodes)]
    enough = held_out and data.episodes >= fewest_episodes(_ALPHA)
    return Spread(
        name=f"{'held-out demonstrations' if held_out else 'demonstrations that it learned from'} of {data.source}",
        held_out=held_out,
        episodes=data.episodes,
        distance_N=np.sort(np.concatenate(distances)),
        threshold=conformal_threshold(distances, _ALPHA) if enough else None,
    )
