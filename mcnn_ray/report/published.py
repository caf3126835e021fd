"""The paper's numbers, as files of the package: `published/*.csv`, under our names of tasks and methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from mcnn_ray.errors import ConfigError, did_you_mean

__all__ = ["COLUMNS", "D4RL_BC", "published"]

COLUMNS = ("task", "method", "setting", "metric", "mean", "std", "source", "note")
D4RL_BC = "d4rl-bc"  # D4RL's own behaviour cloning; the paper's, MLP-BC, is `bc`
_FOLDER = Path(__file__).parent / "published"
_FIXED = "lambda 0.1, 10 % of the steps as memories: the paper's fixed setting, whose return the table has"


def published(name: str) -> pd.DataFrame:
    """Return what the paper publishes of a table or figure.

    Args:
        name: as `mcnn reproduce` takes it.

    Returns:
        Columns task, method, setting, metric (`return`, `score`, `p1`, ...), mean, std (nan where none), source (table
        of the paper), note (what was corrected, or empty). No row where a figure's values are nowhere printed.

    Raises:
        ConfigError: no such name.
    """
    if name not in _PUBLISHED:
        raise ConfigError(f"nothing of the paper is called '{name}'; {did_you_mean(name, _PUBLISHED)}")
    return _PUBLISHED[name]()[list(COLUMNS)].reset_index(drop=True)


def _read(name: str) -> pd.DataFrame:
    table = pd.read_csv(_FOLDER / f"{name}.csv", keep_default_na=False, dtype=str)
    for column in ("mean", "std"):
        table[column] = pd.to_numeric(table[column], errors="raise").astype(float)
    return table


def _returns(*methods: str) -> pd.DataFrame:
    """Return the returns, not the scores, of some methods; of all where none is named."""
    table = _read("returns")
    table = table[table["metric"] == "return"]
    return table[table["method"].isin(methods)] if methods else table


def _fixed_as(setting: str, *others: str) -> pd.DataFrame:
    """Return the fixed setting of `mcnn+mlp` under a figure's name of it, and other methods as they are."""
    table = _returns("mcnn+mlp", *others)
    table = table[table["setting"] == "fixed"].copy()
    own = table["method"] == "mcnn+mlp"
    table.loc[own, ["setting", "note"]] = [setting, _FIXED]
    return table


def _human_and_expert(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["task"].str.contains("-human-|-expert-")]


def _oversampling() -> pd.DataFrame:
    table = _read("oversampling")
    blended = _returns("mcnn+mlp")
    return pd.concat([table, blended[blended["task"].isin(table["task"])]])


def _aggregate() -> pd.DataFrame:
    table = _returns()
    return _human_and_expert(table[table["setting"] == "fixed"])


_PUBLISHED: Mapping[str, Callable[[], pd.DataFrame]] = MappingProxyType(
    {
        "returns": lambda: _read("returns"),
        "kitchen": lambda: _read("kitchen"),
        "oversampling": _oversampling,
        "demonstrations": lambda: _read("demonstrations"),
        "memories": lambda: _human_and_expert(_fixed_as("memories=10%", "bc", "1nn")),
        "lambda-memories": lambda: _fixed_as("lambda=0.1 memories=10%"),
        "neural-gas": lambda: _human_and_expert(_fixed_as("neural-gas")),
        "fixed-tuned": lambda: _returns("mcnn+mlp"),
        "function-class": lambda: _read("returns").iloc[:0],
        "aggregate": _aggregate,
    }
)
