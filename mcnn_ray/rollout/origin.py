"""Which policy recorded episodes are of: sweeps leave both side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcnn_ray.artifacts import content_hash, read_json
from mcnn_ray.errors import ConfigError
from mcnn_ray.policies.base import Policy
from mcnn_ray.rollout.episode import Rollout

__all__ = ["EPISODES", "check_origin", "policy_beside", "policy_hash"]

EPISODES = "episodes.parquet"  # of a member of a sweep, beside the folder `policy`


def policy_beside(records: Path) -> Path | None:
    """Return the policy directory that a sweep leaves beside its episodes, or None."""
    directory = records.parent / "policy"
    return directory if (directory / "policy.json").is_file() else None


def check_origin(rollouts: Sequence[Rollout], policy: Policy, directory: Path, records: Path) -> None:
    """Hold episodes against the policy that is said to have acted.

    Raises:
        ConfigError: another one did.
    """
    others = {rollout.record.member for rollout in rollouts} - {policy.card.get("identity")}
    if others:
        raise ConfigError(
            f"{records} holds episodes of {', '.join(sorted(others))}, not of {policy.card.get('identity')}, which is "
            f"in {directory}; name the policy that acted"
        )


def policy_hash(directory: Path) -> str:
    """Return the sha256 of a policy: of its files' sums, so that it changes with any number in them."""
    return content_hash(read_json(directory / "manifest.json")["sha256"])
