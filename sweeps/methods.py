"""Every method on one Adroit task, at sizes and steps that two CPU cores take minutes for; with --paper at the paper's.

The table says nothing about methods that need more steps than they get here. On a GPU:
    python sweeps/methods.py --paper --task door-human-v1 --clip-actions
"""

import sys

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript
from mcnn_ray.methods import METHODS
from mcnn_ray.quickstart import SWEEP, record_demonstrations

_SMALL_BET = {
    "steps": 1500,
    "batch_size": 64,
    "learning_rate": 2e-3,
    "options": {"window": 2, "clusters": 4, "layers": 1, "heads": 2, "width": 64, "dropout": 0.0},
}
_SMALL_DIFFUSION = {
    "steps": 1500,
    "batch_size": 64,
    "learning_rate": 2e-3,
    "options": {"width": 96, "warmup": 50, "ema_power": 0.75},
}
KEYS = {
    **{key: SWEEP[key] for key in ("task", "dataset", "seed", "steps", "episodes")},
    "name": "methods",
    "method": list(METHODS),
    "for_method": {
        "cql-sparse": {"steps": 1000, "batch_size": 64, "hidden": [64, 64, 64]},
        "ibc": {
            "steps": 600,
            "batch_size": 128,
            "hidden": [256, 256],
            "options": {"counter_examples": 64, "inference_samples": 128},
        },
        "lstm-gmm": {
            "steps": 400,
            "batch_size": 64,
            "learning_rate": 3e-3,
            "options": {"window": 5, "hidden_units": 64, "layers": 1, "modes": 3},
        },
        "bet": _SMALL_BET,
        "mcnn+bet": _SMALL_BET,
        "diff": _SMALL_DIFFUSION,
        "mcnn+diff": _SMALL_DIFFUSION,
    },
}
PAPER = {"name": "methods-paper", "method": list(METHODS), "seed": [0, 1, 2], "steps": 1_000_000, "episodes": 20}

if __name__ == "__main__":
    paper = "--paper" in sys.argv
    script = SweepScript(keys=PAPER) if paper else SweepScript(keys=KEYS, prepare=record_demonstrations)
    main(["sweep", *(flag for flag in sys.argv[1:] if flag != "--paper")], script)
