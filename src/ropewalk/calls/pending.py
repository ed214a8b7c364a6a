"""A call under way, at the caller's side: its answer so far."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ropewalk.calls.messages import Answer, Gone, Raised, Several, StreamItem
from ropewalk.calls.payloads import unpack
from ropewalk.transport.failures import rebuild_error
from ropewalk.transport.link import Received
from ropewalk.transport.serialization import loads


class Busy(Exception):
    """Other calls of the link are under way; nothing was sent."""


class Lost(Exception):
    """The link ended before the answer came.

    Attributes:
        sent: whether the call may have run.
    """

    def __init__(self, why: str, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class NotServed(Exception):
    """The server is there but does not, or no longer, serve this object; the call did not run."""


class PendingCall:
    """A call whose answer is waited for."""

    __slots__ = ("answered", "arrived", "due", "locks", "number", "received", "where", "why_lost")

    alone = False
    """Whether no thread waits for it, or perhaps only later: then the loop reads its answer."""

    def __init__(self, where: str) -> None:
        self.where: str = where
        """The peer, in words, for tracebacks."""
        self.number: int = 0
        self.answered: bool = False
        """Whether its answer has arrived, or will not come."""
        self.received: Received | None = None
        self.why_lost: str = ""
        self.due: float | None = None
        """Monotonic time at which it is given up automatically, if no thread waits for it."""
        self.locks: tuple[threading.Lock, ...] = ()
        """Locks of the threads that wait for it while another thread reads."""
        self.arrived: deque[Received] | None = None
        """Items of a stream that have not been taken yet."""

    def value(self) -> Any:
        """The call's result, once it is answered.

        Raises:
            Lost: the link ended first.
            NotServed: the call did not run.
            Exception: the call's own exception.
        """
        received, self.received = self.received, None
        if received is None:
            raise Lost(self.why_lost)
        return value_of(received, self.where)

    def settle(self) -> None:
        """Called when it is answered: run the callbacks, which are user code."""

    def expire(self) -> None:
        """Called when it was given up at `due`: run the callbacks."""


class AwaitedCall(PendingCall):
    """A call for which a thread waits from its beginning to its answer."""

    __slots__ = ()


class Dropped(PendingCall):
    """A call whose answer is dropped."""

    __slots__ = ()
    alone = True


def value_of(received: Received, where: str) -> Any:
    """Return the value in an answer or item, or raise the exception in it."""
    message = received.message
    kind: Any = type(message)  # pyright: ignore[reportUnknownVariableType]  # of an Any
    if kind is Answer or kind is StreamItem:
        if not received.parts and not received.fds:
            return None
        return unpack(received, message.shared)
    if kind is Several:
        return loads(received.parts[0])
    if kind is Raised:
        raise rebuild_error(message.failure, where)
    assert kind is Gone
    raise NotServed(message.reason)


__all__ = ["Busy", "Dropped", "Lost", "NotServed", "PendingCall", "value_of"]
