"""Notebooks, run from the first cell to the last as a reader would.

`python -m tests.docs.notebooks` renews their outputs.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def run(path: Path, folder: Path) -> Any:
    """Execute a notebook in an empty folder, with an empty home, and return it with its outputs.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    changed = {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    changed |= {"PYTHONPATH": str(ROOT), "MINARI_DATASETS_PATH": str(folder / "minari"), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **changed}
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        environment.pop(name, None)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook


def strip(notebook: Any, folder: Path) -> Any:
    """Take out of a run notebook what belongs to one run or machine: times, paths, standard error."""
    notebook.metadata = {name: notebook.metadata[name] for name in ("kernelspec", "language_info")}
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        kept = [output for output in cell.outputs if output.get("name") != "stderr"]
        kept = [output for output in kept if output.get("data", {}).get("text/html") != ""]  # of rich, and empty
        for output in kept:
            output.metadata = {}
            if picture := output.get("data", {}).get("image/png"):
                output.data["image/png"] = _with_few_colours(picture)
            if "text" in output:
                output.text = re.sub(r"[ \t]+$", "", output.text.replace(f"{folder}/", ""), flags=re.MULTILINE)
        cell.outputs = kept
    return notebook


def _with_few_colours(picture: str) -> str:
    found = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(64)
    found.save(written := io.BytesIO(), "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main() -> None:
    chosen = [path for path in NOTEBOOKS if not sys.argv[1:] or path.stem in sys.argv[1:]]
    for path in chosen:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(strip(run(path, Path(folder)), Path(folder)), path)


if __name__ == "__main__":
    main()
