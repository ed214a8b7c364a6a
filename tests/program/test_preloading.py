"""Modules that processes of nodes share without being asked."""

from __future__ import annotations

import functools
import os
import sys
from collections import OrderedDict

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.processes.messages import IF_THERE
from ropewalk.program.preloading import SLOW_IMPORTS, found_preload


def uses_pandas() -> None:
    def inside() -> None:
        import pandas.core  # noqa: F401  # pyright: ignore[reportUnusedImport]

    inside()


class ImportsScipyLater:
    def work(self) -> None:
        import scipy  # noqa: F401  # pyright: ignore[reportUnusedImport]


def found(*values: object) -> set[str]:
    return {name.removesuffix(IF_THERE) for name in found_preload(values)}


def test_what_the_module_of_a_function_has_imported_is_found() -> None:
    assert np is not None
    assert found(found) == {"numpy"}, "this module imports numpy"
    assert found(OrderedDict, os.path.join, 3, "torch") == set()


def test_what_a_function_imports_when_it_runs_is_found() -> None:
    assert found(uses_pandas) == {"numpy", "pandas"}
    assert found(functools.partial(functools.partial(uses_pandas))) == {"numpy", "pandas"}
    assert found(ImportsScipyLater) == {"numpy", "scipy"}


def test_the_order_is_one_for_all_nodes_so_that_they_share_a_fork_server() -> None:
    names = [name.removesuffix(IF_THERE) for name in found_preload([uses_pandas, ImportsScipyLater])]
    assert names == [name for name in SLOW_IMPORTS if name in names]


def look() -> None:
    """Prints what was imported before it ran."""
    print("there:", "numpy" in sys.modules, "scipy" in sys.modules, flush=True)
    if "never" in os.environ:
        import scipy  # noqa: F401  # pyright: ignore[reportUnusedImport]


@pytest.mark.usefixtures("shared_session")
def test_a_node_starts_with_the_modules_that_its_code_imports() -> None:
    program = rw.Program("preloading")
    program.add(rw.Worker(look), name="found")
    program.add(rw.Worker(look), name="told", preload=())
    with program.launch() as running:
        running.wait()
        assert running.logs("found").strip().endswith("there: True True")
        assert running.logs("told").strip().endswith("there: True False"), "its module imports numpy"
