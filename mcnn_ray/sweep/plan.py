"""Which members go into which pack, kept on disk so that a continued sweep finds its checkpoints."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcnn_ray.artifacts import content_hash, read_json, verify_manifest, write_json
from mcnn_ray.errors import ArtifactError, ConfigError
from mcnn_ray.member import IDENTITY, Member
from mcnn_ray.sweep.studies import Studies

__all__ = ["EarlierStart", "PlannedPack", "SweepPlan", "earlier_start", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPack:
    """Members to be trained together.

    Attributes:
        id: names the pack's folder.
        members: identity to member.
    """

    id: str
    members: dict[str, Member]

    @property
    def member_steps(self) -> int:
        """Steps of all its members together."""
        return sum(member.steps for member in self.members.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A sweep's members and packs, and where its files lie.

    Attributes:
        id: of the sweep's folder, drawn when it was made.
        folder: of the sweep.
        members: identity to member, in the order of the configuration.
        packs: of the trained members.
        unreported: identity to why a member has no row: it was stopped on its way, or another setting was chosen.
    """

    id: str
    folder: Path
    members: dict[str, Member]
    packs: list[PlannedPack]
    unreported: dict[str, str] = field(default_factory=dict)

    def policy(self, identity: str) -> Path:
        """Return the policy directory of a member."""
        return self.folder / "members" / identity / "policy"

    def curve(self, identity: str) -> Path:
        """Return the file of a member's learning curve."""
        return self.folder / "members" / identity / "curve.json"

    def failure(self, identity: str) -> Path:
        """Return the file that says why a member's training ended early; most members have none."""
        return self.folder / "members" / identity / "failure.json"

    def evaluations(self, identity: str) -> Path:
        """Return the file of a member's evaluations while it was training."""
        return self.folder / "members" / identity / "evaluations.json"

    def snapshot(self, identity: str, step: int) -> Path:
        """Return the policy directory of a member on its way, until it is evaluated."""
        return self.folder / "members" / identity / "snapshots" / f"step-{step:09d}"

    def episodes(self, identity: str) -> Path:
        """Return the file of a member's episode records."""
        return self.folder / "members" / identity / "episodes.parquet"

    def checkpoints(self, pack: PlannedPack) -> Path:
        """Return the folder of a pack's checkpoints."""
        return self.folder / pack.id / "checkpoints"

    @property
    def stop_request(self) -> Path:
        """The file that asks whoever trains to write a checkpoint and leave."""
        return self.folder / "stop"

    def stopping(self) -> bool:
        """Tell whether the sweep was asked to stop."""
        return self.stop_request.exists()

    def open_packs(self) -> list[PlannedPack]:
        """Return the packs with a member that is still to be trained."""
        return [pack for pack in self.packs if not all(map(self.ended, pack.members))]

    def ended(self, identity: str) -> bool:
        """Tell whether a member needs no more training."""
        return identity in self.unreported or self.failure(identity).is_file() or self.trained(identity)

    def trained(self, identity: str) -> bool:
        """Tell whether a member's policy and curve are on disk, whole."""
        try:
            verify_manifest(self.policy(identity))
        except ArtifactError:
            return False
        return self.curve(identity).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStart:
    """What an earlier start of the same sweep left.

    Attributes:
        id: of the sweep's folder.
        packs: identities of the members of each pack, by the pack's id.
        selection: key of the choice between its settings.
    """

    id: str
    packs: dict[str, list[str]]
    selection: str | None


def earlier_start(folder: Path, studies: Studies, selection: str | None = None) -> EarlierStart:
    """Return what an earlier start of the same sweep left; a new id and no packs for a new one.

    Args:
        folder: of the sweep; need not exist.
        studies: what is to be learned from now.
        selection: key of the choice between its settings; None where nothing is chosen.

    Raises:
        ConfigError: the folder holds a sweep of another task, of other demonstrations or of another choice.
        ArtifactError: the folder's record is damaged.
    """
    record = folder / "sweep.json"
    if not record.exists():
        return EarlierStart(id=uuid.uuid4().hex, packs={}, selection=selection)
    earlier = read_json(record)
    if earlier.get("dataset") != studies.demonstrations.sha256 or earlier.get("task") != studies.task.id:
        raise ConfigError(
            f"{folder} holds a sweep of {earlier.get('task')} on other demonstrations (sha256 "
            f"{str(earlier.get('dataset'))[:12]}, now {studies.demonstrations.sha256[:12]}); choose another --name"
        )
    if earlier.get("selection") != selection:
        raise ConfigError(
            f"{folder} holds a sweep that chooses otherwise between its settings, or between others; choose another "
            "--name (only episodes and trials may change)"
        )
    packs = earlier.get("packs")
    if not isinstance(packs, dict) or not all(IDENTITY.fullmatch(key) and _strings(packs[key]) for key in packs):
        raise ArtifactError(f"{record} does not list the sweep's packs; move {folder} away to start anew")
    return EarlierStart(id=str(earlier.get("id")), packs=packs, selection=selection)


def _strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def make_plan(
    folder: Path, members: list[Member], studies: Studies, earlier: EarlierStart, pack_count: int
) -> SweepPlan:
    """Spread members over packs, keeping the packs of an earlier start of the same sweep.

    Members that are trained already, in packs that are not all wanted now, go into none.

    Args:
        folder: of the sweep; made if need be.
        members: all that are wanted.
        studies: give their identities.
        earlier: what an earlier start left.
        pack_count: packs that can be trained at once; members new to the sweep are spread over as many.
    """
    identities = {studies.of(member).identity(member): member for member in members}
    packs: dict[str, list[str]] = {}
    covered: set[str] = set()
    for pack_id, pack in earlier.packs.items():
        # A pack is trained whole, or its checkpoints would not fit.
        if covered.isdisjoint(pack) and all(identity in identities for identity in pack):
            packs[pack_id] = pack
            covered.update(pack)
    plan = SweepPlan(id=earlier.id, folder=folder, members=identities, packs=[])
    fresh = {i: m for i, m in identities.items() if m.trained and i not in covered and not plan.trained(i)}
    packs |= {content_hash(pack)[:12]: pack for pack in _spread(fresh, pack_count)}
    write_json(
        folder / "sweep.json",
        {
            "id": earlier.id,
            "task": studies.task.id,
            "dataset": studies.demonstrations.sha256,
            "source": studies.demonstrations.source,
            "selection": earlier.selection,
            "packs": earlier.packs | packs,
        },
    )
    planned = [
        PlannedPack(id=pack_id, members={identity: identities[identity] for identity in pack})
        for pack_id, pack in packs.items()
    ]
    return replace(plan, packs=planned)


def _spread(members: dict[str, Member], pack_count: int) -> list[list[str]]:
    """Deal the members of each shape over packs as evenly as can be."""
    shapes: dict[tuple[object, ...], list[str]] = {}
    for identity, member in members.items():
        shapes.setdefault(member.shape, []).append(identity)
    return [pack for group in shapes.values() for i in range(pack_count) if (pack := group[i::pack_count])]
