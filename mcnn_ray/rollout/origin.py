"""Which policy recorded episodes are of: sweeps leave both side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcnn_ray.artifacts import MANIFEST, content_hash, read_json, verify_manifest
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.rollout.episode import Rollout

__all__ = ["EPISODES", "check_origin", "origin_facts", "policy_beside"]

EPISODES = "episodes.parquet"  # of a member of a sweep, beside the folder `policy`


def policy_beside(records: Path) -> Path | None:
    """Return the policy directory that a sweep leaves beside its episodes, or None."""
    directory = records.parent / "policy"
    return directory if (directory / "policy.json").is_file() else None


def check_origin(rollouts: Sequence[Rollout], identity: object, directory: Path, records: Path) -> None:
    """Hold episodes against the policy that is said to have acted.

    Args:
        rollouts: of one member.
        identity: of the policy's member, from its card.
        directory: of the policy.
        records: the file that holds the episodes.

    Raises:
        ConfigError: another one acted, or several did.
    """
    others = sorted({rollout.record.member for rollout in rollouts} - {identity})
    if others:
        raise ConfigError(
            f"{records} holds episodes of {', '.join(others)}, not of {identity}, which is in {directory}; name the "
            "policy that acted"
        )


def origin_facts(rollouts: Sequence[Rollout], directory: Path | None, records: Path) -> dict[str, Any]:
    """Return which policy acted in episodes, as JSON values: its member, method, dataset, and a hash of its files.

    Args:
        rollouts: at least one.
        directory: of the policy that acted, or None where it is not known.
        records: the file that holds the episodes.

    Raises:
        ConfigError: the episodes are of several members or tasks, or of another policy.
        ArtifactError: the policy directory is damaged.
    """
    kinds = {(rollout.record.member, rollout.record.task) for rollout in rollouts}
    if len(kinds) > 1:
        raise ConfigError(f"{records} holds episodes of {len(kinds)} members or tasks; a dataset is of one")
    if directory is None:
        return {"policy_sha256": None}
    verify_manifest(directory)
    card = read_json(directory / "policy.json").get("card")
    if not isinstance(card, dict) or not isinstance(card.get("member"), dict):
        raise ArtifactError(f"{directory / 'policy.json'} does not say what the policy is; train it again")
    check_origin(rollouts, card.get("identity"), directory, records)
    return {
        "method": card["member"].get("method"),
        "policy": card["member"],
        "learned_from": card.get("dataset"),
        # Of the sums of its files, so that any number in them changes it.
        "policy_sha256": content_hash(read_json(directory / MANIFEST)["sha256"]),
    }
