"""How many demonstrations each method needs: 2, 5 and 10 episodes of the quickstart's door expert.

With demonstrations of your own, or another task's:
    python sweeps/demonstrations.py --task pen-human-v1 --demonstrations 5,10,25 --steps 20000
"""

import sys

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript
from mcnn_ray.quickstart import SWEEP, record_demonstrations

KEYS = {**SWEEP, "name": "demonstrations", "demonstrations": [2, 5, 10], "lambda": [1.0], "memory_fraction": [0.1]}

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]], SweepScript(keys=KEYS, prepare=record_demonstrations))
