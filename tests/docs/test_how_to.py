"""The pages of docs/how-to: what their code prints, and that each stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import Block, blocks_of, check, run_blocks

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
LARGE = [FOLDER / "hugging-face.md"]
"""Pages that need large packages, which `make lab` installs."""
SLOW = [FOLDER / name for name in ("gpus.md", "search-from-the-shell.md", "testing.md", "watch-a-policy.md")]
"""Pages that use torch, commands and pytest, in two thirds of the time of all; `tests/cli` and `tests/testing` run
those too."""
BLOCKS = blocks_of(*[page for page in PAGES if page not in LARGE + SLOW])
SLOW_BLOCKS = blocks_of(*SLOW)
LARGE_BLOCKS = blocks_of(*LARGE)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_blocks(BLOCKS, tmp_path_factory.mktemp("how_to"))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_run], ids=str)
def test_the_blocks_of_the_pages_print_what_the_pages_say(block: Block, printed: dict[str, str]) -> None:
    check(block, printed[block.name])


@pytest.fixture(scope="module")
def printed_slowly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_blocks(SLOW_BLOCKS, tmp_path_factory.mktemp("how_to_slowly"))


@pytest.mark.soak
@pytest.mark.parametrize("block", [block for block in SLOW_BLOCKS if block.is_run], ids=str)
def test_the_blocks_of_the_slow_pages_print_what_the_pages_say(block: Block, printed_slowly: dict[str, str]) -> None:
    check(block, printed_slowly[block.name])


@pytest.mark.lab
@pytest.mark.parametrize("block", [block for block in LARGE_BLOCKS if block.is_run], ids=str)
def test_the_blocks_that_need_large_packages_print_what_the_pages_say(block: Block, tmp_path: Path) -> None:
    check(block, run_blocks(LARGE_BLOCKS, tmp_path, preload=["torch"])[block.name])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_answers_one_question_shortly(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert lines[0].startswith("# ") and lines[0].endswith("?")
    assert sum(line.startswith("# ") and not line.startswith("#!") for line in _outside_of_code(lines)) == 1
    assert len(lines) <= 60


def test_the_index_has_every_page() -> None:
    rows = re.findall(r"^\| (.*?) \| \[.*?\]\((.*?)\) \|$", (FOLDER / "index.md").read_text(), re.MULTILINE)
    titles = {page.name: page.read_text().splitlines()[0].removeprefix("# ") for page in PAGES}
    assert {name: question for question, name in rows} == titles


def _outside_of_code(lines: list[str]) -> list[str]:
    found: list[str] = []
    inside = False
    for line in lines:
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            found.append(line)
    return found
