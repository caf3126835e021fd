"""How each printed command is checked beyond parsing: run in every test run, by `make chaos`, or not, and why not."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """`run` in every test run, `long` by `make chaos` alone, or `parsed` and no more; and the reason."""

    name: str
    reason: str


# The first pattern that a whole command matches says how; a command without one fails the tests until it has one.
_WAYS: list[tuple[str, str, str]] = [
    ("mcnn (tasks|methods)", "run", "seconds"),
    ("mcnn data (collect door-expert-v1 --episodes 10|info (mcnn/door/tutorial|me/door/mine)-v0).*", "run", "seconds"),
    ("mcnn data import FILE.npz .*", "run", "seconds, with the human door demonstrations as FILE.npz"),
    ("python record.py|mcnn data import reach.npz .*", "run", "seconds, with the page's own module"),
    ("mcnn doctor", "long", "imports every simulator"),
    ("(CARLA_ROOT|MCNN_CARLA)=.* (mcnn|ray) .*", "parsed", "needs a CARLA server"),
    (".*(RUN_ID|POLICY|/ID/|/\\.\\.\\./).*", "parsed", "names a policy or run of the reader's"),
    ("mcnn (quickstart|memories|certify|evaluate|replay|explain|monitor|promote|export).*", "long", "after a sweep"),
    ("mcnn carla serve .*&|export MCNN_CARLA_SERVER=.*|mcnn data collect carla-lane-v0 .*", "long", "minutes"),
    ("mcnn data (collect (door|pen)-expert-v1|clone door-expert-v1) .*", "long", "a minute"),
    (".*(my_nets|Pendulum-v1@).*", "parsed", "names a module or a dataset that the page leaves to the reader"),
    ("mcnn sweep --task my_robots.*demo-v0", "parsed", "README's stands for a module of the reader's"),
    ("mcnn sweep --task (door-expert-v1 --dataset mcnn/door/(tutorial|watch)-v0|my_robots).*", "long", "minutes"),
    ("mcnn reproduce( returns (--plan|--budget smoke))?", "long", "some minutes"),
    ("mcnn data (collect|clone|import) .*", "parsed", "minutes of recording, or a file that is not here"),
    ("(OMP_NUM_THREADS=1 )?mcnn bench .*", "parsed", "minutes of full load; tests/test_bench*.py run smaller ones"),
    ("mcnn (sweep|train) .*", "parsed", "up to hours of training; tests run smaller ones"),
    ("mcnn (ui|carla serve).*|mlflow models serve .*", "parsed", "serves until it is ended; other tests start it"),
    ("mcnn encoder .*|mcnn carla status.*", "parsed", "tests/encoders and tests/carla run smaller ones"),
    ("mcnn reproduce .*", "parsed", "hours of training; tests run smaller ones"),
    ("python (-m pytest )?tests/.*", "parsed", "its own test, or a benchmark against libraries that are fetched"),
    ("python sweeps/.*", "parsed", "a sweep of hours; tests run one with fewer steps"),
    ("make .*", "parsed", "this is what runs the tests"),
    ("(ray|podman|docker|kubectl) .*", "parsed", "needs a cluster; tests/cluster runs what one machine can"),
    ("(pip|minari|apt-get|jupyter) .*", "parsed", "needs a network or a person"),
    ("(export|ls|curl) .*", "parsed", "a setting, or a look"),
]


def way_of(command: str) -> Way:
    """Return how a command is checked.

    Raises:
        LookupError: no pattern says.
    """
    for pattern, name, reason in _WAYS:
        if re.fullmatch(pattern, command):
            return Way(name, reason)
    raise LookupError(f"tests/docs/ways.py does not say how to check: {command}")
