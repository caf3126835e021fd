"""Each setting of a sweep beside plain cloning on the same episode starts, with 95 % intervals.

Starts differ much in difficulty, so a difference start by start is known better than two means are. Training seeds
are paired, too; of a method without any, each training seed of `bc` has the same partner:

    python tests/benchmarks/paired_differences.py runs/reproduce-standard-door-expert-v1-methods
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from mcnn_ray.artifacts import read_json
from mcnn_ray.rollout.records import read_rollouts
from mcnn_ray.stats import mean_interval

# What tells settings apart, beside the training seed.
SETTING = ("method", "lambda_", "memory_fraction", "memories", "demonstrations", "steps")


def scores_of(sweep):
    """Return (training seeds, starts) scores, or returns where there is no score, of each setting."""
    found = {}
    for path in sorted(sweep.glob("members/*/episodes.parquet")):
        member = read_json(path.with_name("policy") / "policy.json")["card"]["member"]
        records = sorted((rollout.record for rollout in read_rollouts(path)), key=lambda record: record.episode_seed)
        own = [record.episode_return if (score := record.normalised_score) is None else score for record in records]
        found.setdefault(tuple(member.get(name) for name in SETTING), {})[member["seed"]] = own
    return {setting: np.array([own[seed] for seed in sorted(own)]) for setting, own in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP")
    for sweep in parser.parse_args().sweeps:
        table = Table(title=sweep.name, box=box.SIMPLE_HEAD, title_justify="left")
        for name in ("method", "lambda", "memories", "demonstrations", "n", "score", "less that of bc"):
            table.add_column(name, no_wrap=True, justify="left" if name == "method" else "right")
        found = scores_of(sweep)
        for setting in sorted(found, key=lambda setting: [(value is not None, value) for value in setting]):
            method, lambda_, fraction, _, demonstrations, _ = setting
            values = found[setting]
            plain = [other for key, other in found.items() if (key[0], key[4]) == ("bc", demonstrations)]
            difference = "" if method == "bc" or not plain else mean_interval(values - plain[0]).text(1)
            share = "" if fraction is None else f"{fraction:.1%}"
            numbers = ("" if lambda_ is None else f"{lambda_:g}", share, str(demonstrations or "all"), str(values.size))
            table.add_row(method, *numbers, mean_interval(values).text(1), difference)
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
