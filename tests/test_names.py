"""Class names are unique in the sources, so that a name in a traceback or a document means one thing."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "ropewalk"

# Names that several classes have, with the modules they are in, and why.
_EXECUTOR = "compat.broken_executor", "errors"
_WHY = "an executor raises it under the name of the pool's error, whose subclass it is, beside BrokenProcessPool"
ALLOWED: dict[str, tuple[tuple[str, ...], str]] = {
    "CrashLoop": (_EXECUTOR, _WHY),
    "InitializerFailed": (_EXECUTOR, _WHY),
    "NotPicklable": (_EXECUTOR, _WHY),
    "ProcessLimit": (_EXECUTOR, _WHY),
    "Sampler": (
        ("rl.replay.sampler", "search.samplers.sampler"),
        "each is the term of its field: Reverb's fetches batches, Optuna's chooses configurations",
    ),
    "StartFailed": (_EXECUTOR, _WHY),
    "TaskPoisoned": (_EXECUTOR, _WHY),
    "WorkerLost": (_EXECUTOR, _WHY),
}


def classes_in(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The modules that define each class, those inside functions and classes too."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, text in modules:
        for name in classes_of(text):
            found[name].append(module)
    return found


@functools.cache  # parsing all sources takes 2.5 s of CPU time
def classes_of(text: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def repeated(modules: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Names of more than one class; only modules with lines that look like two of one name are parsed."""
    suspects: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for module, text in modules:
        for name in re.findall(r"^[ \t]*class (\w+)", text, re.MULTILINE):
            suspects[name].append((module, text))
    several = {name: classes_in(dict.fromkeys(found))[name] for name, found in suspects.items() if len(found) > 1}
    return {name: tuple(sorted(homes)) for name, homes in several.items() if len(homes) > 1}


def sources() -> list[tuple[str, str]]:
    paths = sorted(SOURCES.rglob("*.py"))
    return [(".".join(path.relative_to(SOURCES).with_suffix("").parts), path.read_text()) for path in paths]


def test_class_names_are_unique_but_for_those_listed() -> None:
    assert repeated(sources()) == {name: homes for name, (homes, _) in ALLOWED.items()}


def test_a_name_that_is_used_again_is_found() -> None:
    again = ("pool.new", "def make():\n    class Trainer: ...\n")
    found = repeated([*sources(), again])
    assert found.pop("Trainer") == ("pool.new", "training.trainer")
    assert found == repeated(sources())


def test_fields_and_constants_are_documented_in_one_style() -> None:
    """By a string below them, and not by a comment above them that begins with a colon."""
    assert [module for module, source in sources() if re.search(r"^\s*#: ", source, re.MULTILINE)] == []
