"""The pages of docs/coming-from: what the code on their right-hand sides prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ropewalk as rw
from tests.docs.code_blocks import Block, blocks_of, check, run_blocks

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "coming-from"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
#: Their processes import torch, which takes most of the time of these tests.
OF_TORCH = {"pytorch.md", "torchrun.md", "torch-pipelining.md", "deepspeed-megatron.md", "horovod.md"}
LIGHT = blocks_of(*(page for page in PAGES if page.name not in OF_TORCH))
HEAVY = blocks_of(*(page for page in PAGES if page.name in OF_TORCH))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_blocks(LIGHT, tmp_path_factory.mktemp("coming_from"))


@pytest.mark.parametrize("block", [block for block in LIGHT if block.is_run], ids=str)
def test_the_blocks_of_the_pages_print_what_the_pages_say(block: Block, printed: dict[str, str]) -> None:
    check(block, printed[block.name])


@pytest.fixture(scope="module")
def printed_with_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from ropewalk.training.stage_fleet import PRELOADED  # which imports torch

    return run_blocks(HEAVY, tmp_path_factory.mktemp("coming_from_torch"), PRELOADED)


@pytest.mark.soak
@pytest.mark.parametrize("block", [block for block in HEAVY if block.is_run], ids=str)
def test_the_blocks_that_use_torch_print_what_the_pages_say(block: Block, printed_with_torch: dict[str, str]) -> None:
    check(block, printed_with_torch[block.name])


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
