"""The tree of exceptions: as drawn, and able to travel."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import re
import traceback
import types
import typing
from typing import Any

import pytest

from ropewalk import errors
from ropewalk.errors import RopewalkError
from ropewalk.escaping import escaped

CLASSES = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, RopewalkError) and found.__module__ == errors.__name__
]
SAMPLES: dict[type, Any] = {str: "text", int: 3, float: 1.5, bool: True, bytes: b"x", tuple: ("a", "b")}


def fields(error: type[RopewalkError]) -> dict[str, Any]:
    """One value that is not the default for each annotated field, also of the classes above."""
    facts: dict[str, Any] = {}
    for name, annotation in typing.get_type_hints(error).items():
        if typing.get_origin(annotation) in (typing.Union, types.UnionType):
            annotation = typing.get_args(annotation)[0]
        kind = typing.get_origin(annotation) or annotation
        assert kind in SAMPLES, f"{error.__name__}.{name} has a kind that this test knows no sample for: {annotation}"
        facts[name] = SAMPLES[kind]
    return facts


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_travels_with_its_fields(error: type[RopewalkError]) -> None:
    facts = fields(error)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        raised = error("what, why and what next", **facts)
        copy = pickle.loads(pickle.dumps(raised, protocol))
        assert type(copy) is error
        assert str(copy) == "what, why and what next"
        assert {name: getattr(copy, name) for name in facts} == facts
        assert copy.__dict__ == raised.__dict__


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_can_be_made_without_facts(error: type[RopewalkError]) -> None:
    raised = error("message")
    for name in fields(error):
        getattr(raised, name)  # a fact that nobody gave has a default
    assert isinstance(raised, RopewalkError)


HOSTILE = "\x1b[2J\x9b2J\x1b]8;;http://evil.example\x07\x85\u2028\u202e\ud800\r"


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_what_an_error_quotes_does_not_act_where_it_is_printed(error: type[RopewalkError]) -> None:  # S19
    """Errors quote what hosts, engines and processes said, and end in terminals by way of tracebacks and logs."""
    raised = error(f"ssh said: {HOSTILE}\nsecond line")
    assert str(raised) == f"ssh said: {escaped(HOSTILE)}\nsecond line"
    assert not set(HOSTILE) & set("".join(traceback.format_exception_only(raised))) - set("[2J]8;:/htpevilxamp.")
    assert str(pickle.loads(pickle.dumps(raised))) == str(raised)


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        error.__name__: (
            next(base.__name__ for base in error.__bases__ if issubclass(base, RopewalkError)),
            {base.__name__ for base in error.__bases__ if not issubclass(base, RopewalkError)},
        )
        for error in CLASSES
        if error is not RopewalkError
    }
    assert drawn() == real


def drawn() -> dict[str, tuple[str, set[str]]]:
    """Read the docstring: for each name its parent and the built-in classes in brackets."""
    found: dict[str, tuple[str, set[str]]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"(\s*[│├└─ ]*)([A-Z]\w+)(?: \(([\w., ]+)\))?(?:\s{2,}|$)", line)
        if match is None or not (match[2] == "RopewalkError" or above):
            continue
        depth = len(match[1])
        if above and "─" not in match[1]:
            break  # the drawing has ended
        while above and above[-1][0] >= depth:
            above.pop()
        if above:
            others = {name.strip().rpartition(".")[2] for name in (match[3] or "").split(",")} - {""}
            found[match[2]] = (above[-1][1], others)
        above.append((depth, match[2]))
    return found


def test_errors_are_caught_as_what_callers_expect() -> None:
    assert issubclass(errors.TaskTimeout, multiprocessing.TimeoutError)
    assert issubclass(errors.PoolClosed, ValueError)
    assert issubclass(errors.NotPicklable, TypeError)
    assert issubclass(errors.TransportError, ConnectionError)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_says_in_a_sentence_what_it_means(error: type[RopewalkError]) -> None:
    assert error.__doc__ and error.__doc__.splitlines()[0].endswith(".")
