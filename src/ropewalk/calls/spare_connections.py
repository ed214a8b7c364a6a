"""Further connections to a process, for threads that call while another thread waits on the first one.

On a connection of its own a thread is woken by the kernel. On a shared one the thread that reads has to wake it, and
then to pass on the role of the reader: two changes of threads more for each call.

    thread 1 ─▶ first connection ──────────▶ process        every other way of calling (futures, streams, deadlines,
    thread 2 ─▶ spare, once it has had to wait often        calls from within calls) uses the first one alone, and so
    thread 3 ─▶ spare                                       do batched methods, whose calls are to arrive together

A call takes a spare only if other threads wait for all that is under way on the first connection. So none overtakes
another one that its caller, or what woke its caller, has begun before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ropewalk.errors import TransportError

if TYPE_CHECKING:
    from ropewalk.calls.rpc_connection import RpcConnection

SPARE_DIAL_S = 1.0
"""Seconds after which the call that dials goes on with the first connection."""
MOST_SPARES = 7
"""Each is a descriptor at both ends."""
CALLS_FOR_A_SPARE = 64
"""How many calls find all connections taken before there is one more: threads that rarely meet need none."""
_AGAIN_AFTER = 10_000
"""The same after a process refused a further one, or was slow."""


class SpareConnections:
    """The further connections to one process.

    Args:
        dial: makes one, or raises a `TransportError`.
    """

    def __init__(self, dial: Callable[[], RpcConnection]) -> None:
        self._dial = dial
        self._spares: tuple[RpcConnection, ...] = ()
        self._num_missed = 0
        """Calls that found all connections taken since the last one was made."""
        self._dialling = threading.Lock()
        self._closed = ""

    @property
    def num_taken(self) -> int:
        """Number of calls that are under way on them."""
        return sum(1 for spare in self._spares if spare.reading_thread)

    def free(self) -> RpcConnection | None:
        """Return a connection that no thread reads, or None; another thread may be quicker to take it."""
        for spare in self._spares:
            if not (spare.reading_thread or spare.closed):
                return spare
        self._num_missed += 1
        if self._num_missed < CALLS_FOR_A_SPARE or not self._dialling.acquire(False):
            return None
        try:
            self._num_missed = 0
            self._spares = tuple(spare for spare in self._spares if not spare.closed)
            return self._another() if len(self._spares) < MOST_SPARES else None
        finally:
            self._dialling.release()

    def _another(self) -> RpcConnection | None:
        try:
            spare = self._dial()
        except TransportError:
            self._num_missed = -_AGAIN_AFTER
            return None
        self._spares += (spare,)
        if self._closed:  # meanwhile
            spare.close(self._closed)
        return spare

    def close_copies(self) -> None:
        """In a forked child: close the copies of the links without sending anything."""
        for spare in self._spares:
            spare.close_copy()

    def close(self, why: str) -> None:
        """Close them all; those that are made at this moment are closed, too."""
        self._closed = why
        for spare in self._spares:
            spare.close(why)


__all__ = ["CALLS_FOR_A_SPARE", "MOST_SPARES", "SpareConnections"]
