"""Each setting of a sweep beside plain cloning on the same episode starts, with 95 % intervals.

Starts differ much in difficulty, so a difference start by start is known better than two means are. Training seeds
are paired, too; of a method without any, each training seed of `bc` has the same partner:

    python tests/benchmarks/paired_differences.py runs/reproduce-standard-door-expert-v1-methods

or beside a setting of another sweep with the same starts, named as that one's table names it:

    python tests/benchmarks/paired_differences.py runs/random-memories --less runs/methods "bc demonstrations=50"
"""

import argparse
import sys
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from mcnn_ray.artifacts import read_json
from mcnn_ray.member import Member, settings_of
from mcnn_ray.rollout.records import read_records
from mcnn_ray.stats import mean_interval


def scores_of(sweep):
    """Return the scores, or returns where there are none, of each setting: rows are training seeds, columns starts."""
    members = {
        path: Member.from_parameters(read_json(path.with_name("policy") / "policy.json")["card"]["member"])
        for path in sweep.glob("members/*/episodes.parquet")
    }
    return {
        setting: pd.DataFrame({members[path].seed: _of_starts(read_records(path)) for path in paths})
        .sort_index(axis=1)
        .T
        for setting, paths in settings_of(members).items()
    }


def _of_starts(records):
    values = {record.episode_seed: (record.normalised_score, record.episode_return) for record in records}
    return pd.Series({start: earned if score is None else score for start, (score, earned) in values.items()})


def partner(setting, found, other):
    """Return what a setting's scores are compared with: those given, or plain cloning's of as many demonstrations."""
    if other is not None:
        return other
    plain = [one for one in found if one.method == "bc" and one.demonstrations == setting.demonstrations]
    # Of several, which one is meant is not known.
    return found[plain[0]] if setting.method != "bc" and len(plain) == 1 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="SWEEP")
    parser.add_argument("--less", nargs=2, metavar=("SWEEP", "SETTING"))
    flags = parser.parse_args()
    other = None
    if flags.less:
        named = {setting.setting_label: values for setting, values in scores_of(Path(flags.less[0])).items()}
        if flags.less[1] not in named:
            sys.exit(f"{flags.less[0]} has no setting '{flags.less[1]}', but {', '.join(sorted(named))}")
        other = named[flags.less[1]]
    for sweep in flags.sweeps:
        title = f"{sweep.name}, and less {flags.less[1] if flags.less else 'bc'}"
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        for name in ("setting", "n", "score", "difference"):
            table.add_column(name, no_wrap=name != "setting", justify="left" if name == "setting" else "right")
        found = scores_of(sweep)
        for setting in sorted(found, key=lambda setting: (setting.method, setting.demonstrations or 0, setting.label)):
            values = found[setting]
            beside = partner(setting, found, other)
            difference = "" if beside is None else _difference(values, beside)
            numbers = (str(values.count().sum()), mean_interval(values.to_numpy()).text(1), difference)
            table.add_row(setting.setting_label, *numbers)
        Console(width=140).print(table)


def _difference(values, beside):
    if len(values) > 1 < len(beside):
        beside = beside.reindex(index=values.index)
    return mean_interval(values.to_numpy() - beside.reindex(columns=values.columns).to_numpy()).text(1)


if __name__ == "__main__":
    main()
