"""How far the packs of a sweep are, added up in the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a process that keeps steps alone is to start without torch
    from mcnn_ray.sweep.plan import PlannedPack

__all__ = ["PackProgress", "PackSteps"]


class PackSteps:
    """Keeps the steps of each pack for whoever asks; `ray.train.report` would have all workers wait for each other."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def update(self, pack: str, step: int) -> None:
        """Take how far a pack is."""
        self._steps[pack] = step

    def all(self) -> dict[str, int]:
        """Return how far each pack is, by its id."""
        return self._steps


class PackProgress:
    """Adds up the packs' steps.

    Args:
        packs: that are being trained.
        tell: called with member-steps done and in all.
        left_out: identities of members that have left their packs.
        until: step at which the packs stop; None is their end.
    """

    def __init__(
        self,
        packs: Sequence[PlannedPack],
        tell: Callable[[int, int], None],
        left_out: Collection[str] = (),
        until: int | None = None,
    ) -> None:
        going = {pack.id: [member for i, member in pack.members.items() if i not in left_out] for pack in packs}
        self._sizes = {pack: len(members) for pack, members in going.items()}
        self._total = sum(until or member.steps for members in going.values() for member in members)
        self._steps: dict[str, int] = {}
        self._tell = tell

    def update(self, steps: Mapping[str, int]) -> None:
        """Take the steps that packs have taken, by their id."""
        if any(self._steps.get(pack) != step for pack, step in steps.items()):
            self._steps |= steps
            self._tell(sum(self._sizes[pack] * step for pack, step in self._steps.items()), self._total)
