"""Franka Kitchen, the methods of the paper's table and their blends, in minutes on two CPU cores; --paper for a GPU.

Demonstrations are the scripted expert's, recorded first unless they are there; the human ones go by
    python sweeps/kitchen.py --paper --task kitchen-relay-v0 --constant-columns ignore
The table of the small version compares small networks after few steps, and says nothing about the paper's.
"""

import sys

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript
from mcnn_ray.data.recording import record_unless_there
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.terminal import StageProgress

_METHODS = ["bc", "mcnn+mlp", "bet", "mcnn+bet", "diff", "mcnn+diff", "lstm-gmm"]
_EPISODES = 200
_OBJECTS = 4  # that every demonstration does, at least

_SMALL_BET = {
    "steps": 2000,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "options": {"window": 5, "clusters": 32, "layers": 2, "heads": 4, "width": 64, "dropout": 0.0},
}
_SMALL_DIFFUSION = {
    "steps": 3000,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "options": {"width": 16, "time_width": 32, "denoising_steps": 20, "inference_steps": 5, "warmup": 100},
}
KEYS = {
    "name": "kitchen",
    "task": "kitchen-scripted-v0",
    "method": _METHODS,
    "seed": [0],
    "steps": 10_000,
    "episodes": 20,
    "for_method": {
        "bet": _SMALL_BET,
        "mcnn+bet": _SMALL_BET,
        "diff": _SMALL_DIFFUSION,
        "mcnn+diff": _SMALL_DIFFUSION,
        "lstm-gmm": {
            "steps": 2000,
            "batch_size": 64,
            "learning_rate": 1e-3,
            "options": {"hidden_units": 128, "layers": 2, "modes": 5},
        },
    },
}
# About 5,000 epochs of the 566 human demonstrations in batches of 256, as published, and the table's 50 episodes.
PAPER = {"name": "kitchen-paper", "method": _METHODS, "seed": [0, 1, 2], "steps": 2_500_000, "episodes": 50}


def record_demonstrations(progress: StageProgress) -> None:
    """Record the scripted expert unless its demonstrations are there."""
    record_unless_there(find_task("kitchen-scripted-v0"), _EPISODES, progress, least_return=_OBJECTS)


if __name__ == "__main__":
    paper = "--paper" in sys.argv
    main(
        ["sweep", *(flag for flag in sys.argv[1:] if flag != "--paper")],
        SweepScript(keys={"task": KEYS["task"], **PAPER} if paper else KEYS, prepare=record_demonstrations),
    )
