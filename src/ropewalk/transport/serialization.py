"""Values and code as bytes: pickle protocol 5 with out-of-band buffers, cloudpickle for code.

    dumps(args) ───────▶ Payload ───────────────────────────▶ loads(pickle, buffers)
    dumps_code(f) ─────▶ Code = Payload + definitions ──────▶ MainNamespace.install, then loads
    loads ◀───────────── Payload ◀────────────────────────── dumps_result(value)

A function or class at the top level of `__main__` is pickled as its name, both ways, so it is the same object for all
tasks of a worker, and the original object when it is sent back. The values of such names are sent as definitions, each
pickled by itself: the names a payload refers to (`Payload.names`), the globals that their code refers to, and so on,
until all names are covered. Each definition being a pickle of its own, two globals that hold the same list hold two
lists in the worker. Names that code reaches only through text (`globals()["x"]`, `eval`) are not seen.

A global that cannot be pickled is replaced: locks, queues of threads, open files and the like have stand-ins
(`stand_ins.py`); for the rest the receiver imports the script, as multiprocessing's spawn does, if the script has an
`if __name__ == "__main__":` (`main_source.py`).
"""

from __future__ import annotations

import functools
import io
import pickle
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import cloudpickle.cloudpickle
import msgspec

from ropewalk.errors import NotPicklable
from ropewalk.transport.array_pickles import dumps_arrays
from ropewalk.transport.main_namespace import main_globals, value_of_source
from ropewalk.transport.main_source import MainSource, main_source
from ropewalk.transport.pickle_diagnostics import find_culprit, kind_of, refuses_itself
from ropewalk.transport.pickle_rollback import PickleAttempt
from ropewalk.transport.picklers import ByValue, CodePickler, FastPickler, ResultPickler, root_in_main
from ropewalk.transport.standard_objects import not_by_inheritance, take_instead
from ropewalk.transport.unchanged import Unchanged, watch

OUT_OF_BAND_BYTES = 4096
"""Smaller buffers stay in the pickle: a part of a message costs more than copying a page."""
_ATOMS = frozenset([int, float, bool, str, bytes, type(None)])
_NO_NAMES: frozenset[str] = frozenset()
_PROTOCOL = 5
_get_or_create_tracker_id: Any = cloudpickle.cloudpickle._get_or_create_tracker_id  # type: ignore[attr-defined]
_by_value_modules: set[str] = cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES  # type: ignore[attr-defined]


class Payload(msgspec.Struct, frozen=True):  # made without a step of the interpreter, as it is made for each value
    """One pickled value."""

    pickle: bytes
    """The pickle, protocol 5."""
    buffers: tuple[memoryview, ...]
    """Its out-of-band buffers, in order; each contiguous, of format "B", and over the value's own memory."""
    names: frozenset[str]
    """The names of the sender's `__main__` to which the pickle refers."""

    @property
    def size_bytes(self) -> int:
        """The length of the pickle and the buffers together."""
        size = len(self.pickle)
        for buffer in self.buffers:  # a generator would cost a function call for each
            size += buffer.nbytes
        return size


class Code(msgspec.Struct, frozen=True):
    """A function, or a constant, with all definitions of `__main__` that it needs."""

    payload: Payload
    definitions: dict[str, Payload]
    """Name in `__main__` to value, each pickled by itself; the definitions to which a definition refers are included.
    """


def dumps(value: Any, *, what: str = "value") -> Payload:
    """Pickle anything: data, functions and classes; functions and classes that cannot be imported travel by value.

    Args:
        value: the value; the buffers of the payload lie in its memory, so it must not change before they are sent.
        what: name of the value in error messages, such as "args".

    Raises:
        NotPicklable: a part of the value cannot be sent; `path` says which.
        Exception: whatever a user's `__reduce__` or `__getstate__` raised.
    """
    plain = dumps_plain(value)
    if plain is not None:
        return Payload(plain, (), _NO_NAMES)
    arrays = dumps_arrays(value)
    if arrays is not None:
        return Payload(arrays[0], tuple(arrays[1]), _NO_NAMES)
    if not _by_value_modules:
        try:
            return _dump(FastPickler, value)
        except ByValue:
            pass
        except Exception as error:
            if not _is_pickles_own(error):
                raise
    return _dump_code(value, what)


def by_value(module: str) -> bool:
    """Return whether a module's code travels by value (`cloudpickle.register_pickle_by_value`)."""
    return any(module == name or module.startswith(f"{name}.") for name in _by_value_modules)


def dumps_plain(value: Any) -> bytes | None:
    """Pickle a range, a tuple of numbers, strings and the like, or one such tuple in a tuple; returns None for others.

    Most tasks have such arguments, and nothing in them needs a reducer: this takes a quarter of the time of `dumps`.
    """
    outer = value  # a type checker narrows the other name to a tuple of unknown types
    if type(value) is range:
        return pickle.dumps(value, _PROTOCOL)
    if type(value) is tuple:
        inner: Any = outer[0] if len(outer) == 1 and type(outer[0]) is tuple else outer
        if _ATOMS.issuperset(map(type, inner)):
            return pickle.dumps(value, _PROTOCOL)
    return None


