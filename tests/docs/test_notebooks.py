"""Notebooks are made from their tutorials, and print in a kernel what the tutorials show."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.code_blocks import blocks_of, check

MADE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_notebooks.py"))
FOLDER: Path = MADE["FOLDER"]
NOTEBOOKS: Path = MADE["NOTEBOOKS"]
PAGES: tuple[str, ...] = MADE["PAGES"]
notebook_text: Callable[[str], str] = MADE["notebook_text"]

EXECUTE = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=None).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.parametrize("page", PAGES)
def test_notebooks_are_made_from_their_tutorials(page: str) -> None:
    committed = (NOTEBOOKS / f"{page}.ipynb").read_text()
    assert committed == notebook_text((FOLDER / f"{page}.md").read_text()), "run `python -m docs.make_notebooks`"


def test_links_of_notebooks_lead_to_files_that_are_there() -> None:
    text = notebook_text(
        "[a](1-first-pool.md), ![b](../pictures/pool.png), [c](https://x.org)\n\n```python\n1\n```\n\n```\n1\n```\n"
    )
    words, code = json.loads(text)["cells"]
    assert (
        words["source"]
        == "[a](../../docs/tutorials/1-first-pool.md), ![b](../../docs/tutorials/../pictures/pool.png), [c](https://x.org)"
    )
    assert code["source"] == "1"


@pytest.mark.soak  # a kernel takes 3 s of CPU time; that the code prints this, `test_pages.py` shows by default
@pytest.mark.parametrize("page", PAGES)
def test_notebooks_print_what_their_tutorials_show(page: str, tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel", "numpy", "optuna"):
        pytest.importorskip(needed, reason=f"runs a notebook: pip install {needed}")
    notebook, executed = NOTEBOOKS / f"{page}.ipynb", tmp_path / "executed.ipynb"
    environment = os.environ | {"ROPEWALK_STORE": str(tmp_path / "runs.db"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", EXECUTE, str(notebook), str(executed)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cells = [cell for cell in json.loads(executed.read_text())["cells"] if cell["cell_type"] == "code"]
    blocks = [block for block in blocks_of(FOLDER / f"{page}.md") if block.language == "python"]
    for cell, block in zip(cells, blocks, strict=True):
        # What a search says on stderr may come before or after what the cell prints.
        if block.says is not None and not any(output.get("name") == "stderr" for output in cell["outputs"]):
            check(block, "".join("".join(output.get("text", "")) for output in cell["outputs"]))
