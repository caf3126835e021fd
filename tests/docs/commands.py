"""The commands that README and docs print: found, parsed as their programs would, and each with a way it is run.

`python -m tests.docs.commands` lists them.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from mcnn_ray.cli import app
from mcnn_ray.cli_sweep import _given
from mcnn_ray.config import SweepConfig
from mcnn_ray.errors import McnnError
from mcnn_ray.tasks.catalogue import find_task

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    *("mcnn", "python", "make", "ray", "minari", "mlflow", "mkdocs", "jupyter"),
    *("pip", "apt-get", "podman", "docker", "kubectl", "export", "ls", "bash", "curl"),
)
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*=\S*$")
# Flags in prose that belong to other programs.
OTHERS_FLAGS = {"--no-deps", "--dashboard-host"}
# Rows of README's and the docs' tables stand for several commands or leave out what varies.
_SCHEMATIC = re.compile(r"\.\.\.|\bCOMMAND\b|\[")


class WrongCommand(Exception):
    """A printed command that its program would refuse."""


@dataclass(frozen=True)
class Printed:
    """A command in a page: its place, and its text with lines joined and comments gone."""

    place: str
    text: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def code_blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the line number, language and lines of fenced blocks and of those indented by four spaces."""
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        if lines[i].lstrip().startswith("```"):
            language, start = lines[i].strip().strip("`"), i + 1
            i = start
            while not lines[i].lstrip().startswith("```"):
                i += 1
            yield start + 1, language, lines[start:i]
        elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip()):
            start = i
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                i += 1
            yield start + 1, "", [line[4:] for line in lines[start:i]]
            continue
        i += 1


def printed_commands(path: Path) -> list[Printed]:
    """Return the commands in the code blocks of a page."""
    found = []
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    for first, language, lines in code_blocks(path.read_text()):
        if language not in ("", "sh", "bash", "console"):
            continue
        text, at = "", first
        for number, line in enumerate(lines, first):
            if not text:
                at, text = number, "" if line.startswith(" ") else line.removeprefix("$ ")
            elif text.endswith("\\"):
                text = f"{text[:-1].rstrip()} {line.strip()}"
            if text.endswith("\\"):
                continue
            command, text = re.sub(r"\s+#\s.*", "", text), ""
            if (words := split(command)) and program_of(words) in PROGRAMS:
                found.append(Printed(f"{name}:{at}", command))
    return found


def split(text: str) -> list[str]:
    """Return a line's words as a shell sees them, without its comment; none where it is no command."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []


def program_of(words: list[str]) -> str:
    return next((word for word in words if not _SETTING.match(word)), "")


def check(text: str) -> None:
    """Parse a command as its program would, without running it.

    Raises:
        WrongCommand: a subcommand, flag, value, file or target does not exist.
    """
    words = [word for word in split(text) if word != "&"]
    while words and _SETTING.match(words[0]):
        words.pop(0)
    program, *arguments = words
    checks = {"mcnn": _check_mcnn, "python": _check_python, "make": _check_make, "ray": _check_ray}
    checks.get(program, lambda _: None)(arguments)


@functools.cache
def _mcnn() -> Any:
    return get_command(app)


def _check_mcnn(arguments: list[str]) -> None:
    leaf, name, rest = _leaf(_mcnn(), "mcnn", [word for word in arguments if word != "--debug"])
    values = _parsed(leaf, name, rest)
    if name in ("mcnn sweep", "mcnn train") and not {"--help"} & set(rest):
        given = _given(values)
        if given.get("task"):
            _sweep(given, name)
    elif isinstance(values.get("task"), str) and not values["task"].isupper():
        _meant(find_task, values["task"])


def _leaf(command: Any, name: str, arguments: list[str]) -> tuple[Any, str, list[str]]:
    while hasattr(command, "commands"):
        if not arguments or arguments[0].startswith("-"):
            break
        word, *arguments = arguments
        if word not in command.commands:
            raise WrongCommand(f"{name} has no command '{word}'")
        command, name = command.commands[word], f"{name} {word}"
    return command, name, arguments


def _parsed(command: Any, name: str, arguments: list[str]) -> dict[str, Any]:
    """Return the values that a command's parameters get; callbacks, which may act, are taken out."""
    for parameter in command.params:
        parameter.callback = None
    asks = "--help" in arguments
    try:
        context = command.make_context(name, [word for word in arguments if word != "--help"], resilient_parsing=asks)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise WrongCommand(f"{name}: {error.format_message()}") from error
    return dict(context.params)


