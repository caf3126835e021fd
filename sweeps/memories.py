"""How many memories: 2.5 % to 80 % of the demonstrated steps, on the quickstart's door demonstrations.

Ways of picking them and what they return are lists like any other:
    python sweeps/memories.py --memories neural-gas,random,k-means --memory-action expert,mean
"""

import sys

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript
from mcnn_ray.quickstart import SWEEP, record_demonstrations

KEYS = {**SWEEP, "name": "memories-grid", "lambda": [1.0], "memory_fraction": [0.025, 0.05, 0.1, 0.2, 0.4, 0.8]}

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]], SweepScript(keys=KEYS, prepare=record_demonstrations))
