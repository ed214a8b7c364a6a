"""Modules do not import each other in circles, so each can be read, imported and tested with what is below it alone."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Mapping

from tests.test_names import sources

_IMPORT = re.compile(r"^from (ropewalk[\w.]*) import (\([^)]*\)|.*)$|^import (ropewalk[\w.]*)", re.MULTILINE)
"""An import that runs when the module is imported: those in functions, for types alone or lazy ones are indented."""


def modules_of(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """What each module imports; a package stands for its `__init__`, and a name in a module for the module."""
    found: dict[str, set[str]] = {}
    for module, text in texts.items():
        imported = found[module] = set[str]()
        for package, names, whole in _IMPORT.findall(text):
            paths = [f"{package}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", names)] if package else [whole]
            imported |= {path if path in texts else package for path in paths} & texts.keys()
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    texts = {f"ropewalk.{module}".removesuffix(".__init__"): text for module, text in sources()}
    imports = modules_of(texts)
    assert sum(map(len, imports.values())) > 5000, "the imports of the sources are found"
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_a_circle_is_found() -> None:
    texts = {"ropewalk.a": "from ropewalk.b import (\n    one,\n)\n", "ropewalk.b": "from ropewalk import c, a as d\n"}
    assert modules_of(texts) == {"ropewalk.a": {"ropewalk.b"}, "ropewalk.b": {"ropewalk.a"}}
