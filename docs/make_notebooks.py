"""Makes the notebooks of some tutorials from their Markdown, so that each text exists once.

    python -m docs.make_notebooks     # in the folder of the project

Text becomes Markdown cells, and Python blocks become cells of code. Blocks of output are left out, since a notebook
shows its output itself. A test compares the notebooks with their tutorials.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "tutorials"
PAGES = ("1-first-pool", "3-parameter-server", "6-search-hyperparameters")
"""The tutorials that are also notebooks."""
_PYTHON = re.compile(r"(?:<!-- [^\n]* -->\n)*```python\n(.*?)```\n(?:\n```\n.*?```\n)?", re.DOTALL)


def notebook_text(markdown: str) -> str:
    """A tutorial as the text of a notebook, always the same one for the same tutorial."""
    cells: list[dict[str, Any]] = []
    position = 0
    for block in _PYTHON.finditer(markdown):
        cells += _markdown_cells(markdown[position : block.start()])
        code = block[1].strip("\n")
        cells.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": code})
        position = block.end()
    cells += _markdown_cells(markdown[position:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _markdown_cells(text: str) -> list[dict[str, Any]]:
    """A cell of the text, if there is any, with links and pictures as seen from the folder of the notebooks."""
    text = re.sub(r"<!-- .*? -->\n", "", text).strip("\n")
    text = re.sub(r"\]\((?!https?:|#)([^)]+)\)", r"](../\1)", text)
    return [{"cell_type": "markdown", "metadata": {}, "source": text}] if text else []


def main() -> None:
    """Write all notebooks."""
    for page in PAGES:
        path = FOLDER / "notebooks" / f"{page}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text(notebook_text((FOLDER / f"{page}.md").read_text()))


if __name__ == "__main__":
    main()
