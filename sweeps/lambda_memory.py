"""lambda x memory fraction for mcnn+mlp, beside bc and 1nn: the quickstart's comparison as a script.

Run alone it prints the same table as `mcnn quickstart`; flags of `mcnn sweep` make a sweep of their own, for example:
    python sweeps/lambda_memory.py --lambda 0.1,1,10,100 --memory-fraction 0.025,0.05,0.1 --steps 1000000
"""

import sys

from mcnn_ray.cli import main
from mcnn_ray.cli_sweep import SweepScript
from mcnn_ray.quickstart import SWEEP, record_demonstrations

if __name__ == "__main__":
    main(["sweep", *sys.argv[1:]], SweepScript(keys=SWEEP, prepare=record_demonstrations))
