"""Policies of members: what they were trained to, with the memories, scales and origin that come with it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mcnn_ray.core.normalise import Standardiser
from mcnn_ray.errors import ConfigError
from mcnn_ray.member import Member
from mcnn_ray.policies.base import Policy
from mcnn_ray.policies.bet import BetPolicy
from mcnn_ray.policies.blended import Memories
from mcnn_ray.policies.diffusion import DiffusionPolicy
from mcnn_ray.policies.implicit import ImplicitPolicy
from mcnn_ray.policies.lstm_gmm import LstmGmmPolicy
from mcnn_ray.policies.mlp import MlpPolicy, mlp_layers
from mcnn_ray.policies.module import ModulePolicy
from mcnn_ray.policies.nearest import NearestPolicy
from mcnn_ray.training.chunks import action_places

if TYPE_CHECKING:
    from mcnn_ray.sweep.study import Study

__all__ = ["make_policy"]


def make_policy(
    study: Study, member: Member, parameters: Mapping[str, npt.NDArray[np.float32]] | None = None
) -> Policy:
    """Build a member's policy.

    Args:
        study: what it learned from.
        member: what it is.
        parameters: of its trained network, as `Pack.parameters` gives them; None for methods without one.
    """
    card = _card(study, member)
    policy = _nearest(study, member, card) if parameters is None else _trained(study, member, card, parameters)
    policy.encoder = study.encoder
    return policy


def _trained(
    study: Study, member: Member, card: dict[str, Any], parameters: Mapping[str, npt.NDArray[np.float32]]
) -> Policy:
    if member.family == "ibc":
        return ImplicitPolicy.from_parts(
            card, study.standardiser, study.action_scale, dict(parameters), dict(member.options)
        )
    if member.family == "lstm-gmm":
        return LstmGmmPolicy(card, study.standardiser, study.action_scale, dict(member.options), parameters)
    memories = None
    if member.memory_key is not None and member.lambda_ is not None and member.L is not None:
        rows_M = study.codebooks[member.memory_key[:3]].rows_M
        memories = Memories(
            observations_MD=study.obs_ND[rows_M],
            actions_MA=study.memory_actions(member.memory_key),
            rows_M=rows_M,
            lambda_=member.lambda_ / study.distance_unit(member.memory_key),
            L=member.L,
        )
    if member.family == "bet":
        options = dict(member.options)
        return BetPolicy(card, study.standardiser, study.action_scale, options, parameters, memories)
    if member.family == "diffusion":
        return _diffusion(study, member, card, parameters, memories)
    if member.backbone is not None:
        return ModulePolicy(card, study.standardiser, study.action_scale, member.backbone, parameters, memories)
    return MlpPolicy(card, study.standardiser, study.action_scale, mlp_layers(parameters), memories)


def _diffusion(
    study: Study,
    member: Member,
    card: dict[str, Any],
    parameters: Mapping[str, npt.NDArray[np.float32]],
    memories: Memories | None,
) -> DiffusionPolicy:
    options, chunks_MPA = dict(member.options), None
    if member.memory_key is not None:
        places_P = action_places(int(member.option("observed")), int(member.option("predicted")))
        chunks_MPA = study.memory_chunks(member.memory_key, places_P)
    return DiffusionPolicy(card, study.standardiser, study.action_scale, options, parameters, memories, chunks_MPA)


def _nearest(study: Study, member: Member, card: dict[str, Any]) -> NearestPolicy:
    standardiser, obs_ND = study.standardiser, study.obs_ND
    if member.option("observations") == "raw":
        obs_ND = study.demonstrations.observations_ND
        standardiser = Standardiser(
            mean_D=np.zeros_like(standardiser.mean_D), scale_D=np.ones_like(standardiser.scale_D)
        )
    neighbours = int(dict(member.options).get("neighbours", 1))
    if neighbours > len(obs_ND):
        raise ConfigError(
            f"option neighbours is {neighbours}, but {study.demonstrations.source} has {len(obs_ND)} steps; ask for "
            "fewer"
        )
    return NearestPolicy(card, standardiser, study.action_scale, obs_ND, study.demonstrations.actions_NA, neighbours)


def _card(study: Study, member: Member) -> dict[str, Any]:
    """Return where a policy comes from, for its directory."""
    return {
        "task": study.task.id,
        "member": member.parameters(),
        "identity": study.identity(member),
        "dataset": {
            "source": study.demonstrations.source,
            "sha256": study.demonstrations.sha256,
            "episodes": study.demonstrations.episodes,
            "steps": study.demonstrations.steps,
        },
        **({} if study.encoder is None else {"encoder": study.encoder.description()}),
        "versions": {name: importlib.metadata.version(name) for name in ("mcnn-ray", "torch", "numpy")},
    }
