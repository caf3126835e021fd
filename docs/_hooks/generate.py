"""Pages that MkDocs makes of the code: the command reference of the Typer app, and the modules' docstrings.

The docstrings are read without importing anything; of the package, only the command line is imported.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "mcnn_ray"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List a page for each package below "Reference"."""
    (reference,) = (item["Reference"] for item in config.nav or [] if "Reference" in item)
    reference.extend({name: f"reference/{name}.md"} for name in packages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {name: package_page(name, modules) for name, modules in packages().items()}
    for name, content in {"commands": command_page(), **pages}.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def packages() -> dict[str, list[str]]:
    """Return the modules that list public names, by package; the command line's have a page of their own."""
    found: dict[str, list[str]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        parts = [*path.relative_to(_ROOT).with_suffix("").parts]
        if parts[-1].startswith(("_", "cli")) or "\n__all__ = [" not in path.read_text():
            continue
        found.setdefault(".".join(parts[:-1]), []).append(".".join(parts))
    return found


def package_page(name: str, modules: list[str]) -> str:
    """Return the page of a package: a section a module."""
    return "\n\n".join([f"# {name}", *(f"::: {module}" for module in modules)]) + "\n"


def command_page() -> str:
    """Return the page of all commands: what each does, its example, its arguments and flags."""
    from typer.main import get_command

    from mcnn_ray.cli import app

    lines = [
        "# Commands",
        "",
        "Exit status: 0, or 1 where something failed, or 2 where it was asked wrongly. `--debug`, anywhere, shows the "
        "traceback of an error. `mcnn --version` prints the version.",
    ]
    for name, command in commands(get_command(app), "mcnn"):
        lines += ["", f"## {name}", "", *_command(name, command)]
    return "\n".join(lines) + "\n"


def commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the full name and the Click command of each leaf below a group."""
    for part, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {part}")
        else:
            yield f"{name} {part}", command


def _command(name: str, command: Any) -> list[str]:
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [parameter for parameter in shown if parameter.param_type_name == "option"]
    text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    places = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]
    lines = [_cell(text.strip()), "", f"    {' '.join([name, *places])}{' [FLAGS]' if options else ''}", ""]
    if example:
        lines += ["Example:", "", f"    {example.strip()}", ""]
    if shown:
        lines += ["| | meaning | default |", "|---|---|---|"]
    for parameter in [*arguments, *options]:
        names = [parameter.name.upper()] if parameter in arguments else [*parameter.opts, *parameter.secondary_opts]
        flag = ", ".join(f"`{flag}`" for flag in names)
        lines.append(f"| {flag} | {_cell(parameter.help or '')} | {_default(parameter)} |")
    return lines


def _default(parameter: Any) -> str:
    if parameter.required:
        return "needed"
    value = parameter.default
    return "" if value is None or value is False or callable(value) else f"`{str(value).replace('True', 'yes')}`"


def _cell(text: str) -> str:
    """Return text in which nothing is taken for Markdown or HTML by accident."""
    return re.sub(r"([|<>*_])", r"\\\1", " ".join(text.split()))
