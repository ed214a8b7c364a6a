"""The pages of docs/coming-from have both sides; `test_pages.py` runs the code of the right-hand ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ropewalk as rw

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "coming-from"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_both_sides_and_says_what_the_other_one_does_better(page: Path) -> None:
    text = page.read_text()
    assert text.startswith("# Coming from ")
    assert ("```py\n" in text or "```bash\n" in text) and "```python" in text
    assert "| you write | you write now |" in text
    assert re.search(r"^\*\*What .* do(?:es)? better\.\*\* ", text, re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, *(FOLDER.parent / "how-to").glob("*.md")], ids=lambda page: page.stem)
def test_every_name_of_ours_on_a_page_is_there(page: Path) -> None:
    for name in sorted(set(re.findall(r"\b(?:rw|ropewalk)((?:\.[A-Za-z_]+)+)", page.read_text()))):
        found = rw
        for part in name.split(".")[1:]:
            if part in ("toml", "testing"):
                break
            assert hasattr(found, part), f"{page.name} names rw{name}"
            found = getattr(found, part)


def test_the_index_has_every_page() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "index.md").read_text())
    assert sorted(listed) == [page.name for page in PAGES]
