"""The code of tutorials, of how-to pages, of those on other libraries and of the reference prints what they say.

All pages that run by default do so in one process: see `code_blocks.py`. `make soak` runs the others.
"""

from __future__ import annotations

import re

import pytest

from tests.docs import test_reference
from tests.docs.code_blocks import ROOT, Block, blocks_of, check, run_blocks
from tests.needed_packages import needs

DOCS = ROOT / "docs"
FOLDERS = ("reference", "tutorials", "how-to", "coming-from")
PAGES = [
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "pool.md",
    *(page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))),
]
WITH_TORCH = {
    *(f"reference/{name}.md" for name in ("exchange", "pipeline", "rl", "training")),
    *("tutorials/5-train-a-transformer.md", "tutorials/7-actor-learner.md"),
    *("how-to/gpus.md", "how-to/watch-a-policy.md"),
    *(
        f"coming-from/{name}.md"
        for name in ("accelerate-lightning", "pytorch", "torchrun", "torch-pipelining", "deepspeed-megatron", "horovod")
    ),
    *(path for path in test_reference.EXAMPLES if re.match(r"ropewalk\.(exchange|pipeline|rl|training|Train)", path)),
}
"""To import it, in this process and in the one that others are forked from, takes a third of the time of all pages."""
IN_SOAK = WITH_TORCH | {
    "tutorials/4-evolve-a-walker.md",  # three runs of two seconds; the example of the same name runs by default
    "how-to/search-from-the-shell.md",  # so do the tests of the commands
    "how-to/testing.md",  # and those of the plugin for pytest
}
IN_LAB = {"how-to/hugging-face.md"}
"""Pages that need large packages, which `make lab` installs."""
BLOCKS = [*blocks_of(*PAGES), *(block for block in test_reference.EXAMPLES.values() if block)]


def run(pages: set[str], factory: pytest.TempPathFactory, *warm: str) -> dict[str, str]:
    """What the blocks of pages print, in processes that are forked from one that has imported `warm`."""
    needs("optuna", "sqlalchemy", *warm)
    return run_blocks([block for block in BLOCKS if block.page in pages], factory.mktemp("pages"), preload=warm)


def those_in(pages: set[str]) -> list[Block]:
    """The blocks of pages that are run."""
    return [block for block in BLOCKS if block.is_run and block.page in pages]


BY_DEFAULT = {block.page for block in BLOCKS} - IN_SOAK - IN_LAB


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run(BY_DEFAULT, tmp_path_factory, "numpy")


@pytest.fixture(scope="module")
def printed_in_soak(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from ropewalk.training.stage_fleet import PRELOADED  # which imports torch

    return run(IN_SOAK, tmp_path_factory, "gymnasium", *PRELOADED)


@pytest.fixture(scope="module")
def printed_in_lab(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run(IN_LAB, tmp_path_factory, "torch")


@pytest.mark.parametrize("block", those_in(BY_DEFAULT), ids=str)
def test_the_blocks_of_the_pages_print_what_the_pages_say(block: Block, printed: dict[str, str]) -> None:
    check(block, printed[block.name])


@pytest.mark.soak
@pytest.mark.parametrize("block", those_in(IN_SOAK), ids=str)
def test_the_blocks_of_the_slow_pages_print_what_the_pages_say(block: Block, printed_in_soak: dict[str, str]) -> None:
    check(block, printed_in_soak[block.name])


@pytest.mark.lab
@pytest.mark.parametrize("block", those_in(IN_LAB), ids=str)
def test_the_blocks_that_need_large_packages_print_what_the_pages_say(
    block: Block, printed_in_lab: dict[str, str]
) -> None:
    check(block, printed_in_lab[block.name])


def test_the_pages_that_run_elsewhere_are_there() -> None:
    assert {block.page for block in BLOCKS} >= IN_SOAK | IN_LAB
