"""The paper's grid of one Adroit task: 4 lambdas x 3 memory fractions x 3 seeds, 1,000,000 steps, 20 episodes each.

All 12 tasks, where their demonstrations are (`mcnn tasks` says so):
    for task in {pen,hammer,door,relocate}-{human,expert,cloned}-v1; do python sweeps/paper_grid.py --task $task; done
Flags of `mcnn sweep` change it; this reports the best setting of each method after a fraction of the training:
    python sweeps/paper_grid.py --task door-human-v1 --halving 3
"""

import sys

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript

SWEEP = {
    "method": ["mcnn+mlp", "bc", "1nn"],
    "lambda": [0.1, 1.0, 10.0, 100.0],
    "memory_fraction": [0.025, 0.05, 0.1],
    "seed": [0, 1, 2],
    "steps": 1_000_000,
    "episodes": 20,
}

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]], SweepScript(keys=SWEEP))
