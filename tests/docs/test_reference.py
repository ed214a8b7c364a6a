"""The examples of the reference, of the README and of the page on pools print what they say.

The thirty names that are used most have an example in their docstring as well, which runs here too.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from docs.site.public_names import public_names

from tests.docs.code_blocks import Block, blocks_of, check, run_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "pool.md",
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
# fmt: off
MOST_USED = {
    "ropewalk": [
        "Pool", "task_seed", "requires", "Resources", "Executor", "Program", "Service", "Worker", "method", "batched",
        "deadline", "Process", "Queue", "Pipe", "Lock", "Manager", "Value", "Array", "Search", "track", "Trainer",
    ],
    "ropewalk.population": ["evaluate", "OpenAIES", "MAPElites", "LogUniform"],
    "ropewalk.rl": ["Experiment", "PPO", "ReplayTable"],
    "ropewalk.search": ["ASHA"],
    "ropewalk.tracking": ["open_store"],
    "ropewalk.pipeline": ["profile", "plan"],
    "ropewalk.exchange": ["DistributedOptimizer", "AllReduce", "make_compressor"],
}
# fmt: on


def example_of(name: str, docstring: str) -> Block | None:
    """The example in the docstring of a name, as a block of a page; None if it has none."""
    examples = doctest.DocTestParser().get_examples(docstring)
    code = "".join(f"exec(compile({each.source!r}, {name!r}, 'single'))\n" for each in examples)
    said = "".join(each.want for each in examples)
    return Block(name, 1, "python", code, said) if examples else None


DOCSTRINGS = {
    name.path: name.docstring or ""
    for module, names in MOST_USED.items()
    for name in public_names(ROOT / "src", module)
    if name.name in names
}
EXAMPLES = {path: example_of(path, docstring) for path, docstring in DOCSTRINGS.items()}
BLOCKS = [*blocks_of(*PAGES), *(block for block in EXAMPLES.values() if block is not None)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    for package in ("torch", "gymnasium", "optuna"):
        pytest.importorskip(package, reason="the examples need the extras rl and search")
    return run_blocks(BLOCKS, tmp_path_factory.mktemp("reference"), preload=["torch"])


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_examples_print_what_the_pages_say(block: Block, printed: dict[str, str]) -> None:
    check(block, printed[block.name])


def test_the_names_that_are_used_most_have_an_example() -> None:
    assert len(DOCSTRINGS) == sum(map(len, MOST_USED.values())) > 30
    assert [path for path, block in EXAMPLES.items() if block is None] == []


#: Folders of methods that come from papers, with what else is in them.
FROM_PAPERS = {
    "ropewalk.population": ("population.algorithms.", {"PBTMember", "PBTSchedule", "Gaussian"}),
    "ropewalk.rl": ("rl.agents.", {"agent"}),
    "ropewalk.search": ("search.schedulers.", {"scheduler", "NoScheduler"}),
    "ropewalk.exchange": ("exchange.compressors.", {"compressor", "NoCompression", "Half"}),
}


@pytest.mark.parametrize("module", FROM_PAPERS)
def test_a_method_names_its_source_where_the_reference_shows_it(module: str) -> None:
    folder, others = FROM_PAPERS[module]
    methods = [
        name
        for name in public_names(ROOT / "src", module)
        if re.fullmatch(rf"ropewalk\.{folder}(\w+)\.[A-Z]\w+", name.home) and not {*name.home.split(".")} & others
    ]
    source = re.compile(r"\b(19|20)\d\d\b|https://")
    assert methods and [name.path for name in methods if not source.search(name.docstring or "")] == []
