"""Every command in README and docs is one that its program takes; the cheap ones run as printed in an empty home."""

import ast
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcnn_ray.config import SweepConfig
from tests.docs.commands import (
    OTHERS_FLAGS,
    ROOT,
    WrongCommand,
    all_flags,
    check,
    check_spoken,
    code_blocks,
    pages,
    printed_commands,
    program_of,
    spans,
    split,
    spoken_commands,
    sweep_files,
)
from tests.docs.ways import way_of

PAGES = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in pages()]


@pytest.mark.parametrize("page", PAGES)
def test_printed_commands_are_ones_that_their_programs_take(page):
    for command in printed_commands(page):
        try:
            check(command.text)
        except WrongCommand as error:
            pytest.fail(f"{command.place}: {command.text}: {error}")
        way_of(command.text)
    for text in spoken_commands(page):
        try:
            check_spoken(text)
        except WrongCommand as error:
            pytest.fail(f"{page}: `{text}`: {error}")


@functools.cache
def _scripts():
    return "".join(file.read_text() for file in [*ROOT.glob("sweeps/*.py"), *ROOT.glob("tests/**/*.py")])


@pytest.mark.parametrize("page", PAGES)
def test_flags_and_files_in_prose_exist(page):
    known = all_flags() | OTHERS_FLAGS
    written = _scripts()
    for span in spans(page):
        if span.startswith("--"):
            flag = re.split(r"[ =]", span)[0]
            assert flag in known or f'"{flag}"' in written, f"{page}: no command has {flag}"
        elif re.fullmatch(r"(mcnn_ray|tests|sweeps|cluster|notebooks|docs)/[\w./-]*", span):
            assert (ROOT / span).exists(), f"{page}: {span} does not exist"
        elif re.fullmatch(r"mcnn_ray(\.\w+)+", span):
            place = ROOT.joinpath(*span.split("."))
            assert any(each.exists() for each in (place, place.with_suffix(".py"), place.parent.with_suffix(".py")))


@pytest.mark.parametrize("page", PAGES)
def test_sweep_files_in_pages_are_valid(page):
    for keys in sweep_files(page):
        SweepConfig.parse({"task": "door-expert-v1", **keys}, str(page)).find_task()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("mcnn sweep --task door-expert-v1 --lamda 1", "No such option"),
        ("mcnn swep --task door-expert-v1", "no command 'swep'"),
        ("mcnn data gather door-expert-v1", "no command 'gather'"),
        ("mcnn sweep --task door-expert-v1 --distance manhattan", "manhattan"),
        ("mcnn sweep --task door-expert-v1 --option neighbors=3 --method 1nn", "neighbors"),
        ("mcnn memories door-exprt-v1", "did you mean 'door-expert-v1'"),
        ("mcnn train door-expert-v1 twice", "unexpected extra argument"),
        ("mcnn data import FILE.npz --task door-human-v1", "Missing argument"),
        ("mcnn ui --port zero", "valid integer"),
        ("OMP_NUM_THREADS=1 mcnn bench memories --point 3", "No such option"),
        ("python sweeps/none.py", "does not exist"),
        ("python sweeps/memories.py --stepz 3", "No such option"),
        ("python tests/benchmarks/compare_cql.py --none", "has no flag --none"),
        ("ray exec cluster/local.yaml 'mcnn sweep --tusk x'", "No such option"),
        ("ray submit cluster/local.yaml sweeps/memories.py -- --stepz 3", "No such option"),
        ("ray job submit --working-dir . -- python sweeps/memories.py --stepz 3", "No such option"),
        ("ray up cluster/none.yaml", "does not exist"),
        ("make quickstrat", "no target"),
    ],
)
def test_commands_that_would_fail_are_found(command, message):
    with pytest.raises(WrongCommand, match=message):
        check(command)


def test_commands_are_found_in_all_kinds_of_blocks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Text with `mcnn tasks --jsn` and\n`mcnn data collect / gather`.\n\n    mcnn tasks   # all\n\n- point\n\n"
        "    ray job submit -- \\\n        python sweeps/memories.py\n\n```sh\n$ FAST=1 mcnn methods\n```\n\n"
        "```python\nmcnn = 3\n```\n\n      mcnn+mlp 3.0\n"
    )
    found = [command.text for command in printed_commands(page)]
    assert found == ["mcnn tasks", "ray job submit -- python sweeps/memories.py", "FAST=1 mcnn methods"]
    assert spoken_commands(page) == ["mcnn tasks --jsn", "mcnn data collect", "mcnn data gather"]
    for text in ("mcnn tasks --jsn", "mcnn data gather"):
        with pytest.raises(WrongCommand):
            check_spoken(text)