def _sweep(values: dict[str, Any], source: str) -> None:
    if str(values["task"]).isupper():
        values = {**values, "task": "door-expert-v1"}
    _meant(lambda given: SweepConfig.parse(given, source).find_task(), values)


def _meant(call: Any, value: Any) -> None:
    try:
        call(value)
    except McnnError as error:
        raise WrongCommand(str(error)) from error


def _check_python(arguments: list[str]) -> None:
    if arguments[:1] == ["-m"]:
        module, *arguments = arguments[1:]
        if module == "mcnn_ray.bench":
            _check_mcnn(["bench", *arguments])
    else:
        script, *flags = arguments
        if "/" in script:
            _exists(script)
        if script.startswith("sweeps/") and "--help" not in flags:
            leaf, name, rest = _sweep_command(flags)
            values = _given(_parsed(leaf, name, [flag for flag in rest if flag != "--paper"]))
            _sweep({"task": "door-expert-v1", **values}, script)
        elif "/" in script:
            text = (ROOT / script).read_text()
            for flag in flags:
                name = flag.removeprefix("--").replace("-", "_")
                if flag.startswith("--") and flag != "--help" and not re.search(rf"\b{name}\b", text):
                    raise WrongCommand(f"{script} has no flag {flag}")
    for argument in arguments:
        if argument.startswith(("tests/", "sweeps/", "cluster/")):
            _exists(argument)


def _sweep_command(flags: list[str]) -> tuple[Any, str, list[str]]:
    return _leaf(_mcnn(), "mcnn", ["sweep", *flags])


def _check_make(arguments: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in arguments:
        if "=" not in target and target not in targets:
            raise WrongCommand(f"the Makefile has no target '{target}'")


def _check_ray(arguments: list[str]) -> None:
    for argument in arguments:
        if argument.startswith(("sweeps/", "cluster/")):
            _exists(argument)
        elif argument.startswith("mcnn "):
            check(argument)
    if "--" in arguments:
        own, sent = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
        check(shlex.join(sent if sent[0] == "python" else ["python", *own[2:], *sent]))


def _exists(path: str) -> None:
    if not (ROOT / path).exists():
        raise WrongCommand(f"{path} does not exist")


def spans(path: Path) -> list[str]:
    """Return what stands between single backticks in a page's prose, whatever lines it goes over."""
    text = path.read_text()
    lines = text.splitlines()
    for first, language, block in code_blocks(text):
        for number in range(first - 1, first - 1 + len(block)):
            lines[number] = ""
        if language or lines[first - 2].lstrip().startswith("```"):
            lines[first - 2] = lines[min(first - 1 + len(block), len(lines) - 1)] = ""
    return [" ".join(found.split()) for found in re.findall(r"(?<!`)`([^`]+)`(?!`)", "\n".join(lines))]


def spoken_commands(path: Path) -> list[str]:
    """Return the `mcnn` commands in a page's prose; `a / b` stands for both."""
    found = []
    for span in spans(path):
        if not span.startswith("mcnn ") or _SCHEMATIC.search(span):
            continue
        first, *others = span.split(" / ")
        words = first.split()
        found += [first, *(" ".join([*words[:-1], other]) for other in others)]
    return found


def check_spoken(text: str) -> None:
    """Check the subcommand and flags of a command in prose, which may leave out arguments."""
    leaf, name, rest = _leaf(_mcnn(), "mcnn", [word for word in split(text)[1:] if word != "--debug"])
    known = {flag for parameter in leaf.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in rest:
        if word.startswith("--") and word not in known:
            raise WrongCommand(f"{name} has no flag {word}")


@functools.cache
def all_flags() -> set[str]:
    """Return the flags of all `mcnn` commands."""

    def below(command: Any) -> set[str]:
        own = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
        return own.union(*(below(each) for each in getattr(command, "commands", {}).values()))

    return below(_mcnn()) | {"--help"}


def sweep_files(path: Path) -> list[dict[str, Any]]:
    """Return the blocks of a page that are sweep files."""
    known = {field.alias or name for name, field in SweepConfig.model_fields.items()}
    found = []
    for _, language, lines in code_blocks(path.read_text()):
        if language in ("", "yaml") and lines and lines[0].partition(":")[0] in known:
            found.append(yaml.safe_load("\n".join(lines)))
    return found


if __name__ == "__main__":
    from tests.docs.ways import way_of

    for path in pages():
        for command in printed_commands(path):
            way = way_of(command.text)
            sys.stdout.write(f"{command.place:32} {way.name + ':':9} {command.text}  ({way.reason})\n")
