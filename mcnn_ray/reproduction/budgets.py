"""How much is spent on a reproduction: steps, seeds, episodes, demonstrations, and the sizes of the slow methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["BUDGETS", "Budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What is spent on each sweep.

    Attributes:
        name: as `--budget` takes it.
        meaning: what its numbers are worth, for the report's head.
        steps: gradient steps, unless a method has its own.
        seeds: training seeds.
        episodes: rollouts of each member, on the seeds for reporting.
        choosing: rollouts of each member on the seeds for choosing, of what is tuned, and of learning curves.
        evaluate_every: steps between points of the learning curves; 0 for none.
        demonstrations: episodes of an expert.
        counts: numbers of demonstrations that are compared, of experts; all may be recorded.
        human_counts: the same of the 25 human ones.
        keys: of `SweepConfig`, for all sweeps but Kitchen's.
        for_method: keys that are other for one method.
        kitchen: keys of Kitchen's sweep.
        kitchen_demonstrations: episodes of its script.
    """

    name: str
    meaning: str
    steps: int
    seeds: tuple[int, ...]
    episodes: int
    choosing: int
    evaluate_every: int
    demonstrations: int
    counts: tuple[int, ...]
    human_counts: tuple[int, ...]
    keys: Mapping[str, Any] = field(default_factory=dict)
    for_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kitchen: Mapping[str, Any] = field(default_factory=dict)
    kitchen_demonstrations: int = 100

    @property
    def sizes(self) -> str:
        """Whose sizes or grids are not the paper's, in words."""
        others = [f"{method} ({own['steps']:,} steps)" for method, own in self.for_method.items() if "steps" in own]
        return f"smaller than the paper's, with steps and rates of their own: {', '.join(others)}" if others else ""


def _small_bet(steps: int, width: int) -> dict[str, Any]:
    options = {"window": 5, "clusters": 16, "layers": 2, "heads": 4, "width": width, "dropout": 0.0}
    return {"steps": steps, "batch_size": 64, "learning_rate": 1e-3, "options": options}


def _small_rest(share: float) -> dict[str, Any]:
    """Return the keys of methods that are too slow for a CPU at the paper's sizes; a share of their steps."""
    few = {"options": {"counter_examples": 64, "inference_samples": 128}}
    cell = {"options": {"hidden_units": 128, "layers": 2, "modes": 5}}
    return {
        "cql-sparse": {"steps": int(4000 * share), "batch_size": 64, "hidden": (64, 64, 64), "learning_rate": 3e-4},
        "ibc": {"steps": int(3000 * share), "batch_size": 128, "hidden": (256, 256), **few},
        "lstm-gmm": {"steps": int(2000 * share), "batch_size": 64, "learning_rate": 1e-3, **cell},
    }


_FEW_LAMBDAS = {"lambda": (0.1, 1.0), "memory_fraction": (0.1,)}
_SOME_LAMBDAS = {"lambda": (0.1, 1.0, 10.0), "memory_fraction": (0.1,)}
_SMALL_UNET = {"width": 16, "time_width": 32, "denoising_steps": 20, "inference_steps": 5, "warmup": 100}


def _small_kitchen(steps: int, share: float) -> dict[str, Any]:
    diffusion = {"steps": int(3000 * share), "batch_size": 64, "learning_rate": 1e-3, "options": _SMALL_UNET}
    bet = _small_bet(int(2000 * share), 64)
    own = {**_small_rest(share), "bet": bet, "mcnn+bet": bet, "diff": diffusion, "mcnn+diff": diffusion}
    del own["cql-sparse"]
    return {"steps": steps, "batch_size": 64, "for_method": own}


_SMOKE_BET, _SMOKE_DIFF = _small_bet(60, 32), {"steps": 200, "batch_size": 64, "learning_rate": 1e-3}
_STANDARD_BET, _STANDARD_DIFF = _small_bet(2000, 64), {"steps": 10_000, "learning_rate": 3e-4}

BUDGETS: Mapping[str, Budget] = MappingProxyType(
    {
        "smoke": Budget(
            name="smoke",
            meaning="SMOKE: shows that every row can be made; its numbers say nothing about any method",
            steps=300,
            seeds=(0,),
            episodes=2,
            choosing=1,
            evaluate_every=0,
            demonstrations=5,
            counts=(2, 5),
            human_counts=(5, 25),
            keys={"batch_size": 64, "hidden": (64, 64)},
            for_method={
                **_small_rest(0.02),
                "bet": _SMOKE_BET,
                "mcnn+bet": {**_SMOKE_BET, **_FEW_LAMBDAS},
                "diff": _SMOKE_DIFF,
                "mcnn+diff": {**_SMOKE_DIFF, **_FEW_LAMBDAS},
            },
            kitchen=_small_kitchen(300, 0.02),
            kitchen_demonstrations=4,
        ),
        "standard": Budget(
            name="standard",
            meaning="STANDARD: fewer steps, seeds and expert demonstrations than the paper's; compare rows with each "
            "other, and with the paper's as far as that allows",
            steps=20_000,
            seeds=(0, 1),
            episodes=20,
            choosing=10,
            evaluate_every=5000,
            demonstrations=50,
            counts=(5, 10, 25, 50, 100),
            human_counts=(5, 10, 15, 20, 25),
            for_method={
                **_small_rest(1.0),
                "bet": _STANDARD_BET,
                "mcnn+bet": {**_STANDARD_BET, **_SOME_LAMBDAS},
                "diff": _STANDARD_DIFF,
                "mcnn+diff": {**_STANDARD_DIFF, **_SOME_LAMBDAS},
            },
            kitchen=_small_kitchen(10_000, 1.0),
        ),
        "paper": Budget(
            name="paper",
            meaning="PAPER: the paper's steps, seeds, episodes, grids and sizes",
            steps=1_000_000,
            seeds=(0, 1, 2),
            episodes=20,
            choosing=20,
            evaluate_every=100_000,
            demonstrations=5000,
            counts=(100, 500, 1000, 2000, 4000, 5000),
            human_counts=(5, 10, 15, 20, 25),
            # About 5,000 epochs of the human demonstrations in batches of 256, and the table's 50 episodes.
            kitchen={"steps": 2_500_000, "episodes": 50},
            kitchen_demonstrations=566,
        ),
    }
)
