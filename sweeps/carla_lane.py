"""Lane keeping from images, on the lite server unless a CARLA is named (docs/carla_servers.md); --paper for a GPU.

Records 50 episodes of the packaged driver and clones an encoder from them first, unless both are there. The paper's:
    mcnn encoder import 660000.pth runs/encoders/cilrs
    python sweeps/carla_lane.py --paper --encoder runs/encoders/cilrs
"""

import sys
from pathlib import Path

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript
from mcnn_ray.data.minari_store import task_demonstrations
from mcnn_ray.data.recording import record_unless_there
from mcnn_ray.encoders.cloning import CloningSettings, clone_task_encoder
from mcnn_ray.encoders.encoder import write_encoder
from mcnn_ray.tasks.catalogue import find_task
from mcnn_ray.terminal import StageProgress

_TASK = "carla-lane-v0"
_ENCODER = Path("runs/encoders/carla-lane")
_EPISODES = 50
_CLONING = CloningSettings(architecture="small", steps=1500, batch_size=64, learning_rate=1e-3, seed=0)

_SMALL_BET = {
    "steps": 1000,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "options": {"window": 3, "clusters": 8, "layers": 1, "heads": 2, "width": 64, "dropout": 0.0},
}
_COMMON = {
    "task": _TASK,
    "encoder": str(_ENCODER),
    "method": ["bc", "1nn", "vinn", "mcnn+mlp", "bet", "mcnn+bet"],
}
KEYS = {
    **_COMMON,
    "name": "carla-lane",
    "lambda": [0.1, 1.0],
    "hidden": [256, 256],
    "seed": [0],
    "steps": 5000,
    "episodes": 10,
    "for_method": {"bet": _SMALL_BET, "mcnn+bet": _SMALL_BET},
}
PAPER = {**_COMMON, "name": "carla-lane-paper", "seed": [0, 1, 2], "steps": 1_000_000, "episodes": 20}


def prepare(progress: StageProgress) -> None:
    """Record demonstrations and clone the encoder, each unless it is there."""
    task = find_task(_TASK)
    record_unless_there(task, _EPISODES, progress)
    if not _ENCODER.exists():
        steps = _CLONING.steps
        encoder = clone_task_encoder(
            task, task_demonstrations(task), _CLONING, lambda step: progress("encoder, steps", step, steps)
        )
        write_encoder(encoder, _ENCODER)


if __name__ == "__main__":
    paper = "--paper" in sys.argv
    main(
        ["sweep", *(flag for flag in sys.argv[1:] if flag != "--paper")],
        SweepScript(keys=PAPER if paper else KEYS, prepare=prepare),
    )
