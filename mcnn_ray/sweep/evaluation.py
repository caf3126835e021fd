"""Rolling out one policy directory."""

from __future__ import annotations

import logging
from pathlib import Path

from mcnn_ray.errors import ArtifactError, SimulationError
from mcnn_ray.member import IDENTITY, Member
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.report.results import Row, summarise
from mcnn_ray.rollout.episode import EVALUATION_SEED, Rollout
from mcnn_ray.rollout.outcome import EpisodeError, Evaluation
from mcnn_ray.rollout.pool import evaluate
from mcnn_ray.sweep.cluster import cluster_cpus, cluster_gpus, ray_session
from mcnn_ray.sweep.runner import Watcher
from mcnn_ray.tasks.catalogue import find_recorded_task

__all__ = ["evaluate_policy", "new_rollouts"]

logger = logging.getLogger(__name__)


def evaluate_policy(
    directory: Path,
    episodes: int,
    actors: int | None,
    first_seed: int | None,
    watch: Watcher,
    backbone: str | None = None,
    trusted_module: str | None = None,
) -> tuple[Row, Evaluation, EpisodeError | None]:
    """Roll a policy out in the task it was trained for.

    Args:
        directory: of the policy.
        episodes: how many, at least 1.
        actors: how many run at once; None takes one per CPU.
        first_seed: seed of the first episode; None takes the reporting seeds.
        watch: told of progress.
        backbone: dotted name of the class of a user's own that the policy may import; see `load_policy`.
        trusted_module: that the environment may be imported from; see `find_recorded_task`.

    Returns:
        The result with its intervals; the episodes in the order of their seeds, and those lost; the fault of the
        environment that ended the evaluation before all had run, if one did.

    Raises:
        ArtifactError: not a policy directory, or a damaged one.
        ConfigError: the backbone cannot be imported or used.
        SimulationError: no episode can be run.
    """
    policy = load_policy(directory, backbone)
    card = policy.card
    try:
        task, identity = find_recorded_task(card["task"], trusted_module, directory), str(card["identity"])
        member = Member.from_parameters(card["member"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{directory / 'policy.json'} does not say what the policy is ({error!r})") from error
    if not IDENTITY.fullmatch(identity):  # it names folders
        raise ArtifactError(f"{directory / 'policy.json'} has the identity {identity!r}; expected 12 hex digits")
    start = EVALUATION_SEED if first_seed is None else first_seed
    with ray_session(task, backbone):
        most = cluster_cpus()
        if actors is not None and actors > most:
            logger.warning("%d actors are asked for, but there are %d CPUs: %d run at once", actors, most, most)
        fault = None
        try:
            evaluation = evaluate(
                task,
                {identity: directory},
                range(start, start + episodes),
                actors=min(actors or most, most),
                gpus=cluster_gpus() if backbone or policy.encoder is not None else 0,
                backbone=backbone,
                progress=lambda done, total: watch("rollouts, episodes", done, total),
            )
        except EpisodeError as error:
            evaluation, fault = error.evaluation, error
    if not evaluation.rollouts:
        raise fault or SimulationError(f"every episode was lost: {evaluation.lost[0].reason}")
    records = [rollout.record for rollout in evaluation.rollouts]
    run = len(records) + len(evaluation.lost)
    return summarise({identity: member}, {identity: records}, {identity: run})[0], evaluation, fault


def new_rollouts(
    directory: Path, episodes: int, watch: Watcher, backbone: str | None = None, trusted_module: str | None = None
) -> list[Rollout]:
    """Roll a policy out and return its episodes alone; see `evaluate_policy`.

    Raises:
        SimulationError: the environment failed in any of them.
    """
    _, evaluation, fault = evaluate_policy(directory, episodes, None, None, watch, backbone, trusted_module)
    if fault is not None:
        raise fault
    return evaluation.rollouts
