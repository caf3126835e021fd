"""Hyperparameters that only some methods have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mcnn_ray.errors import ConfigError, did_you_mean

__all__ = ["Option", "read_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A hyperparameter that only some methods have.

    Attributes:
        default: its value where nothing else is asked for; a whole number where it only takes such.
        least: the lowest number it takes.
        most: the highest; None for any.
        choices: the words it takes, where it is one.
        meaning: in a few words, with its unit.
    """

    default: float | int | str
    least: float = 0.0
    most: float | None = None
    choices: tuple[str, ...] = ()
    meaning: str

    def read(self, name: str, value: object) -> float | int | str:
        """Return a value of the option's kind.

        Raises:
            ConfigError: the value is of another kind or out of range.
        """
        if self.choices:
            if value not in self.choices:
                raise ConfigError(f"option {name} is '{value}'; {did_you_mean(str(value), self.choices)}")
            return str(value)
        whole = isinstance(self.default, int)
        try:
            number = float(str(value))
        except ValueError:
            number = float("nan")
        inside = self.least <= number <= (float("inf") if self.most is None else self.most)
        if not inside or number == float("inf") or (whole and number != int(number)):
            kind = "a whole number" if whole else "a number"
            most = "" if self.most is None else f" and at most {self.most:g}"
            raise ConfigError(f"option {name} is {value}; it must be {kind} of at least {self.least:g}{most}")
        return int(number) if whole else number


def read_options(options: Mapping[str, Option], names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return some options' values from a policy's settings, of which more may be given.

    Args:
        options: of the method, by name.
        names: of those that are read.
        given: values by name.

    Raises:
        KeyError: one is not given.
        ValueError: one is of another kind or out of range.
    """
    try:
        return {name: options[name].read(name, given[name]) for name in names}
    except ConfigError as error:
        raise ValueError(str(error)) from error
