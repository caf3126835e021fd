"""Reading policy directories: JSON and safetensors only, so nothing in them can run, nor name what does unasked."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from mcnn_ray.artifacts import read_json, read_tensors, verify_manifest
from mcnn_ray.core.normalise import ActionScale, Standardiser
from mcnn_ray.errors import ArtifactError
from mcnn_ray.policies.base import FORMAT, Policy
from mcnn_ray.policies.implicit import ImplicitPolicy
from mcnn_ray.policies.mlp import MlpPolicy
from mcnn_ray.policies.nearest import NearestPolicy

__all__ = ["load_policy"]

_KINDS: dict[str, type[Policy]] = {kind.kind: kind for kind in (MlpPolicy, NearestPolicy, ImplicitPolicy)}
_MODULE = "module"
# Kinds that need torch, whose import would take half the time of a rollout process to start.
_TORCH = {
    _MODULE: "mcnn_ray.policies.module:ModulePolicy",
    "bet": "mcnn_ray.policies.bet:BetPolicy",
    "diffusion": "mcnn_ray.policies.diffusion:DiffusionPolicy",
    "lstm-gmm": "mcnn_ray.policies.lstm_gmm:LstmGmmPolicy",
}


def load_policy(directory: Path, backbone: str | None = None) -> Policy:
    """Read a policy directory.

    Args:
        directory: as written by `save_policy`.
        backbone: dotted name of the one class of a user's own that may be imported, where the policy was trained with
            it; others ignore it.

    Raises:
        ArtifactError: missing, damaged, of another format, with arrays that do not belong together, or with a network
            of a user's own that `backbone` does not name.
        ConfigError: the class cannot be imported or used.
    """
    if not (directory / "policy.json").is_file():
        raise ArtifactError(f"{directory} is not a policy directory: it has no policy.json")
    verify_manifest(directory)
    description = read_json(directory / "policy.json")
    if description.get("format") != FORMAT:
        raise ArtifactError(
            f"{directory} has the policy format {description.get('format')}, this version reads {FORMAT}; "
            "train the policy again"
        )
    name = str(description.get("kind"))
    if name == _MODULE:
        _check_consent(directory, description, backbone)
    kind: type[Policy] | None = resolve_name(_TORCH[name]) if name in _TORCH else _KINDS.get(name)
    if kind is None:
        raise ArtifactError(f"{directory} holds a policy of kind '{name}'; known: {', '.join((*_KINDS, *_TORCH))}")
    arrays = read_tensors(directory / "policy.safetensors")
    try:
        policy = kind.from_parts(
            dict(description["card"]),
            Standardiser(mean_D=arrays["observation_mean"], scale_D=arrays["observation_scale"]),
            ActionScale(low_A=arrays["action_low"], high_A=arrays["action_high"]),
            arrays,
            description["settings"],
        )
        if "encoder" in description:
            read_weights = resolve_name("mcnn_ray.encoders.encoder:Encoder.read_weights")
            policy.encoder = read_weights(directory, description["encoder"])
        # One action shows that the arrays fit each other.
        width = policy.observation_dim if policy.encoder is None else policy.encoder.inputs
        action_BA, _ = policy.act(policy.encode(np.zeros((1, width), dtype=np.float32)))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ArtifactError(
            f"{directory} lacks a part or its parts do not fit ({error!r}); train the policy again"
        ) from error
    if action_BA.shape != (1, policy.action_dim):
        raise ArtifactError(f"{directory} gives actions of shape {action_BA.shape}, expected (1, {policy.action_dim})")
    return policy


def _check_consent(directory: Path, description: dict[str, Any], backbone: str | None) -> None:
    """Refuse to run code that only the directory names: whoever loads a policy need not have written it."""
    try:
        name = str(description["settings"]["backbone"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{directory} does not name its backbone; train the policy again") from error
    if backbone != name:
        given = "" if backbone is None else f", not {backbone}"
        raise ArtifactError(
            f"{directory} was trained with the backbone {name}{given}; pass --backbone {name} if you trust that module"
        )
