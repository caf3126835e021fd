"""What a search draws from: ranges of numbers, written `{low: 0.01, high: 100, log: true}` or `0.01..100:log`."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

__all__ = ["SEARCHED_KEYS", "Range", "numbers_or_range", "values_of"]

# What a search chooses beside options, in the order in which it is drawn.
SEARCHED_KEYS = (
    *("lambda_", "L", "memory_fraction", "memories", "memory_action", "learning_rate", "beta_schedule"),
    "distance",
)

_DIGITS = 3  # of a number drawn: more would be noise in a table


class Range(BaseModel):
    """Numbers from `low` to `high`, drawn evenly, or evenly in their logarithm.

    Attributes:
        low: lower end.
        high: upper end, above it.
        log: whether powers of ten are equally likely; both ends are above 0 then.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: FiniteFloat
    high: FiniteFloat
    log: bool = False

    @model_validator(mode="after")
    def _check(self) -> Range:
        if self.low >= self.high:
            raise ValueError(
                f"a range goes from a lower number to a higher one, not from {self.low:g} to {self.high:g}"
            )
        if self.log and self.low <= 0:
            raise ValueError(f"a range with log starts above 0, not at {self.low:g}")
        return self

    def rounded(self, value: float) -> float:
        """Return a number drawn, to three digits."""
        return min(self.high, max(self.low, float(f"{value:.{_DIGITS}g}")))


def values_of(value: tuple[Any, ...] | Range) -> tuple[Any, ...]:
    """Return the values of a key; of a range its ends."""
    return (value.low, value.high) if isinstance(value, Range) else value


def numbers_or_range(value: Any) -> Any:
    """Return a key's value as a `Range` where it is written as one, else as a list.

    Raises:
        ValueError: it is written as a range and cannot be one.
    """
    (only,) = value if isinstance(value, (list, tuple)) and len(value) == 1 else (value,)
    if isinstance(only, str) and ".." in only:
        found = re.fullmatch(r"(.+?)\.\.(.+?)(:log)?", only)
        if found is None:
            raise ValueError("a range is written LOW..HIGH or LOW..HIGH:log")
        only = {"low": found[1], "high": found[2], "log": found[3] is not None}
    if isinstance(only, dict):
        try:
            return Range(**only)
        except ValidationError as error:
            fault = error.errors()[0]
            where = f"{fault['loc'][0]}: " if fault["loc"] else ""
            raise ValueError(f"{where}{fault['msg'].removeprefix('Value error, ')}") from None
        except TypeError:
            raise ValueError("a range has the keys low, high and log") from None
    if value is None:
        return []
    return value if isinstance(value, (list, tuple, Range)) else [value]
