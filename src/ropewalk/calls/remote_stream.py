"""The items of a method that is a generator, as its caller reads them.

    caller: for item in stream ◀── at most STREAM_CREDIT items under way ── server: yield item
            every half of that is read ── More ──▶

The call is made at once. It is given up with the stream: by `close`, at the end of a `with` block, or when no reference
to the stream is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from ropewalk.calls.pending import Lost, NotServed, PendingCall, value_of
from ropewalk.calls.resolver import ReplicaResolver, ServiceRoute

STREAM_CREDIT = 16
"""Maximum number of items of a stream that may be under way before the reader asks for more."""


class RemoteStream(Iterator[Any]):
    """An iterator over the items of a remote generator; for one thread at a time."""

    def __init__(self, where: ReplicaResolver, route: ServiceRoute, call: str, pending: PendingCall) -> None:
        self._where = where
        self._route = route
        self._call = call
        self._pending = pending
        self._num_taken = 0
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        try:
            return self._next()
        except BaseException:  # the end of the stream, or an interruption such as Ctrl-C or a deadline
            self.close()
            raise

    def close(self) -> None:
        """Give up the remaining items and close the generator in its process; may be called twice."""
        if not self._ended:
            self._drop()
            self._route.connection.cancel(self._pending)

    def _drop(self) -> None:
        self._ended = True
        if self._pending.arrived:
            self._pending.arrived.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            if not self._ended:
                self._drop()
                self._route.connection.cancel_soon(self._pending)

    def __repr__(self) -> str:
        return f"<stream of {self._where.words}.{self._call}{', ended' if self._ended else ''}>"

    def _next(self) -> Any:
        pending, connection = self._pending, self._route.connection
        arrived = pending.arrived
        assert arrived is not None
        while not arrived:
            if pending.answered:
                self._end()
            if not connection.wait(pending, pending.due):
                raise self._where.too_late(self._call)
        received = arrived.popleft()
        self._num_taken += 1
        if self._num_taken == STREAM_CREDIT // 2:
            connection.ask_for_more(pending, self._num_taken)
            self._num_taken = 0
        return value_of(received, pending.where)

    def _end(self) -> None:
        pending = self._pending
        if pending.received is None and not pending.why_lost:
            raise StopIteration
        try:
            pending.value()
        except Lost:
            raise self._where.what_became(self._route, self._call)[0] from None
        except NotServed:  # its object was withdrawn, perhaps after some items
            raise self._where.what_became(self._route, self._call)[0] from None


__all__ = ["STREAM_CREDIT", "RemoteStream"]
