"""Certifying the settings of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mcnn_ray.certified_states import ALL_DEMONSTRATED, held_out_states, rollout_isolation
from mcnn_ray.certify import certificate_of
from mcnn_ray.core.certificate import Certificate, Isolation
from mcnn_ray.member import CodebookKey
from mcnn_ray.policies.loading import load_policy
from mcnn_ray.rollout.episode import EpisodeRecord
from mcnn_ray.sweep.plan import SweepPlan
from mcnn_ray.sweep.studies import Studies

__all__ = ["certify_settings"]

_CERTIFIED_STATES = 2000  # demonstrations, evenly spaced; `mcnn certify` checks all and more


def certify_settings(
    plan: SweepPlan,
    studies: Studies,
    records: Mapping[str, Sequence[EpisodeRecord]],
    tell: Callable[[str, float, float], None],
) -> dict[str, Certificate]:
    """Certify each setting with a codebook.

    Actions are checked at its memories and over a sample of the demonstrations, and of those held out where members
    learn from a part. How far the states lie from the memories is also told over all demonstrations and all rollouts.

    Args:
        plan: of the sweep.
        studies: what its members learn from, with their codebooks.
        records: identity to its episodes, of the members to certify.
        tell: told of progress.
    """
    settings: dict[tuple[str, CodebookKey], list[str]] = {}
    for identity in records:
        member = plan.members[identity]
        if member.memory_key is not None and member.codebook_key is not None:
            settings.setdefault((member.setting_label, member.codebook_key), []).append(identity)
    certificates = {}
    for done, ((label, codebook_key), identities) in enumerate(settings.items()):
        policies = [load_policy(plan.policy(identity), plan.members[identity].backbone) for identity in identities]
        member = plan.members[identities[0]]
        learned = studies.of(member).demonstrations
        demonstrated = Isolation(
            name=ALL_DEMONSTRATED,
            episodes=learned.episodes,
            states=learned.steps,
            most_isolated_distance=studies.of(member).codebooks[codebook_key].most_isolated_distance,
        )
        certificates[label] = certificate_of(
            policies,
            learned.observations_ND,
            held_out_ND=held_out_states(studies.demonstrations, learned) if member.demonstrations is not None else None,
            sample=_CERTIFIED_STATES,
            isolation=[demonstrated, *rollout_isolation([r for identity in identities for r in records[identity]])],
        )
        tell("certificates", done + 1, len(settings))
    return certificates
