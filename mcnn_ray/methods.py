"""The methods, rows of the paper's tables: what hyperparameters each has, and the values that its presets give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mcnn_ray.diffusion_options import (
    DIFFUSION_KITCHEN,
    DIFFUSION_OPTIONS,
    DIFFUSION_PAPER,
    check_diffusion,
    check_diffusion_with_memories,
)
from mcnn_ray.errors import ConfigError
from mcnn_ray.options import Option

__all__ = ["CODEBOOK_FIELDS", "METHODS", "PRESETS", "Method", "default_preset", "known_options", "preset_names"]

PRESETS = ("paper", "official-code", "tuned", "kitchen", "driving")
_KITCHEN = "FrankaKitchen-v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of the paper's tables.

    Attributes:
        meaning: in a few words.
        family: how it is trained: `regression` in stacked packs, a learner's name of `mcnn_ray.training.learners`, or
            empty where nothing is trained.
        uses: the fields of `mcnn_ray.member.Member` that it has, beside `method` and `demonstrations`.
        presets: by name, values of these fields and of options; `paper` is complete, others override it.
        options: hyperparameters of its own.
        check: raises ConfigError for values of options that are each in range but do not go together.
    """

    meaning: str
    family: str = ""
    uses: tuple[str, ...] = ()
    presets: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Option] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], None] = lambda options: None

    def preset(self, name: str) -> dict[str, Any]:
        """Return the values of a preset; those of the paper where the method has no such preset."""
        return {**self.presets["paper"], **self.presets.get(name, {})}


_TRAINED = ("seed", "steps", "learning_rate", "batch_size")
_MLP = (*_TRAINED, "hidden", "backbone")
CODEBOOK_FIELDS = ("memory_fraction", "memories", "memory_seed")
_HARD_BLEND = (*CODEBOOK_FIELDS, "memory_action", "lambda_", "L", "distance")
_BLEND = (*_HARD_BLEND, "beta_schedule")

# Appendix, "Detailed Experimental Setup".
_REGRESSION = {"learning_rate": 3e-4, "batch_size": 256, "hidden": (256, 256)}
_DRIVING = {"hidden": (1024, 1024)}  # the paper's, on embeddings of 512 numbers
_CODEBOOK = {"memory_fraction": 0.1, "memories": "neural-gas", "memory_seed": 0}
_MEMORIES = {
    **_CODEBOOK,
    "memory_action": "expert",
    "distance": "euclidean",
    "lambda_": 0.1,
    "L": 1.0,
    "beta_schedule": "paper",
}

_OBSERVATIONS = Option(
    default="standardised",
    choices=("standardised", "raw"),
    meaning="space in which neighbours are near: each number over its standard deviation, or raw units",
)


def _check_heads(options: Mapping[str, Any]) -> None:
    width, heads = options["width"], options["heads"]
    if width % heads:
        raise ConfigError(
            f"option heads is {heads}, which does not divide the width {width}; each head takes an equal part, so set "
            f"width to {-(-width // heads) * heads}, say"
        )


