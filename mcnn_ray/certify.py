"""Certifying policies: the states over which the guarantee is checked, from policy directories and demonstrations.

Shapes: N states, M memories, D observation numbers, A action numbers, B states that act at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.certificate import Certificate, MemoryFunction, check_states, inexact_memories
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.data.demonstrations import Demonstrations
from mcnn_ray.data.minari_store import dataset_exists, read_minari
from mcnn_ray.errors import ArtifactError, ConfigError, DatasetError, McnnError
from mcnn_ray.policies.base import Policy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.tasks.catalogue import find_task

__all__ = ["certificate_of", "certify_directories", "memory_function", "random_states"]

Float32Array = npt.NDArray[np.float32]
Advance = Callable[[int], None]  # actions taken since the last call
Watch = Callable[[str, float, float], None]  # a stage, what is done of it, what there is in all

_ACT = 4096  # states that act at once: bounds the memory of hidden layers, and how rarely progress shows
_EXPERT = ("demonstrations", "held-out demonstrations")  # sets of states that the expert visited
_WIDENED = 0.5  # of the bounding box, as a share of its width, half of it on each side
_NOISE_DECADES = (-4.0, 1.0)  # standard deviations of 1e-4 to 10 standardised units: weights of 1 to 0 at any lambda


def certificate_of(policies: Sequence[Policy], observations_ND: npt.NDArray[Any]) -> Certificate:
    """Certify policies of one setting over given states of the expert, e.g. the members of a sweep that differ in seed.

    Args:
        policies: one or more that share memories, lambda and L; several also give the measured width.
        observations_ND: (N, D) raw observations of the demonstrations, N >= 1.

    Raises:
        McnnError: a policy has no memories, and so no certificate.
        ConfigError: the policies do not belong together.
    """
    names = [f"policy {i} of {policy.card.get('task')}" for i, policy in enumerate(policies)]
    functions = _functions(policies, names, lambda done: None)
    return _certify(policies[0], functions, {_EXPERT[0]: policies[0].standardiser(observations_ND)}, [])


def certify_directories(
    directories: Sequence[Path],
    *,
    states: int = 10_000,
    seed: int = 0,
    rollouts_ND: npt.NDArray[Any] | None = None,
    watch: Watch | None = None,
) -> Certificate:
    """Certify one policy directory, or several that share memories, lambda and L and differ in seed.

    Checked are the memories, `states` random states of each distribution of `random_states`, and, as far as they are at
    hand, the demonstrations that the policy learned from, those held out from it, and rollouts.

    Args:
        directories: one or more.
        states: random states of each distribution, at least 1.
        seed: of the random states.
        rollouts_ND: (N, D) raw observations seen in rollouts, or None.
        watch: told of progress.

    Raises:
        ArtifactError: not a policy directory, or a damaged one.
        McnnError: a policy has no memories, and so no certificate.
        ConfigError: the policies do not belong together.
        DatasetError: the demonstrations here are damaged, or the rollouts do not fit the policy.
    """
    policies = [load_policy(directory) for directory in directories]
    done, total = 0, 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if watch is not None:
            watch("certificate, actions", done, total)

    functions = _functions(policies, [str(directory) for directory in directories], advance)
    observed, notes = _demonstrated(policies[0])
    if rollouts_ND is not None:
        observed["rollouts"] = _checked_rollouts(rollouts_ND, policies[0])
    checked = {name: policies[0].standardiser(obs_ND) for name, obs_ND in observed.items()}
    memories_MD = functions[0].memories_MD
    ignored_D = ~np.isfinite(policies[0].standardiser.scale_D)
    checked |= random_states(memories_MD, checked.get(_EXPERT[0], memories_MD), ignored_D, states, seed)
    total = len(functions) * (len(memories_MD) + sum(map(len, checked.values())))
    return _certify(policies[0], functions, checked, notes)


def memory_function(policy: Policy, name: str, advance: Advance) -> MemoryFunction:
    """Return a policy as the paper sees it.

    1-nearest-neighbour is the case lambda = 0: every demonstration is a memory, and a network has no part.

    Args:
        policy: with memories.
        name: for errors.
        advance: called with the actions taken since the last call.

    Raises:
        McnnError: the policy has no memories.
        ArtifactError: its memories, lambda or L cannot be.
    """
    settings, arrays = policy.settings(), policy.arrays()
    if isinstance(policy, NearestPolicy):
        lambda_, L = 0.0, 1.0
    elif "lambda" in settings and "memory_observations" in arrays:
        lambda_, L = float(settings["lambda"]), float(settings["L"])
    else:
        raise McnnError(
            f"{name} has no certificate: without memories (kind '{policy.kind}', plain behaviour cloning) a policy has "
            "nothing to be consistent with; certify one of mcnn+mlp or 1nn"
        )
    memories_MD, actions_MA = arrays["memory_observations"], arrays["memory_actions"]
    if not (math.isfinite(lambda_) and lambda_ >= 0 and math.isfinite(L) and L > 0):
        raise ArtifactError(
            f"{name} has lambda {lambda_:g} and L {L:g}, expected at least 0 and above 0; train it again"
        )
    if not (np.isfinite(memories_MD).all() and np.isfinite(actions_MA).all()):
        raise ArtifactError(f"{name} has memories with NaN or infinite numbers; train it again")
    # The policy as it acts, entered behind its standardiser: a memory scaled back and forth would not be the same bits.
    inner = copy.copy(policy)
    inner.standardiser = Standardiser(mean_D=np.zeros_like(memories_MD[0]), scale_D=np.ones_like(memories_MD[0]))

    def act(obs_ND: Float32Array) -> Float32Array:
        parts = []
        for start in range(0, len(obs_ND), _ACT):
            actions_BA, _ = inner.act(obs_ND[start : start + _ACT])
            advance(len(actions_BA))
            parts.append(actions_BA)
        return np.concatenate(parts)

    return MemoryFunction(
        act=act,
        memories_MD=memories_MD,
        actions_MA=actions_MA,
        action_scale=policy.action_scale,
        lambda_=lambda_,
        L=L,
    )


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


def _certify(
    policy: Policy, functions: Sequence[MemoryFunction], states: Mapping[str, Float32Array], notes: Sequence[str]
) -> Certificate:
    exactness = [inexact_memories(function) for function in functions]
    checked = tuple(check_states(functions, name, obs_ND) for name, obs_ND in states.items())
    return Certificate(
        functions=len(functions),
        memories=len(functions[0].memories_MD),
        repeated_memories=exactness[0][1],
        lambda_=functions[0].lambda_,
        L=functions[0].L,
        inexact_memories=sum(inexact for inexact, _ in exactness),
        checked=checked,
        expert_distance=max((found.most_isolated_distance for found in checked if found.name in _EXPERT), default=None),
        horizon=_horizon(policy.card),
        discrete_actions=None,  # every policy here gives continuous actions
        notes=tuple(notes),
    )


def _functions(policies: Sequence[Policy], names: Sequence[str], advance: Advance) -> list[MemoryFunction]:
    """Return the policies' functions, which share everything but the network.

    Raises:
        ConfigError: they do not.
    """
    functions = [memory_function(policy, name, advance) for policy, name in zip(policies, names, strict=True)]
    shared = dict(_shared(policies[0], functions[0]))
    for policy, function, name in zip(policies, functions, names, strict=True):
        for what, value in _shared(policy, function):
            if not np.array_equal(value, shared[what]):
                raise ConfigError(
                    f"{names[0]} and {name} differ in {what}; policies certified together share memories, lambda and L "
                    "and differ in seed, so certify these one by one"
                )
    return functions


def _shared(policy: Policy, function: MemoryFunction) -> Iterator[tuple[str, Any]]:
    yield "lambda", function.lambda_
    yield "L", function.L
    yield "the bounds of actions", [function.action_scale.low_A, function.action_scale.high_A]
    yield "the scale of observations", [policy.standardiser.mean_D, policy.standardiser.scale_D]
    yield "their memories", function.memories_MD
    yield "the actions of their memories", function.actions_MA


def _horizon(card: Mapping[str, Any]) -> int | None:
    try:
        return find_task(str(card.get("task"))).horizon
    except ConfigError:
        return None


def _checked_rollouts(obs_ND: npt.NDArray[Any], policy: Policy) -> npt.NDArray[Any]:
    if obs_ND.ndim != 2 or obs_ND.shape[1] != policy.observation_dim or len(obs_ND) == 0:
        raise DatasetError(
            f"the rollouts have the shape {obs_ND.shape}, expected one or more rows of {policy.observation_dim} "
            "numbers; roll the policy out in its own task"
        )
    if not np.isfinite(obs_ND).all():
        raise DatasetError("the rollouts have NaN or infinite observations; leave those episodes out")
    return obs_ND


def _demonstrated(policy: Policy) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Return the raw observations that the policy learned from and those held out, and what is missing, in words."""
    named = policy.card.get("dataset")
    if not isinstance(named, dict) or not isinstance(named.get("episodes"), int) or "source" not in named:
        return {}, ["the policy does not name its demonstrations: only memories and random states were checked"]
    source = str(named["source"])
    if not dataset_exists(source):
        return {}, [f"{source} is not on this machine: only memories and random states were checked"]
    whole = read_minari(source)
    for data in _versions(whole, policy.action_scale):
        learned = data.subset(named["episodes"]) if 1 <= named["episodes"] < data.episodes else data
        if learned.sha256 == named.get("sha256"):
            held_out_ND = _without(data, learned)
            if len(held_out_ND) == 0:
                return {_EXPERT[0]: learned.observations_ND}, [f"none of {source} was held out"]
            return {_EXPERT[0]: learned.observations_ND, _EXPERT[1]: held_out_ND}, []
    return {}, [
        f"{source} on this machine is not what the policy learned from (sha256 {whole.sha256[:12]}, then "
        f"{str(named.get('sha256'))[:12]}): only memories and random states were checked"
    ]


def _versions(whole: Demonstrations, scale: ActionScale) -> Iterator[Demonstrations]:
    """Yield the demonstrations as recorded and, where that differs, with actions clipped (`--clip-actions`)."""
    yield whole
    if whole.actions_NA.shape[1] == len(scale.low_A):
        clipped = whole.check_actions(scale.low_A, scale.high_A, clip=True)
        if clipped is not whole:
            yield clipped


def _without(data: Demonstrations, learned: Demonstrations) -> Float32Array:
    """Return the observations of the episodes of `data` that are not, number for number, episodes of `learned`."""
    known = {key for key, _ in _episodes(learned)}
    held_out = [obs_TD for key, obs_TD in _episodes(data) if key not in known]
    return np.concatenate(held_out) if held_out else data.observations_ND[:0]


def _episodes(data: Demonstrations) -> Iterator[tuple[tuple[bytes, bytes], Float32Array]]:
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        obs_TD = data.observations_ND[start:stop]
        yield (obs_TD.tobytes(), data.actions_NA[start:stop].tobytes()), obs_TD
