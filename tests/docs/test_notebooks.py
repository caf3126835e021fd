"""Notebooks run from the first cell to the last, and their committed outputs are small and of no one machine."""

import ast
import importlib
import re

import nbformat
import pytest

from tests.docs.notebooks import NOTEBOOKS, run

# Those that start Ray, MLflow or a simulator's server take 10 s of a processor and more: `make chaos` runs them.
QUICK = {"1_function_class"}
CASES = [pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else pytest.mark.long) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", CASES)
def test_notebook_runs_to_its_end(path, tmp_path):
    notebook = run(path, tmp_path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    told = str([output for cell in cells for output in cell.outputs])
    assert "Traceback" not in told
    assert "error:" not in told  # of a command, whose status a cell does not look at


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_notebooks_import_is_there(path):
    code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    code = re.sub(r"^[!%].*$", "", code, flags=re.MULTILINE)
    imported = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    wanted = [(node.module, alias.name) for node in imported for alias in node.names if "mcnn_ray" in node.module]
    assert all(hasattr(importlib.import_module(module), name) for module, name in wanted), wanted


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_outputs_are_small_and_of_no_machine(path):
    text = path.read_text()
    assert len(text) < 100_000
    assert not re.search(r"/tmp/|/root/|/home/|/work/", text)
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it again from the start"
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert not [output for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
    assert notebook.cells[0].cell_type == "markdown"
