"""Packing: turns a user's function and arguments into constants and units, ready to send.

    function ──pickle, hash──▶ Constant   (once for a map; known ones are reused)
    arguments ──pickle───────▶ TaskUnit   (needs: the constants that must be at the worker first)

All of it runs in the caller's thread, as pickling runs user code.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ropewalk.engines.attached_resources import attached
from ropewalk.engines.resources import Resources
from ropewalk.pool.constants import Constant, collecting
from ropewalk.pool.dispatcher import Dispatcher
from ropewalk.pool.results import PoolJob
from ropewalk.pool.task_content import Content
from ropewalk.pool.task_table import TaskUnit
from ropewalk.processes.code_parts import parts_of
from ropewalk.transport.blobs import SHARED_MIN_BYTES, name_of, pack, total_bytes
from ropewalk.transport.frames import Part
from ropewalk.transport.main_namespace import IMPORTED
from ropewalk.transport.serialization import Code, by_value, define, dumps, dumps_code, dumps_plain

_LEAST, _MOST = -(2**63), 2**63 - 1
"""The range of an integer in a message."""


class Packer:
    """Packs functions and items for one pool, and remembers the functions that it has packed.

    Args:
        dispatcher: the pool's dispatcher.
        workers: the resources that each worker asked for.
    """

    def __init__(self, dispatcher: Dispatcher, workers: Resources) -> None:
        self._dispatcher = dispatcher
        self._workers = workers
        self._imported: dict[Callable[..., Any], Constant] = {}
        self._last_code: tuple[Code | None, Any] = (None, None)

    def code(self, func: Callable[..., Any]) -> Constant:
        """Return the constant of a function, held until the caller calls `let_go`.

        Raises:
            TypeError: the object is not callable.
            ValueError: the function needs more resources than the workers have.
            NotPicklable: the function cannot be sent.
        """
        if not callable(func):
            raise TypeError(f"a pool calls functions; {func!r} cannot be called")
        if _is_imported(func):  # its name says all, so an earlier constant of it can be reused
            known = self._imported.get(func)
            held = self._dispatcher.hold_known(known.id) if known else None
            if held is None:  # the first time, or it has been evicted since
                self._check_needs(func)
                held = self._imported[func] = self.constant(dumps_code(func))
                held.label = _label(func)
            return held
        self._check_needs(func)
        with collecting(self._dispatcher) as constants:
            code = dumps_code(func, what=getattr(func, "__qualname__", "function"))
        unchanged = self._last_code[0] is code and not constants
        held = self._dispatcher.hold_known(self._last_code[1].id) if unchanged else None
        if held is None:
            held = self.constant(code, constants.values())
            held.label = _label(func)
            self._last_code = code, held
        return held

    def constant(self, code: Code, needs: Iterable[Constant] = ()) -> Constant:
        """Return the constant of a value, held until the caller calls `let_go`."""
        return self._constant_of_parts(parts_of(code.payload, code.definitions), needs)

    def unit(
        self,
        job: PoolJob,
        code: Constant,
        items: Sequence[Any],
        first: int,
        kind: int,
        seed: int,
        *,
        what: str,
        defined: dict[frozenset[str], Constant],
    ) -> TaskUnit:
        """Pickle some items into a unit.

        Args:
            job: the job that gets the results.
            code: the constant to call.
            items: arguments, one item for each task.
            first: position in the map of the first item.
            kind: a `CallKind`, which says how an item becomes a call.
            seed: the seed of the map.
            what: the word for the items in errors.
            defined: definitions that were made for this map; new ones are added, held until the caller calls `let_go`.

        Raises:
            NotPicklable: an item cannot be sent.
        """
        if type(items) is range:
            span = items.start, items.stop, items.step
            if min(span) >= _LEAST and max(span) <= _MOST:
                content = Content(kind, seed, (*code.needs, code), [], span=span)
                return _unit(job, first, len(items), code, 0, content)
        plain = dumps_plain(items)
        if plain is not None:
            content = Content(kind, seed, (*code.needs, code), [plain])
            return _unit(job, first, len(items), code, len(plain), content)
        with collecting(self._dispatcher) as constants:
            payload = dumps(items, what=what)
        needs = [*constants.values()]
        if payload.names:
            if payload.names not in defined:  # once for a map: pickling classes of `__main__` takes long
                with collecting(self._dispatcher) as inner:
                    definitions = parts_of(None, define(payload.names))
                defined[payload.names] = self._constant_of_parts(definitions, inner.values())
            needs += [*defined[payload.names].needs, defined[payload.names]]
        needs += [*code.needs, code]
        parts: list[Part] = [payload.pickle, *payload.buffers]
        size = total_bytes(parts)
        content = Content(kind, seed, needs, parts)
        if payload.buffers:
            if size >= SHARED_MIN_BYTES:
                with contextlib.suppress(OSError):  # no descriptors left: send it inside the frame
                    content.fd = pack(parts, "ropewalk-arguments")
                    content.shared = tuple(memoryview(part).nbytes for part in parts)
                    content.parts = []
            if content.parts:
                content.parts = [bytes(part) for part in parts]  # a copy: the caller may change its objects
        return _unit(job, first, len(items), code, size, content)

    def _check_needs(self, func: Callable[..., Any]) -> None:
        needs, has = attached(func), self._workers
        if needs is None:
            return
        least = Resources(
            max(needs.cpus, has.cpus),
            max(needs.gpus, has.gpus),
            max(needs.memory_bytes or 0, has.memory_bytes or 0) or None,
        )
        if least != has:
            name = getattr(func, "__qualname__", repr(func))
            raise ValueError(
                f"{name} needs {needs} (ropewalk.requires), and the workers of this pool have {has}; "
                f"give them as much: Pool(..., resources=ropewalk.{least})"
            )

    def _constant_of_parts(self, parts: list[Part], needs: Iterable[Constant]) -> Constant:
        """Return the constant of these bytes: a known one, or a new one."""
        id = name_of(parts)
        known = self._dispatcher.hold_known(id)
        if known is None:
            return self._dispatcher.hold(Constant(id, parts, needs))
        known.needs = tuple(needs)  # the content is the same, but the constants it needs may have been evicted
        return known


def _unit(job: PoolJob, first: int, count: int, code: Constant, size_bytes: int, content: Content) -> TaskUnit:
    return TaskUnit(job, first, count, code.id, size_bytes, content, job.patient, job.avoids)


def first_constant(code: Code) -> Constant:
    """Return a constant for workers that do not exist yet, of a pool that has no dispatcher yet."""
    parts = parts_of(code.payload, code.definitions)
    return Constant(name_of(parts), parts)


def _label(func: Callable[..., Any]) -> str:
    """Return the name of a function for users, without where it is defined; a partial may have a name of its own."""
    while isinstance(func, functools.partial):
        if name := vars(func).get("__name__"):
            return str(name)
        func = func.func
    name = getattr(func, "__qualname__", type(func).__qualname__)
    return name.rpartition("<locals>.")[2]


def _is_imported(func: Callable[..., Any]) -> bool:
    """Return whether any process finds the function again by its module and name."""
    if type(func) is not types.FunctionType and type(func) is not types.BuiltinFunctionType:
        return False
    module: str = func.__module__
    if module in ("__main__", IMPORTED) or by_value(module):
        return False
    return getattr(sys.modules.get(module), func.__name__, None) is func
