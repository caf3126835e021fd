"""What each table and figure of the paper is made of, as data: sweeps of each task, and which of their members.

Names share sweeps, so that nothing is trained twice: what two of them show lies in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mcnn_ray.tasks.catalogue import ADROIT_NAMES

__all__ = ["PARTS", "REPRODUCTIONS", "Part", "Reproduction", "Rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One sweep of a task.

    Attributes:
        methods: that it compares.
        keys: of `SweepConfig`, beside task, dataset, method, seed, steps and episodes.
        for_method: keys that are other for one method, by its name.
        not_on: tasks that a method is left out of, by its name.
        counts: whether its members learn from the budget's numbers of demonstrations, each.
    """

    methods: tuple[str, ...]
    keys: Mapping[str, Any] = field(default_factory=dict)
    for_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    not_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Members that a table or figure shows.

    Attributes:
        part: the sweep they lie in, a key of `PARTS`.
        setting: what they are called, with their parameters in braces; `{memories}` is the fraction, in percent, and
            `{way}` how memories are picked.
        methods: empty takes all of the part's.
        where: parameters that they have, by name; members without a parameter are taken too.
        tuned: take only each method's best, chosen on episode seeds of their own.
    """

    part: str
    setting: str
    methods: tuple[str, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    tuned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A table or figure of the paper.

    Attributes:
        title: of the report.
        shows: in the paper, what and where.
        tasks: names of the catalogue; empty where nothing is trained.
        rows: what it shows.
    """

    title: str
    shows: str
    tasks: tuple[str, ...]
    rows: tuple[Rows, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The sweeps that each of its tasks needs, in order."""
        return tuple(dict.fromkeys(rows.part for rows in self.rows))

    @property
    def methods(self) -> frozenset[str]:
        """The methods that it needs of any sweep."""
        return frozenset(method for part in self.parts for method in self.methods_of(part))

    def methods_of(self, part: str) -> tuple[str, ...]:
        """The methods that it needs of a sweep, in the sweep's order."""
        needed = [set(rows.methods or PARTS[part].methods) for rows in self.rows if rows.part == part]
        return tuple(method for method in PARTS[part].methods if any(method in some for some in needed))


_HUMAN = tuple(f"{name}-human-v1" for name in ADROIT_NAMES)
_EXPERT = tuple(f"{name}-expert-v1" for name in ADROIT_NAMES)
_CLONED = tuple(f"{name}-cloned-v1" for name in ADROIT_NAMES)
_CARLA = ("carla-lane-v0", "carla-town-v0")

_PLAIN = ("bc", "1nn", "vinn", "cql-sparse", "ibc", "bet", "diff")
_BLENDED = ("mcnn+mlp", "mcnn+bet", "mcnn+diff")
# The appendix's grid, and its fixed setting.
_GRID = {"lambda": (0.1, 1.0, 10.0, 100.0), "memory_fraction": (0.025, 0.05, 0.1)}
_FIXED = {"lambda_": 0.1, "memory_fraction": 0.1}

PARTS: Mapping[str, Part] = MappingProxyType(
    {
        # A budget may thin out the grids of the slow ones, not that of mcnn+mlp.
        "methods": Part(
            methods=(*_PLAIN, *_BLENDED),
            for_method=dict.fromkeys(_BLENDED, _GRID),
            not_on={"cql-sparse": (*_CLONED, *_CARLA)},  # as in the paper: there not all demonstrations succeed
        ),
        "oversampling": Part(methods=("bc",), keys={"options": {"oversampling": (2, 3, 6)}}),
        "demonstrations": Part(methods=("mcnn+mlp", "bc"), counts=True),
        "memories": Part(methods=("mcnn+mlp",), keys={"lambda": (0.1,), "memory_fraction": (0.2, 0.4, 0.8)}),
        "random-memories": Part(methods=("mcnn+mlp",), keys={"lambda": (0.1,), "memories": ("random",)}),
        "kitchen": Part(methods=("bc", "lstm-gmm", "ibc", "bet", "diff", "mcnn+mlp", "mcnn+bet", "mcnn+diff")),
    }
)

_FIXED_ROWS = Rows(part="methods", setting="fixed", where=_FIXED)
_TUNED_ROWS = Rows(part="methods", setting="tuned", methods=_BLENDED, tuned=True)
_FIXED_MLP = Rows(part="methods", setting="fixed", methods=("mcnn+mlp",), where=_FIXED)
_TUNED_MLP = Rows(part="methods", setting="tuned", methods=("mcnn+mlp",), tuned=True)

REPRODUCTIONS: Mapping[str, Reproduction] = MappingProxyType(
    {
        "returns": Reproduction(
            title="Returns and normalised scores",
            shows="the tables of returns and of normalised scores, the bars of human, expert and CARLA tasks",
            tasks=(*_HUMAN, *_EXPERT, *_CLONED, *_CARLA),
            rows=(_FIXED_ROWS, _TUNED_ROWS),
        ),
        "kitchen": Reproduction(
            title="Franka Kitchen, p1 to p5",
            shows="the table of Franka Kitchen; beside it demonstrations of the packaged script, not the paper's",
            tasks=("kitchen-relay-v0", "kitchen-scripted-v0"),
            rows=(Rows(part="kitchen", setting="fixed"),),
        ),
        "oversampling": Reproduction(
            title="Plain cloning with oversampled memories",
            shows="the table of oversampling",
            tasks=(*_HUMAN, *_EXPERT),
            rows=(
                Rows(part="methods", setting="oversampling=1", methods=("bc",)),
                Rows(part="oversampling", setting="oversampling={oversampling}"),
                _FIXED_MLP,
                _TUNED_MLP,
            ),
        ),
        "demonstrations": Reproduction(
            title="Number of demonstrations",
            shows="Figure 1 and the tables of its values",
            tasks=(*_HUMAN, *_EXPERT),
            rows=(Rows(part="demonstrations", setting="demonstrations={demonstrations}"),),
        ),
        "memories": Reproduction(
            title="Number of memories",
            shows="the figures of 2.5 % to 80 % of the steps as memories",
            tasks=_HUMAN + _EXPERT,
            rows=(
                Rows(part="methods", setting="memories={memories}", methods=("mcnn+mlp",), where={"lambda_": 0.1}),
                Rows(part="memories", setting="memories={memories}"),
                Rows(part="methods", setting="fixed", methods=("bc", "1nn")),
            ),
        ),
        "lambda-memories": Reproduction(
            title="Lambda and number of memories",
            shows="the bars of lambda and memories of each task",
            tasks=(*_HUMAN, *_EXPERT, *_CLONED, *_CARLA),
            rows=(Rows(part="methods", setting="lambda={lambda_:g} memories={memories}", methods=("mcnn+mlp",)),),
        ),
        "neural-gas": Reproduction(
            title="Neural gas and random memories",
            shows="the figure of neural gas against random memories",
            tasks=(*_HUMAN, *_EXPERT),
            rows=(
                Rows(part="methods", setting="{way}", methods=("mcnn+mlp",), where=_FIXED),
                Rows(part="random-memories", setting="{way}"),
            ),
        ),
        "fixed-tuned": Reproduction(
            title="Fixed and tuned hyperparameters",
            shows="the figure of fixed against tuned hyperparameters",
            tasks=(*_HUMAN, *_EXPERT, *_CLONED, *_CARLA),
            rows=(_FIXED_MLP, _TUNED_MLP),
        ),
        "function-class": Reproduction(
            title="The function class",
            shows="Figure 2 and the appendix's families over memories, lambda and L",
            tasks=(),
            rows=(),
        ),
        "aggregate": Reproduction(
            title="Median gain over plain cloning",
            shows="the aggregate bars: median over tasks of the return's gain, in %",
            tasks=(*_HUMAN, *_EXPERT),
            rows=(_FIXED_ROWS,),
        ),
    }
)
