"""Maps by name: those that come with the package, and any OpenDRIVE file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from mcnn_ray.errors import ConfigError, did_you_mean

__all__ = ["MAPS_PREFIX", "available_maps", "find_map"]

MAPS_PREFIX = "Lite/Maps/"  # of the names that clients are told, by which they know a lite server
_SUFFIX = ".xodr"
_LARGEST_BYTES = 64 * 2**20


def available_maps() -> list[str]:
    """Return the names of the packaged maps."""
    folder = resources.files("mcnn_ray") / "assets" / "maps"
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))


def find_map(name: str) -> tuple[str, str]:
    """Return a map's name and its OpenDRIVE text.

    Args:
        name: of a packaged map, or the path of an OpenDRIVE file.

    Raises:
        ConfigError: there is no such map, or the file cannot be read as text.
    """
    packaged = available_maps()
    if name in packaged:
        return name, (resources.files("mcnn_ray") / "assets" / "maps" / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"there is no map '{name}', neither packaged nor a file; {did_you_mean(name, packaged)}")
    if path.stat().st_size > _LARGEST_BYTES:
        raise ConfigError(f"{path} has more than {_LARGEST_BYTES:,} bytes; give an OpenDRIVE (.xodr) file")
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as text ({error}); give an OpenDRIVE (.xodr) file") from None
