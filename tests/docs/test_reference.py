"""The examples of the reference, of the README and of the page on pools print what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.code_blocks import Block, blocks_of, check, run_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "pool.md",
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
BLOCKS = blocks_of(*PAGES)
# fmt: off
MOST_USED = [
    "Pool", "task_seed", "requires", "Resources", "Executor", "Program",
    "Service", "Worker", "method", "batched", "deadline", "Process",
    "Queue", "Pipe", "Lock", "Manager", "Value", "Array",
    "evaluate", "OpenAIES", "MAPElites", "Experiment", "PPO", "ReplayTable",
    "Search", "ASHA", "LogUniform", "track", "open_store", "profile",
    "plan", "Trainer", "DistributedOptimizer", "AllReduce", "make_compressor",
]
# fmt: on


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    for package in ("torch", "gymnasium", "optuna"):
        pytest.importorskip(package, reason="the examples need the extras rl and search")
    return run_blocks(BLOCKS, tmp_path_factory.mktemp("reference"), preload=["torch"])


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_examples_print_what_the_pages_say(block: Block, printed: dict[str, str]) -> None:
    check(block, printed[block.name])


def test_there_are_thirty_names_with_an_example() -> None:
    code = "".join(block.code for block in BLOCKS)
    missing = [name for name in MOST_USED if not re.search(rf"\b{name}\b", code)]
    assert len(MOST_USED) > 30 and missing == []
