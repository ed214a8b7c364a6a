"""The thirty names that are used most have an example in their docstring, and methods name their source.

`test_pages.py` runs the examples.
"""

from __future__ import annotations

import doctest
import re

import pytest
from docs.site.public_names import public_names

from tests.docs.code_blocks import ROOT, Block

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
    "ropewalk.pipeline": ["profile", "plan", "trace"],
    "ropewalk.training": ["load_module"],
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
