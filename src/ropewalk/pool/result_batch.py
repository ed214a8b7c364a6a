"""A batch of results as it arrived from a worker: bytes, unpickled once, by the first thread that asks for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ropewalk.processes.page import ERROR, PICKLED, PageReport, results_of
from ropewalk.transport.blobs import total_bytes
from ropewalk.transport.failures import FAILURE_DECODER, rebuild_error
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import loads

_NUMBER_BYTES = 32
"""Approximate bytes that a number and its place in a list take."""


class RaisedEntry:
    """An entry of a batch that is an exception instead of a value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ResultBatch:
    """The results of some tasks as they arrived; unpickled once, by the first thread that asks for them."""

    __slots__ = ("_entries", "_lock", "_nested", "_parts", "all_values", "share_bytes", "where")

    def __init__(self, values: list[Any], nested: dict[int, int], parts: Sequence[Part], where: str) -> None:
        """Store results as they came in a message; all arguments but the last are the fields of `TasksDone`.

        Args:
            values: becomes the list of entries.
            nested: the positions in `values` that hold bytes, with their kind.
            parts: bytes and buffers of the last entry, if it is large.
            where: the worker that sent them, for notes on errors.
        """
        self._entries = values
        self._nested = nested
        self._parts: Sequence[Part] = parts
        self._lock = threading.Lock()
        self.all_values: bool = not nested
        """Whether no entry is a `RaisedEntry`; known once the entries are unpickled."""
        self.where: str = where
        size = _NUMBER_BYTES * len(values) + total_bytes(parts) + sum(len(values[at]) for at in nested)
        self.share_bytes: int = size // max(1, len(values))
        """Approximate bytes of memory that one entry takes."""

    @classmethod
    def of(cls, entries: list[Any]) -> ResultBatch:
        """Return a batch of entries that need no unpickling."""
        batch = cls(entries, {}, (), "")
        batch.all_values = not any(type(entry) is RaisedEntry for entry in entries)
        return batch

    @classmethod
    def of_page(cls, report: PageReport, where: str) -> ResultBatch:
        """Return a batch of the results that a worker had finished according to its task page."""
        results = results_of(report)
        nested = {at: kind for at, (kind, _) in enumerate(results) if kind in (PICKLED, ERROR)}
        return cls([value for _, value in results], nested, (), where)

    def entries(self) -> list[Any]:
        """Return the values, or `RaisedEntry`s, in the order of the tasks."""
        with self._lock:
            if self._nested:
                values = self._entries.copy()  # Ctrl-C may come in between, and then all are unpickled again
                for at, kind in self._nested.items():
                    if self._parts and at == len(values) - 1:  # a large result, which was sent at once
                        data, *rest = self._parts
                        # Small frames arrive as bytes, and arrays in results must be writable.
                        buffers = [bytearray(part) if type(part) is bytes else part for part in rest]
                        values[at] = self._rebuild(kind, data, buffers)
                    else:
                        values[at] = self._rebuild(kind, values[at], ())
                self.all_values = not any(type(values[at]) is RaisedEntry for at in self._nested)
                self._entries, self._nested, self._parts = values, {}, ()
            return self._entries

    def take(self, at: int) -> Any:
        """Return one entry and drop it here, so that a large value lives no longer than its consumer keeps it."""
        entries = self.entries()
        entry, entries[at] = entries[at], None
        return entry

    def _rebuild(self, kind: int, data: Part, buffers: Sequence[Part]) -> Any:
        if kind == ERROR:
            return RaisedEntry(rebuild_error(FAILURE_DECODER.decode(data), self.where))
        assert kind == PICKLED
        try:
            return loads(data, buffers)
        except (Exception, SystemExit) as error:  # `SystemExit` from unpickling would end a thread of the pool
            error.add_note(f"This was raised here, while a result from {self.where} was unpickled.")
            return RaisedEntry(error)