def test_examples_in_help_are_ones_that_mcnn_takes():
    for file in (ROOT / "mcnn_ray").glob("cli*.py"):
        for example in re.findall(r"^    Example: (mcnn .*)$", file.read_text(), re.MULTILINE):
            check(example)


def test_messages_in_troubleshooting_are_those_of_the_code():
    texts = "\n".join(text for file in (ROOT / "mcnn_ray").rglob("*.py") for text in _texts(file.read_text()))
    rows = re.findall(r"^\| (`.*?`(?:, `.*?`)*) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(rows) > 40
    for message in (message for row in rows for message in re.findall("`(.*?)`", row)):
        pattern = ".*".join(re.escape(part) for part in message.split("..."))
        assert re.search(pattern, texts), f"no error says: {message}"


def _texts(code):
    """Yield the strings of a module, with `...` where an f-string has values."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


class Reader:
    """Someone who types a page's commands, in an empty home and folder."""

    def __init__(self, home):
        self.folder = home / "work"
        self.folder.mkdir()
        bin_folder = Path(sys.executable).parent
        kept = {name: os.environ[name] for name in ("LANG", "OMP_NUM_THREADS") if name in os.environ}
        path = f"{bin_folder}:{os.environ['PATH']}"
        self.environment = {**kept, "HOME": str(home), "PATH": path, "PYTHONPATH": f"{ROOT}:{self.folder}"}
        self.started, self.typed = [], set()
        for page in pages():  # modules that the pages print
            for _, language, lines in code_blocks(page.read_text()):
                if language == "python" and (name := re.fullmatch(r"# (\w+\.py)", lines[0])):
                    (self.folder / name[1]).write_text("\n".join(lines))

    def type(self, command):
        if command in self.typed:  # on an earlier page
            return
        self.typed.add(command)
        words = split(command)
        if program_of(words) == "export":
            self.environment.update(word.split("=", 1) for word in words[1:])
            return
        text = self._with_names(command)
        options = {"cwd": self.folder, "env": self.environment, "text": True}
        if words[-1] == "&":
            self.started.append(subprocess.Popen(text.removesuffix("&"), shell=True, start_new_session=True, **options))
            time.sleep(10)
            return
        done = subprocess.run(text, shell=True, capture_output=True, timeout=1800, **options)
        ends = [0, 1] if words[:2] == ["mcnn", "doctor"] else [0]  # 1 where something is to be mended
        assert done.returncode in ends, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr

    def _with_names(self, command):
        if found := re.search(r"runs/(\w+)/members/MEMBER", command):
            members = sorted((self.folder / "runs" / found[1] / "members").iterdir())
            kinds = [(each / "policy" / "policy.json").read_text() for each in members]
            member = next(each for each, kind in zip(members, kinds, strict=True) if "mcnn+mlp" in kind)
            return command.replace("MEMBER", member.name)
        return command

    def leave(self):
        for process in self.started:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


@pytest.fixture(scope="module")
def reader(tmp_path_factory, shared_data):
    someone = Reader(tmp_path_factory.mktemp("home"))
    shutil.copy(shared_data / "adroit_door_human.npz", someone.folder / "FILE.npz")
    yield someone
    someone.leave()


def _typed(page, *ways):
    with contextlib.suppress(LookupError):  # which the first test tells
        return [each.text for each in printed_commands(page) if way_of(each.text).name in ways]
    return []


CHEAP = [command for page in pages() for command in _typed(page, "run")]
COSTLY = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages() if _typed(page, "long")]


def test_cheap_commands_run_as_printed_in_an_empty_home(reader):
    assert len(CHEAP) >= 4
    for command in CHEAP:
        reader.type(command)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", COSTLY)
def test_expensive_commands_run_as_printed_in_an_empty_home(reader, page):
    for command in [*CHEAP, *_typed(page, "run", "long")]:
        reader.type(command)


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).is_file(), f"README.md links to {target}"


def test_site_builds_without_a_warning(tmp_path):
    """Every page is in the contents, every link leads somewhere, every docstring fits its signature."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    page = (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert "--memory-fraction" in page
    assert "nearest_memory" in (tmp_path / "site" / "reference" / "mcnn_ray.core.html").read_text()
    outside = re.compile(r'(?:src|href)="(?:https?:)?//(?!127\.0\.0\.1)[^"]*\.(?:js|css|woff2?)"')
    assert not [file for file in (tmp_path / "site").rglob("*.html") if outside.search(file.read_text())]
