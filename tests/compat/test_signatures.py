"""The public classes and functions of multiprocessing's modules against ours, with their methods and parameters."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import ropewalk

#: Names without an underscore that no page of multiprocessing's documentation knows: how its own processes, pickles and
#: servers are made.
INSIDE = {
    "multiprocessing": set[str](),
    "multiprocessing.context": {
        "ForkContext",
        "ForkProcess",
        "assert_spawning",
        "get_spawning_popen",
        "set_spawning_popen",
    },
    "multiprocessing.pool": {
        "ExceptionWithTraceback",
        "get_context",
        "mapstar",
        "rebuild_exc",
        "starmapstar",
        "wait",
        "worker",
    },
    "multiprocessing.connection": {
        "ConnectionWrapper",
        "SocketClient",
        "SocketListener",
        "XmlClient",
        "XmlListener",
        "address_type",
        "arbitrary_address",
        "rebuild_connection",
        "reduce_connection",
    },
    "multiprocessing.managers": {
        "BaseDictProxy",
        "DateProxy",
        "ProcessLocalSet",
        "RebuildProxy",
        "SharedMemoryServer",
        "all_methods",
        "convert_to_error",
        "dispatch",
        "get_context",
        "get_spawning_popen",
        "public_methods",
        "rebuild_as_list",
        "reduce_array",
    },
    "multiprocessing.queues": {"Finalize", "debug", "info", "is_exiting", "register_after_fork"},
    "multiprocessing.synchronize": {"SemLock"},
    "multiprocessing.sharedctypes": {
        "assert_spawning",
        "get_context",
        "make_property",
        "rebuild_ctype",
        "reduce_ctype",
    },
    "multiprocessing.process": {"AuthenticationString"},
    "multiprocessing.shared_memory": set[str](),
    "multiprocessing.dummy": {"DummyProcess", "dict", "list", "shutdown"},
}
#: The modules of multiprocessing that there are here.
MODULES = tuple(INSIDE)
#: Classes of which objects are made by functions and methods, never by programs: their constructors are ours alone.
MADE_ELSEWHERE = {
    "ApplyResult",
    "AsyncResult",
    "Connection",
    "DefaultContext",
    "IMapIterator",
    "IMapUnorderedIterator",
    "MapResult",
    "Server",
    "State",
    "Token",
}
#: Of these classes, programs use what their documentation names and nothing else.
ONLY = {"Server": {"address", "serve_forever"}, "State": {"INITIAL", "STARTED", "SHUTDOWN"}}
#: Methods of the inside: with the hook by which a pool makes its processes, subclasses let them have children, which
#: those of Ropewalk may have.
METHODS_INSIDE = {"Pool.Process"}
#: The standard library's has an argument that only its own module passes.
PRIVATE_PARAMETERS = {"_cache"}


def modules(name: str) -> tuple[Any, Any]:
    return importlib.import_module(name), importlib.import_module(name.replace("multiprocessing", "ropewalk"))


def is_public(module: Any, name: str) -> bool:
    value = getattr(module, name)
    if name.startswith("_") or inspect.ismodule(value) or name in INSIDE[module.__name__]:
        return False
    return name in getattr(module, "__all__", ()) or str(getattr(value, "__module__", "")).startswith("multiprocessing")


def pairs(module: str) -> Iterator[tuple[str, Any, Any]]:
    """Public callables of a module, with ours; those that are the very same are not told."""
    theirs, ours = modules(module)
    for name in filter(lambda name: is_public(theirs, name), dir(theirs)):
        their, our = getattr(theirs, name), getattr(ours, name)
        if our is not their and callable(their):
            yield name, their, our


def missing(their: Any, our: Any) -> list[str]:
    """What callers of theirs may write and ours does not take, or what ours wants and theirs does not."""
    try:
        theirs, ours = dict(inspect.signature(their).parameters), dict(inspect.signature(our).parameters)
        theirs.pop("self", None)  # what is bound differs, and does not matter
        ours.pop("self", None)
    except (TypeError, ValueError):  # a proxy's method, or an exception: they take anything
        return []
    takes_any_names = any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values())
    takes_any_number = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in ours.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in theirs.values()):
        return []  # it is told nothing of what it takes
    problems: list[str] = []
    for at, (name, parameter) in enumerate(theirs.items()):
        mine = ours.get(name)
        if name in PRIVATE_PARAMETERS or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if mine is None:
            if not takes_any_names and not (takes_any_number and parameter.kind is parameter.POSITIONAL_OR_KEYWORD):
                problems.append(f"{name} is missing")
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD and list(ours).index(name) != at:
            problems.append(f"{name} is at another place")
        elif mine.default is mine.empty and parameter.default is not parameter.empty:
            problems.append(f"{name} has no default")
    extra = [name for name, mine in ours.items() if name not in theirs and mine.default is mine.empty]
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return problems + [f"{name} is wanted" for name in extra if ours[name].kind not in kinds]


@pytest.mark.parametrize("module", MODULES)
def test_no_public_name_is_missing(module: str) -> None:
    theirs, ours = modules(module)
    names = [name for name in dir(theirs) if is_public(theirs, name)]
    assert [name for name in names if not hasattr(ours, name)] == []
    assert [name for name in names if name not in dir(ours)] == []


@pytest.mark.parametrize("module", MODULES)
def test_what_is_called_there_can_be_called_so_here(module: str) -> None:
    problems = {
        name: found
        for name, their, our in pairs(module)
        if name not in MADE_ELSEWHERE
        if (found := missing(their, our))
    }
    assert problems == {}


@pytest.mark.parametrize("module", MODULES)
def test_classes_have_all_public_methods_with_their_parameters(module: str) -> None:
    problems: dict[str, Any] = {}
    for name, their, our in pairs(module):
        if not inspect.isclass(their):
            continue
        for method in dir(their):
            if method.startswith("_") or f"{name}.{method}" in METHODS_INSIDE or method not in ONLY.get(name, {method}):
                continue
            if not hasattr(our, method):
                problems[f"{name}.{method}"] = "is missing"
            elif callable(getattr(their, method)) and (found := missing(getattr(their, method), getattr(our, method))):
                problems[f"{name}.{method}"] = found
    assert problems == {}


def test_methods_of_contexts_take_what_those_of_multiprocessing_take() -> None:
    theirs, ours = importlib.import_module("multiprocessing.context").BaseContext, type(ropewalk.get_context())
    problems: dict[str, list[str]] = {}
    for name in [name for name in dir(theirs) if not name.startswith("_")]:
        their, our = getattr(theirs, name), getattr(ours, name, None)
        if callable(their) and not inspect.isclass(their) and (found := missing(their, our)):
            problems[name] = found
    assert problems == {}


def test_the_comparison_sees_what_is_missing() -> None:
    def theirs(size: int, kind: str = "", *, ctx: object = None) -> None: ...
    def fewer(size: int) -> None: ...
    def turned(kind: str, size: int, *, ctx: object) -> None: ...
    def more(size: int, kind: str = "", *, ctx: object = None, other: object) -> None: ...

    assert missing(theirs, theirs) == []
    assert missing(theirs, fewer) == ["kind is missing", "ctx is missing"]
    assert missing(theirs, turned) == ["size is at another place", "kind is at another place", "ctx has no default"]
    assert missing(theirs, more) == ["other is wanted"]