# Appendix, "Detailed Experimental Setup"; what it leaves to the official BeT code is as there.
_BET = {"learning_rate": 5.5e-5, "batch_size": 256}
_BET_OPTIONS = {
    "window": Option(default=10, least=1, most=1000, meaning="observations that an action depends on, steps"),
    "clusters": Option(default=64, least=1, most=10_000, meaning="of the demonstrated actions, by k-means"),
    "layers": Option(default=6, least=1, most=100, meaning="of the transformer"),
    "heads": Option(default=6, least=1, most=100, meaning="of attention in each layer"),
    "width": Option(default=120, least=1, most=10_000, meaning="numbers that stand for an observation in the layers"),
    "dropout": Option(default=0.1, most=0.9, meaning="share of these numbers left out in training"),
    "weight_decay": Option(default=2e-4, most=1.0, meaning="of weight matrices, over the learning rate, each step"),
    "focal_gamma": Option(default=2.0, most=10.0, meaning="how much less the loss heeds clusters predicted well"),
}

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "bc": Method(
            meaning="behaviour cloning with an MLP",
            family="regression",
            uses=_MLP,
            presets={"paper": {**_REGRESSION, **_CODEBOOK}, "driving": _DRIVING},
            options={
                "oversampling": Option(
                    default=1, least=1, most=1000, meaning="times that each memory is seen where others are seen once"
                )
            },
        ),
        "mcnn+mlp": Method(
            meaning="an MLP blended with memories",
            family="regression",
            uses=(*_MLP, *_BLEND),
            # The code multiplies its lambda of 1 by 10 and lets beta fall in ten stairs.
            presets={
                "paper": {**_REGRESSION, **_MEMORIES},
                "official-code": {"lambda_": 10.0, "beta_schedule": "official-code"},
                "tuned": {"lambda_": 1.0, "distance": "median"},  # on seeds for choosing, see docs/methods.md
                "driving": _DRIVING,
            },
        ),
        "bet": Method(
            meaning="a Behavior Transformer: a cluster of actions, drawn, and an offset from its centre",
            family="bet",
            uses=_TRAINED,
            presets={"paper": _BET},
            options=_BET_OPTIONS,
            check=_check_heads,
        ),
        "mcnn+bet": Method(
            meaning="a Behavior Transformer blended with memories",
            family="bet",
            uses=(*_TRAINED, *_BLEND),
            # Here the code has no factor of 10.
            presets={
                "paper": {**_BET, **_MEMORIES},
                "official-code": {"lambda_": 1.0, "beta_schedule": "official-code"},
            },
            options=_BET_OPTIONS,
            check=_check_heads,
        ),
        "diff": Method(
            meaning="a diffusion policy: actions made out of noise, step by step",
            family="diffusion",
            uses=_TRAINED,
            presets={
                "paper": DIFFUSION_PAPER,
                "official-code": {"prediction": "noise"},
                "kitchen": DIFFUSION_KITCHEN,
            },
            options=DIFFUSION_OPTIONS,
            check=check_diffusion,
        ),
        "mcnn+diff": Method(
            meaning="a diffusion policy blended with memories in every denoising step",
            family="diffusion",
            uses=(*_TRAINED, *_HARD_BLEND),
            # The code multiplies its lambda of 1 by 10 on Adroit; on Kitchen it has 10, and the paper says nothing.
            presets={
                "paper": {**DIFFUSION_PAPER, **_MEMORIES},
                "official-code": {"lambda_": 10.0},
                "kitchen": {**DIFFUSION_KITCHEN, "lambda_": 10.0},
            },
            options=DIFFUSION_OPTIONS,
            check=check_diffusion_with_memories,
        ),
        "1nn": Method(
            meaning="the action of the nearest demonstrated observation",
            presets={"paper": {}, "official-code": {"observations": "raw"}},
            options={"observations": _OBSERVATIONS},
        ),
        "vinn": Method(
            meaning="the mean action of the nearest demonstrated observations, weighted by exp(-distance)",
            presets={"paper": {}, "official-code": {"observations": "raw"}},
            options={
                "neighbours": Option(default=10, least=1, most=1000, meaning="how many are averaged"),
                "observations": _OBSERVATIONS,
            },
        ),
        # Florence et al. 2021; google-research/ibc, ibc/configs/d4rl/mlp_ebm_langevin_best.gin. See training/ibc.py.
        "ibc": Method(
            meaning="implicit behaviour cloning: the action of least energy; for few action numbers",
            family="ibc",
            uses=(*_TRAINED, "hidden"),
            presets={"paper": {"learning_rate": 5e-4, "batch_size": 512, "hidden": (512,) * 9}},
            options={
                "counter_examples": Option(
                    default=8, least=1, most=65536, meaning="random actions that each demonstrated one is told from"
                ),
                "decay_steps": Option(default=100, least=1, meaning="steps in which the learning rate falls by 1 %"),
                "inference_samples": Option(
                    default=512, least=1, most=131072, meaning="actions whose energies are compared; time grows with it"
                ),
                "inference_iterations": Option(
                    default=3, least=1, most=100, meaning="times that they are; time grows with it"
                ),
                "noise": Option(
                    default=0.33, most=2.0, meaning="standard deviation of the first shaking, over half the range"
                ),
                "noise_shrink": Option(default=0.5, most=1.0, meaning="factor of the noise from one to the next"),
            },
        ),
        # Mandlekar et al. 2021 as run by Chi et al. 2023, whom the paper quotes: ARISE-Initiative/robomimic,
        # config/bc_config.py and scripts/generate_paper_configs.py (low-dim; batches of 100 there), with the batch of
        # real-stanford/diffusion_policy, config/train_robomimic_lowdim_workspace.yaml.
        "lstm-gmm": Method(
            meaning="an LSTM with a mixture of Gaussians over actions, of which one is drawn",
            family="lstm-gmm",
            uses=_TRAINED,
            presets={"paper": {"learning_rate": 1e-4, "batch_size": 256}},
            options={
                "window": Option(default=10, least=1, most=1000, meaning="steps after which the LSTM begins anew"),
                "hidden_units": Option(default=400, least=1, most=10_000, meaning="numbers that a layer remembers"),
                "layers": Option(default=2, least=1, most=100, meaning="of the LSTM"),
                "modes": Option(default=5, least=1, most=1000, meaning="Gaussians in the mixture"),
                "least_std": Option(
                    default=1e-4, least=1e-6, most=1.0, meaning="of a Gaussian in training, over half the range"
                ),
            },
        ),
        "cql-sparse": Method(
            meaning="conservative Q-learning, with the reward 1 at the end of each demonstration that succeeded",
            family="cql",
            uses=(*_TRAINED, "hidden"),
            # The code holds 5 gap to its threshold of 5.
            presets={
                "paper": {"learning_rate": 3e-5, "batch_size": 256, "hidden": (256, 256, 256)},
                "official-code": {"lagrange": 1.0},
            },
            options={
                "critic_learning_rate": Option(default=3e-4, least=1e-9, meaning="learning rate of critics and alpha"),
                "alpha": Option(default=5.0, least=1e-9, meaning="weight of the conservative loss, at first"),
                "lagrange": Option(default=5.0, meaning="gap of values at which alpha settles; 0 leaves it as it is"),
                "action_samples": Option(default=10, least=1, most=1000, meaning="actions of each kind in the gap"),
            },
        ),
    }
)


def preset_names(method: str) -> list[str]:
    """Return the presets that a method has of its own."""
    return [name for name in PRESETS if name in METHODS[method].presets]


def default_preset(environment: str) -> str:
    """Return the preset of what is not asked for in an environment, by its Gymnasium id."""
    name = environment.rpartition(":")[2]
    return "driving" if name.startswith("Driving") else "kitchen" if name == _KITCHEN else "paper"


def known_options() -> dict[str, list[str]]:
    """Return which methods have each option, by its name."""
    known: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        for option in method.options:
            known.setdefault(option, []).append(name)
    return known
