"""Rolling out one policy directory."""

from __future__ import annotations

from pathlib import Path

from mcnn_ray.errors import ArtifactError
from mcnn_ray.member import Member
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.report.results import Row, summarise
from mcnn_ray.rollout.episode import EVALUATION_SEED, EpisodeRecord
from mcnn_ray.rollout.pool import evaluate
from mcnn_ray.sweep.cluster import cluster_cpus, ray_session
from mcnn_ray.sweep.runner import Watcher
from mcnn_ray.tasks.catalogue import find_task

__all__ = ["evaluate_policy"]


def evaluate_policy(
    directory: Path, episodes: int, actors: int | None, first_seed: int | None, watch: Watcher
) -> tuple[Row, list[EpisodeRecord]]:
    """Roll a policy out in the task it was trained for.

    Args:
        directory: of the policy.
        episodes: how many, at least 1.
        actors: how many run at once; None takes one per CPU.
        first_seed: seed of the first episode; None takes the reporting seeds.
        watch: told of progress.

    Returns:
        The result with its intervals; the episodes in the order of their seeds.

    Raises:
        ArtifactError: not a policy directory, or a damaged one.
        SimulationError: an episode cannot be run.
    """
    card = load_policy(directory).card
    try:
        task, identity = find_task(card["task"]), str(card["identity"])
        member = Member.from_parameters(card["member"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{directory / 'policy.json'} does not say what the policy is ({error!r})") from error
    start = EVALUATION_SEED if first_seed is None else first_seed
    with ray_session():
        records = evaluate(
            task,
            {identity: directory},
            range(start, start + episodes),
            actors=min(actors or cluster_cpus(), cluster_cpus()),
            progress=lambda done, total: watch("rollouts, episodes", done, total),
        )
    return summarise({identity: member}, {identity: records})[0], records
