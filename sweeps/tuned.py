"""mcnn+mlp tuned on one set of episode seeds and reported on another, beside bc and 1nn: no number is chosen by itself.

Optuna draws lambda and the memory fraction. The same by successive halving of a grid:
    python sweeps/tuned.py --search grid --halving 2 --lambda 0.01,0.1,1,10
"""

import sys

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript
from mcnn_ray.quickstart import SWEEP, record_demonstrations

KEYS = {**SWEEP, "name": "tuned", "search": "optuna", "lambda": "0.01..100:log", "memory_fraction": [0.025, 0.05, 0.1]}

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]], SweepScript(keys=KEYS, prepare=record_demonstrations))
