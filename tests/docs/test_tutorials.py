"""The tutorials are run from their very text, and print what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import Block, blocks_of, check, run_blocks

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
SLOW = ("5-train-a-transformer.md", "7-actor-learner.md")
"""Those that start processes with torch for 10 s of CPU time or more; `make soak` runs them."""
BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.is_run]
QUICK = [block for block in BLOCKS if block.page not in SLOW]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the quick tutorials print."""
    for needed in ("numpy", "optuna", "sqlalchemy"):
        pytest.importorskip(needed, reason=f"the tutorials need {needed}: pip install 'ropewalk[search]'")
    return run_blocks(
        [block for page in PAGES if page.name not in SLOW for block in blocks_of(page)], folder(tmp_path_factory)
    )


@pytest.fixture(scope="module")
def printed_slowly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the tutorials with torch print."""
    pytest.importorskip("torch", reason="the tutorials train networks: pip install 'ropewalk[rl]'")
    pytest.importorskip("gymnasium", reason="a tutorial needs environments: pip install 'ropewalk[rl]'")
    from ropewalk.training.stage_fleet import PRELOADED  # which imports torch

    return run_blocks([block for block in BLOCKS if block.page in SLOW], folder(tmp_path_factory), PRELOADED)


def folder(factory: pytest.TempPathFactory) -> Path:
    """A folder for what the blocks write."""
    return factory.mktemp("tutorials")


@pytest.mark.parametrize("block", QUICK, ids=str)
def test_the_tutorials_print_what_they_show(block: Block, printed: dict[str, str]) -> None:
    check(block, printed[block.name])


@pytest.mark.soak
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.page in SLOW], ids=str)
def test_the_tutorials_with_torch_print_what_they_show(block: Block, printed_slowly: dict[str, str]) -> None:
    check(block, printed_slowly[block.name])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_tutorial_is_numbered_listed_short_and_leads_to_the_next(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[0]}. ")
    assert f"]({page.name})" in (FOLDER / "index.md").read_text()
    assert 80 <= len(text.splitlines()) <= 220
    following = [other.name for other in PAGES if other.name[0] == str(int(page.name[0]) + 1)]
    assert all(f"]({name})" in text for name in following)
    assert re.search(r"^## What you have learned|^## Where to go from here", text, re.MULTILINE)
