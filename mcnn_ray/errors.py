"""The error families: each message says what was wrong, where, what was found and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ArtifactError",
    "ConfigError",
    "DatasetError",
    "McnnError",
    "ServerError",
    "ServerStartError",
    "SimulationError",
    "TrackingError",
    "did_you_mean",
]

_SHOWN = 24  # options in a message


class McnnError(Exception):
    """Base of all errors that a user can cause or mend; the command line shows them without a traceback.

    Attributes:
        exit_code: the status the command line ends with: 1 when something failed, 2 when it was asked wrongly.
    """

    exit_code = 1


class ConfigError(McnnError):
    """A flag, a key of a YAML file or an argument has a value that cannot be used."""

    exit_code = 2


class DatasetError(McnnError):
    """Demonstrations are missing, damaged, or do not fit the task."""


class ArtifactError(McnnError):
    """A file that this package wrote is missing, damaged, or of another version."""


class TrackingError(McnnError):
    """MLflow's store or server cannot be used."""


class SimulationError(McnnError):
    """An environment cannot be made, or breaks its contract in reset or step."""


class ServerError(SimulationError):
    """A simulator's server is away, hangs or answers wrongly; its episode did not fail and can run again elsewhere."""


class ServerStartError(ServerError):
    """No server that works could be had, so the episode has not begun."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return a hint naming the valid options nearest to a name.

    Args:
        name: what the user wrote.
        options: what would have been valid.

    Returns:
        `did you mean 'x'?` when something is near, else `valid: a, b, c`.
    """
    choices = sorted(options)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"valid: {', '.join(choices[:_SHOWN])}" + (", ..." if len(choices) > _SHOWN else "")
