"""Faults that a server can be told to have, so that what must survive them can be tested.

| fault | what the server does |
|---|---|
| `slow-start:S` | listens only after S more seconds |
| `silent` | accepts connections and answers nothing |
| `hang-in-tick:N` | at the Nth tick, and from then on, answers nothing; the process lives |
| `crash-in-tick:N` | ends at the Nth tick as a process with a segmentation fault does, status 139 |
| `crash-in-call:METHOD` | the same at the first call of METHOD |
| `slow-tick:MS` | takes MS milliseconds more for every tick |
| `drop-frames:N` | does not send every Nth image of a camera |
| `wrong-version:V` | says it is version V (0.9.15 when left out) |
| `garbage:N` | from the Nth tick on answers bytes that are no message, which ends the process of a real client |
| `error-replies:METHOD` | answers every call of METHOD with an error |
| `leak:MIB` | keeps MIB more mebibytes of memory at every load of a map |

Ticks are counted from the server's start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from mcnn_ray.errors import ConfigError, did_you_mean

__all__ = ["FAULTS", "Faults", "parse_faults"]

# Name -> what its value is, and the value when none is given (None: there must be one).
FAULTS: dict[str, tuple[type[float] | type[int] | type[str] | None, float | int | str | None]] = {
    "slow-start": (float, None),
    "silent": (None, ""),
    "hang-in-tick": (int, 1),
    "crash-in-tick": (int, 1),
    "crash-in-call": (str, None),
    "slow-tick": (float, None),
    "drop-frames": (int, None),
    "wrong-version": (str, "0.9.15"),
    "garbage": (int, 1),
    "error-replies": (str, None),
    "leak": (float, None),
}
_GARBAGE = b"\xc1" * 64  # 0xc1 is the one byte that msgpack never uses


@dataclass(slots=True)
class Faults:
    """The faults of one server, and how far it has come towards them.

    Attributes:
        values: by the fault's name.
        ticks: since the server's start.
        hung: nothing is answered any more.
    """

    values: dict[str, float | int | str] = field(default_factory=dict)
    ticks: int = 0
    hung: bool = False
    _images: int = 0
    _leaked: list[bytearray] = field(default_factory=list)

    @property
    def start_delay_s(self) -> float:
        """Seconds to wait before listening."""
        return float(self.values.get("slow-start", 0.0))

    @property
    def tick_delay_s(self) -> float:
        """Seconds that a tick takes longer."""
        return float(self.values.get("slow-tick", 0.0)) / 1000

    def version(self, true: str) -> str:
        """Return the version to give."""
        return str(self.values.get("wrong-version", true))

    def fails(self, method: str) -> bool:
        """Return whether a call is to be answered with an error; the process may end instead."""
        if self.values.get("crash-in-call") == method:
            _crash()
        return self.values.get("error-replies") == method

    def count_tick(self) -> None:
        """Count a tick, and hang or crash if it is the one."""
        self.ticks += 1
        if self.ticks == self.values.get("crash-in-tick"):
            _crash()
        self.hung |= self.ticks == self.values.get("hang-in-tick")

    def drops_image(self) -> bool:
        """Count an image and return whether it is to be lost."""
        self._images += 1
        every = int(self.values.get("drop-frames", 0))
        return every > 0 and self._images % every == 0

    def garbage(self) -> bytes | None:
        """Return what to send instead of an answer, if anything."""
        first = self.values.get("garbage")
        return _GARBAGE if first is not None and self.ticks >= int(first) else None

    def count_load(self) -> None:
        """Count a load of a map, and keep memory if that is the fault."""
        size = int(float(self.values.get("leak", 0.0)) * 2**20)
        if size:
            self._leaked.append(bytearray(b"\1" * size))


def parse_faults(texts: Iterable[str]) -> Faults:
    """Return faults from their names and values.

    Args:
        texts: each `NAME` or `NAME:VALUE`, as in this module's table.

    Raises:
        ConfigError: a name is unknown, or a value is missing or of the wrong kind.
    """
    values: dict[str, float | int | str] = {}
    for text in texts:
        name, _, given = text.partition(":")
        if name not in FAULTS:
            raise ConfigError(f"--fault {text}: there is no fault '{name}'; {did_you_mean(name, FAULTS)}")
        kind, default = FAULTS[name]
        if not given:
            if default is None:
                raise ConfigError(
                    f"--fault {text}: '{name}' needs a value, e.g. {name}:{'tick_cue' if kind is str else 5}"
                )
            values[name] = default
            continue
        if kind is None:
            raise ConfigError(f"--fault {text}: '{name}' takes no value")
        try:
            values[name] = kind(given)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(f"--fault {text}: '{given}' is not {wanted}") from None
        if kind is not str and not 0 < float(values[name]) < 1e9:
            raise ConfigError(f"--fault {text}: {given} is not above 0 and below 1e9")
    return Faults(values)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
