"""Reading a sweep's file, and saying what is wrong with its values."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from mcnn_ray.errors import ConfigError, did_you_mean

__all__ = ["first_fault", "read_sweep_file"]

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring = 2, 100


def first_fault(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first thing that pydantic found wrong, as the rest of a sentence."""
    fault = error.errors()[0]
    key = str(fault["loc"][0]) if fault["loc"] else ""
    keys = [field.alias or name for name, field in model.model_fields.items()]
    if fault["type"] == "extra_forbidden":
        return f"unknown key '{key}'; {did_you_mean(key, keys)}"
    if fault["type"] == "missing":
        return f"the key '{key}' is missing"
    told = fault["msg"].removeprefix("Value error, ")
    # Cut short: a few lines of YAML that refer to each other can stand for a text of any length.
    return f"{key} is {_SHORT.repr(fault['input'])}: {told[0].lower()}{told[1:]}"


def read_sweep_file(path: Path) -> dict[str, Any]:
    """Read a sweep's YAML file.

    Args:
        path: the file; its keys are those of `mcnn_ray.config.SweepConfig`.

    Returns:
        Keys and values, not yet checked.

    Raises:
        ConfigError: missing, not YAML, or not a mapping.
    """
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path} holds no keys and values; a sweep file starts like: task: door-human-v1")
    return values
