"""How far the packs of a sweep are, added up in the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mcnn_ray.sweep.plan import PlannedPack

__all__ = ["PackProgress"]


class PackProgress:
    """Adds up the packs' steps.

    Args:
        packs: that are being trained.
        tell: called with member-steps done and in all.
    """

    def __init__(self, packs: Sequence[PlannedPack], tell: Callable[[int, int], None]) -> None:
        self._sizes = {pack.id: len(pack.members) for pack in packs}
        self._total = sum(pack.member_steps for pack in packs)
        self._steps: dict[str, int] = {}
        self._tell = tell

    def update(self, steps: Mapping[str, int]) -> None:
        """Take the steps that packs have taken, by their id."""
        if any(self._steps.get(pack) != step for pack, step in steps.items()):
            self._steps |= steps
            self._tell(sum(self._sizes[pack] * step for pack, step in self._steps.items()), self._total)