def dumps_result(value: Any, *, what: str = "result") -> Payload:
    """Pickle a result or an exception, as multiprocessing does: a lambda or nested function is an error.

    Args:
        value: the value.
        what: what it is called in errors.

    Raises:
        NotPicklable: a part of the result cannot be sent; `path` says which.
        Exception: whatever a user's `__reduce__` or `__getstate__` raised.
    """
    if type(value) in _ATOMS:
        return Payload(pickle.dumps(value, _PROTOCOL), (), _NO_NAMES)
    try:
        return _dump(ResultPickler, value)
    except Exception as error:
        _explain(error, value, what, ResultPickler)


def loads(pickled: bytes | bytearray | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Load the value of a payload; arrays lie in `buffers` and are writable if these are."""
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301  # callers unpickle after authentication only


def dumps_code(value: Any, *, what: str = "function") -> Code:
    """Pickle a function, or a constant, together with the definitions that it needs.

    For a function that reaches only functions, modules and constants that cannot change, the code is cached and
    checked; pickling it again takes a few microseconds.

    Raises:
        NotPicklable: as for `dumps`, also for a global to which the code refers.
    """
    is_function = type(value) is types.FunctionType
    if is_function:
        kept = _kept_codes.get(value)
        if kept is not None and kept[0].holds():
            return kept[1]
    payload = dumps(value, what=what)
    if not payload.names:
        return Code(payload, {})
    label = getattr(value, "__qualname__", what) if is_function else what
    definitions, seen = _define(payload.names, label)
    code = Code(payload, definitions)
    if is_function:
        unchanged = None if _by_value_modules else watch(value, seen)
        if unchanged is not None:
            _kept_codes[value] = unchanged, code
    return code


def define(names: Iterable[str]) -> dict[str, Payload]:
    """Return the values of these names of `__main__` and of all names to which they refer.

    Names that `__main__` does not have are left out.

    Raises:
        NotPicklable: the value of a name cannot be sent.
    """
    return _define(names, "")[0]


_kept_codes: weakref.WeakKeyDictionary[Any, tuple[Unchanged, Code]] = weakref.WeakKeyDictionary()


def _define(names: Iterable[str], label: str) -> tuple[dict[str, Payload], dict[str, Any]]:
    """Return the definitions, and the value of each name.

    `label` is the object that refers to the first names, for errors.
    """
    main = main_globals()
    definitions: dict[str, Payload] = {}
    imported: MainSource | None = None
    seen: dict[str, Any] = {}
    paths: dict[str, str] = {}
    referrers: dict[str, str] = {}
    # Sorted, because a set of strings has another order in each process, and errors should be the same in all.
    queue = sorted(names)
    for name in queue:
        refers = label and not _is_reference(main.get(name), name)
        paths[name] = f"{label}.<globals>[{name!r}]" if refers else name
        referrers[name] = f"{label} refers" if refers else ""
    while queue:
        name = queue.pop(0)
        if name in definitions or name not in main:
            continue
        value = seen[name] = main[name]
        try:
            payload = definitions[name] = _dump(functools.partial(CodePickler, definition=name), value)
        except Exception as error:
            imported = _source_instead(error, value)
            if imported is None:
                _explain_definition(error, name, value, paths[name], referrers[name])
            payload = definitions[name] = _imported_definition(imported, name, main)
        kind = "class" if isinstance(value, type) else "function" if callable(value) else "global"
        for other in sorted(payload.names - paths.keys()):
            paths[other] = f"{paths[name]}.<globals>[{other!r}]"
            referrers[other] = f"{kind} {name} refers"
            queue.append(other)
    if imported:  # imported values are made of the script's classes, which must be the same for all
        for name in definitions:
            if _is_class_of_main(seen[name], name):
                definitions[name] = _imported_definition(imported, name, main)
    return definitions, seen


def _source_instead(error: Exception, value: Any) -> MainSource | None:
    """Return the source by which another process can make a global that cannot be pickled; None if it cannot."""
    if isinstance(error, MemoryError) or isinstance(value, type | types.FunctionType):
        return None
    if _is_inheritance(error):
        return None  # locks of multiprocessing: with spawn each process gets its own, and nothing is locked
    source = main_source()
    return source if source and source.has_guard else None


def _imported_definition(source: MainSource, name: str, main: dict[str, Any]) -> Payload:
    """Return the definition of a name by the source of `__main__`."""
    classes = {
        other: _get_or_create_tracker_id(value) for other, value in main.items() if _is_class_of_main(value, other)
    }
    call = _PickledCall(value_of_source, (source.text, source.file, name, classes))
    return Payload(pickle.dumps(call, _PROTOCOL), (), _NO_NAMES)


class _PickledCall:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


def _is_class_of_main(value: Any, name: str) -> bool:
    return isinstance(value, type) and value.__module__ == "__main__" and value.__qualname__ == name


def _is_reference(value: Any, name: str) -> bool:
    return isinstance(value, type | types.FunctionType) and root_in_main(value) == name


def _take(buffers: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    """Keep a buffer out of band; True leaves it in the pickle."""
    view = buffer.raw()
    if view.nbytes < OUT_OF_BAND_BYTES:
        return True
    buffers.append(view)
    return False


def _dump(make: Callable[..., Any], value: Any) -> Payload:
    buffers: list[memoryview] = []
    file = io.BytesIO()
    pickler = make(file, _PROTOCOL, buffer_callback=functools.partial(_take, buffers))
    with PickleAttempt():
        pickler.dump(value)
    return Payload(file.getvalue(), tuple(buffers), frozenset(pickler.names) if pickler.names else _NO_NAMES)


def _dump_code(value: Any, what: str) -> Payload:
    try:
        return _dump(CodePickler, value)
    except Exception as error:
        _explain(error, value, what, CodePickler)


# Errors


def _is_pickles_own(error: Exception) -> bool:
    """Return whether pickle itself refused the value, and not code of the user that pickle called."""
    if isinstance(error, MemoryError):
        return False
    if isinstance(error, TypeError | pickle.PicklingError) or _is_inheritance(error):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module.startswith(("ropewalk.transport.", "cloudpickle."))


def _is_inheritance(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and "between processes through inheritance" in str(error)


def _explain(error: Exception, value: Any, what: str, make: Callable[..., Any]) -> NoReturn:
    """Raise NotPicklable with the path of the part that failed, or the user's own error."""
    if not _is_pickles_own(error):
        raise error
    path, reason, advice = _diagnose(error, value, what, make)
    words = f"{path} cannot be sent to another process: {reason}; {advice}" if advice else f"{reason} ({path})"
    raise NotPicklable(words, path=path) from _without_our_frames(error)


def _without_our_frames(error: Exception) -> Exception:
    """Return the error without its traceback, unless code of the user that pickle called is in it."""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("ropewalk", "cloudpickle", "pickle", "copyreg", "copy"):
            return error
        trace = trace.tb_next
    return error.with_traceback(None)


def _explain_definition(error: Exception, name: str, value: Any, path: str, referrer: str) -> NoReturn:
    if isinstance(error, MemoryError):
        raise error
    inner, reason, advice = _diagnose(error, value, path, functools.partial(CodePickler, definition=name))
    kind = "" if _is_inheritance(error) or isinstance(error, NotPicklable) else f"{type(error).__name__}: "
    place = f" (at {inner})" if inner != path else ""
    if referrer.startswith(("class ", "function ", "global ")) or not referrer:
        subject = referrer
    else:
        subject = f"function {referrer}"
    what = f"{subject} to the global {name!r} in __main__, which" if subject else f"{name!r} in __main__"
    if not isinstance(value, type | types.FunctionType) and not _is_inheritance(error):
        advice = "pass what it needs as an argument, or keep None in it here and set it in the pool's initializer"
        source = main_source()
        if source and not source.has_guard:
            advice += (
                "; or put what the script does under `if __name__ == '__main__':`, so that each process imports it "
                "and has its own"
            )
    raise NotPicklable(f"{what} cannot be sent: {kind}{reason}{place}; {advice}", path=inner) from error


def _diagnose(error: Exception, value: Any, what: str, make: Callable[..., Any]) -> tuple[str, str, str]:
    """Return the path of the part that fails, why it fails, and what to do."""

    def attempt(part: Any) -> Exception | None:
        try:
            with PickleAttempt(keep=False):
                _dump(make, part)
        except Exception as failure:
            return failure
        return None

    path, culprit, error = find_culprit(value, error, attempt, path=what, code_by_value=make is not ResultPickler)
    kind = kind_of(culprit)
    if kind.__module__.startswith("multiprocessing."):
        reason = not_by_inheritance(kind)
        advice = take_instead(kind)
    elif refuses_itself(culprit, error):
        reason, advice = str(error), ""
    elif isinstance(error, NotPicklable):
        reason = str(error)
        advice = "the copy that arrives can be moved to a device there"
    elif isinstance(culprit, types.FunctionType | type) and make is ResultPickler:
        reason = str(error)
        advice = "return data, or a function or class from the top level of a module or script"
    elif isinstance(culprit, types.CoroutineType):
        reason = str(error)
        advice = "run it in the process that has made it, as asyncio.run(function(...)) does, and send its result"
    elif isinstance(culprit, types.GeneratorType):
        reason = str(error)
        advice = "send a list of its items, or make it in the process that uses it"
    elif isinstance(error, RecursionError) or "deep recursion" in str(error):
        reason = "it is nested more deeply than pickle can follow"
        advice = "send it in a flat form, such as a list of its parts"
    else:
        reason = str(error) or repr(error)
        advice = "make it in the process that uses it, or leave it out in the __getstate__ of what holds it"
    return path, reason, advice


__all__ = ["Code", "Payload", "define", "dumps", "dumps_code", "dumps_result", "loads"]
