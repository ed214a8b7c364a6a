"""The tutorials lead from one to the next; `test_pages.py` runs their code."""

from __future__ import annotations

import codeop
import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import blocks_of

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_tutorial_is_numbered_listed_short_and_leads_to_the_next(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[0]}. ")
    assert f"]({page.name})" in (FOLDER / "index.md").read_text()
    assert 80 <= len(text.splitlines()) <= 220
    following = [other.name for other in PAGES if other.name[0] == str(int(page.name[0]) + 1)]
    assert all(f"]({name})" in text for name in following)
    assert re.search(r"^## What you have learned|^## Where to go from here", text, re.MULTILINE)


def test_the_first_tutorials_can_be_pasted_into_a_prompt() -> None:
    """Where an empty line ends a `with` block, and a line without indentation is an error before that."""
    for block in blocks_of(*PAGES[:2]):
        lines: list[str] = []
        for line in [*block.code.splitlines(), ""] if block.language == "python" else []:
            lines.append(line)
            if codeop.compile_command("\n".join(lines)) is not None:
                lines = []
        assert not "".join(lines), f"{block} is not complete"
