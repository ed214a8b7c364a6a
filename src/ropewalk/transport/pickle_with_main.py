"""Pickles values for processes that may not have their classes: classes of `__main__` are sent with them.

    put(Point(1, 2)) ─▶ pickle: (what Point is, the value's pickle) ─▶ get: define what is missing, load the value

Tasks and nodes come with the code that they need. An item of a queue may reach a process that does not have its class.
Only names that the receiver does not have are defined, so that an item changes nothing else there.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from ropewalk.transport.main_namespace import define_missing, main_globals
from ropewalk.transport.serialization import Payload, define, dumps, loads

_Definitions = dict[str, tuple[Any, list[Any]]]
"""Name to pickle and buffers."""
_MOST_KEPT = 256


def dumps_with_code(value: Any, *, what: str = "item") -> Payload:
    """Pickle anything, with the definitions of `__main__` that it needs.

    Raises:
        NotPicklable: a part of the value cannot be sent; `path` says which.
        Exception: whatever a user's `__reduce__` or `__getstate__` raised.
    """
    payload = dumps(value, what=what)
    if not payload.names:
        return payload
    buffers: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    pickled = pickle.dumps(_WithCode(_definitions(payload.names), payload), 5, buffer_callback=take)
    return Payload(pickled, tuple(buffers), payload.names)


class _WithCode:
    """Pickles as a call of `_load`."""

    def __init__(self, definitions: _Definitions, payload: Payload) -> None:
        self._definitions = definitions
        self._payload = payload

    def __reduce__(self) -> Any:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self._payload.buffers]
        return _load, (self._definitions, self._payload.pickle, buffers)


def _load(definitions: _Definitions, pickled: bytes, buffers: Sequence[Any]) -> Any:
    define_missing(definitions)
    return loads(pickled, buffers)


_kept: dict[frozenset[str], tuple[list[object], _Definitions]] = {}


def _definitions(names: frozenset[str]) -> _Definitions:
    """Return the definitions of these names of `__main__`.

    The result is cached while they mean the same objects: classes are slow to pickle.
    """
    main = main_globals()
    meanings: list[object] = [main.get(name) for name in sorted(names)]
    kept = _kept.get(names)
    if kept and all(was is now for was, now in zip(kept[0], meanings, strict=True)):
        return kept[1]
    made: _Definitions = {
        name: (payload.pickle, [bytes(buffer) for buffer in payload.buffers]) for name, payload in define(names).items()
    }
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[names] = meanings, made
    return made


__all__ = ["dumps_with_code"]
