"""Certifying policies, those of a sweep's setting or those in directories.

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

from mcnn_ray.certified_states import (
    ALL_DEMONSTRATED,
    DEMONSTRATED,
    HELD_OUT,
    checked_rollouts,
    demonstrated_states,
    random_states,
    recorded_rollouts,
)
from mcnn_ray.core.certificate import Certificate, Isolation
from mcnn_ray.core.consistency import MemoryFunction, check_states, inexact_memories
from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.errors import ArtifactError, ConfigError, McnnError
from mcnn_ray.policies.base import Policy
from mcnn_ray.policies.blended import MemoryPolicy
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.tasks.catalogue import find_task

__all__ = ["certificate_of", "certify_directories", "memory_function"]

Float32Array = npt.NDArray[np.float32]
Advance = Callable[[int], None]  # actions taken since the last call
Watch = Callable[[str, float, float], None]  # a stage, what is done of it, what there is in all

_ACT = 4096  # states that act at once: bounds the memory of hidden layers, and how rarely progress shows


def certificate_of(
    policies: Sequence[Policy],
    observations_ND: npt.NDArray[Any],
    *,
    held_out_ND: npt.NDArray[Any] | None = None,
    sample: int | None = None,
    isolation: Sequence[Isolation] = (),
) -> Certificate:
    """Certify policies of one setting over given states of the expert, e.g. the members of a sweep that differ in seed.

    Args:
        policies: one or more that share memories, lambda and L; several also give the measured width.
        observations_ND: (N, D) raw observations of the demonstrations, N >= 1.
        held_out_ND: (N, D) raw observations of demonstrations that the policies did not learn from, or None.
        sample: states of each set that are checked, evenly spaced; None checks all.
        isolation: distances of further sets, already measured.

    Raises:
        McnnError: a policy has no memories, and so no certificate.
        ConfigError: the policies do not belong together.
    """
    names = [f"policy {i} of {policy.card.get('task')}" for i, policy in enumerate(policies)]
    functions = _functions(policies, names, lambda done: None)
    sets = {DEMONSTRATED: observations_ND}
    if held_out_ND is not None and len(held_out_ND):
        sets[HELD_OUT] = held_out_ND
    states = {name: policies[0].standardiser(_spread(obs_ND, sample)) for name, obs_ND in sets.items()}
    sizes = {name: len(obs_ND) for name, obs_ND in sets.items()}
    return _certify(policies[0], functions, states, isolation=isolation, sizes=sizes)


def _spread(obs_ND: npt.NDArray[Any], count: int | None) -> npt.NDArray[Any]:
    """Return so many rows at most, evenly spaced."""
    return obs_ND if count is None else obs_ND[:: -(-len(obs_ND) // count)]


def certify_directories(
    directories: Sequence[Path],
    *,
    states: int = 10_000,
    seed: int = 0,
    rollouts_ND: npt.NDArray[Any] | None = None,
    backbone: str | None = None,
    watch: Watch | None = None,
) -> Certificate:
    """Certify one policy directory, or several that share memories, lambda and L and differ in seed.

    Checked are the memories, `states` random states of each distribution of `random_states`, and, as far as they are at
    hand, the demonstrations that the policy learned from, those held out from it, and rollouts. Where a sweep left
    episode records beside a policy, they tell how far its rollouts went from the memories.

    Args:
        directories: one or more.
        states: random states of each distribution, at least 1.
        seed: of the random states.
        rollouts_ND: (N, D) raw observations seen in rollouts, or None.
        backbone: dotted name of the class of a user's own that policies may import; see `load_policy`.
        watch: told of progress.

    Raises:
        ArtifactError: not a policy directory, or a damaged one.
        McnnError: a policy has no memories, and so no certificate.
        ConfigError: the policies do not belong together.
        DatasetError: the demonstrations here are damaged, or the rollouts do not fit the policy.
    """
    policies = [load_policy(directory, backbone) for directory in directories]
    done, total = 0, 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if watch is not None:
            watch("certificate, actions", done, total)

    functions = _functions(policies, [str(directory) for directory in directories], advance)
    observed, notes = demonstrated_states(policies[0])
    if rollouts_ND is not None:
        observed["rollouts"] = checked_rollouts(rollouts_ND, policies[0])
    checked = {name: policies[0].standardiser(obs_ND) for name, obs_ND in observed.items()}
    memories_MD = functions[0].memories_MD
    ignored_D = ~np.isfinite(policies[0].standardiser.scale_D)
    checked |= random_states(memories_MD, checked.get(DEMONSTRATED, memories_MD), ignored_D, states, seed)
    total = len(functions) * (len(memories_MD) + sum(map(len, checked.values())))
    isolation, unread = recorded_rollouts(directories)
    return _certify(policies[0], functions, checked, isolation=isolation, notes=[*notes, *unread])


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
    arrays = policy.arrays()
    if isinstance(policy, NearestPolicy):
        lambda_, L = 0.0, 1.0
    elif isinstance(policy, MemoryPolicy) and policy.memories is not None:
        lambda_, L = policy.memories.lambda_, policy.bound
    else:
        raise McnnError(
            f"{name} has no certificate: without memories (kind '{policy.kind}', plain behaviour cloning) a policy has "
            "nothing to be consistent with; certify one of mcnn+mlp, mcnn+bet, mcnn+diff or 1nn"
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


def _certify(
    policy: Policy,
    functions: Sequence[MemoryFunction],
    states: Mapping[str, Float32Array],
    *,
    isolation: Sequence[Isolation],
    sizes: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> Certificate:
    exactness = [inexact_memories(function) for function in functions]
    checked = tuple(check_states(functions, name, obs_ND, (sizes or {}).get(name)) for name, obs_ND in states.items())
    distances = [(found.name, found.most_isolated_distance) for found in checked]
    distances += [(found.name, found.most_isolated_distance) for found in isolation]
    expert = [distance for name, distance in distances if name in (DEMONSTRATED, ALL_DEMONSTRATED, HELD_OUT)]
    return Certificate(
        functions=len(functions),
        memories=len(functions[0].memories_MD),
        repeated_memories=exactness[0][1],
        lambda_=functions[0].lambda_,
        L=functions[0].L,
        inexact_memories=sum(inexact for inexact, _ in exactness),
        checked=checked,
        isolation=tuple(isolation),
        expert_distance=max(expert, default=None),
        horizon=_horizon(policy.card),
        discrete_actions=None,  # every policy here gives continuous actions
        notes=(*([policy.cone_note] if isinstance(policy, MemoryPolicy) and policy.cone_note else []), *notes),
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
