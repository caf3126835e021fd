"""When the rollouts of a setting may end early: its place below the best one is settled.

All settings meet the same episode starts, so at each look every setting is compared with the one that leads then, by
its paired differences over the starts and the sign-flip test of `stats`. The level of one comparison is 5 % over the
number of looks times the number of other settings (Bonferroni). So the best setting, or one given among equals, is
stopped in fewer than 5 of 100 sweeps, whoever leads and however often is looked; that any of many equals is stopped is
likelier.

This holds where differences are symmetric about their mean, as between settings of equal distribution and as many
training seeds. A setting whose mean rests on rare episodes can be stopped before the first of them: one that earns ten
times as much in a tenth of its episodes was lost to its equal, a steady one, in 42 of 100 simulated sweeps.

A percentile bootstrap of the same differences is too sure of itself after so few starts: in simulations it lost the
given one of 2 to 20 equals in 6 to 20 of 100 sweeps.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from mcnn_ray.rollout.episode import LOCKSTEP
from mcnn_ray.stats import sign_flip_p

__all__ = ["looks", "settled"]

Setting = TypeVar("Setting", bound=Hashable)

_FALSELY_STOPPED = 0.05


def looks(episodes: int) -> list[int]:
    """Return after how many episodes of each setting to look: after a block of those in step, then at each doubling.

    Whole blocks keep the bits of the full evaluation; doubling keeps looks few, and with them the price of each.

    Args:
        episodes: of a setting that is not stopped.
    """
    found: list[int] = []
    while (count := LOCKSTEP << len(found)) < episodes:
        found.append(count)
    return found


def settled(returns: Mapping[Setting, Mapping[int, float]], comparisons: int) -> set[Setting]:
    """Return the settings that are separated from the best one.

    Args:
        returns: of each setting still running, its mean return over training seeds by episode seed, raw units; scores,
            returns on another scale, would give the same. Starts that a setting lacks are left out for all.
        comparisons: that the sweep makes at most: looks times settings but one.
    """
    starts = sorted(set.intersection(*(set(found) for found in returns.values()))) if returns else []
    if len(returns) < 2 or not starts:
        return set()
    table_NS = np.array([[found[start] for found in returns.values()] for start in starts])
    best = int(table_NS.mean(0).argmax())
    p_S = sign_flip_p(table_NS[:, [best]] - table_NS)
    level = _FALSELY_STOPPED / comparisons
    return {setting for place, setting in enumerate(returns) if place != best and p_S[place] <= level}
