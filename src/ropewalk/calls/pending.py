"""A call under way, at its caller's side: what has come of it so far."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, cast

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
    """The server is there, and does not serve this object (any more); the call did not run."""


class PendingCall:
    """A call whose answer somebody waits for."""

    __slots__ = ("answered", "arrived", "due", "locks", "number", "received", "where", "why_lost")

    #: Nobody waits for it, or perhaps later: then the loop reads its answer.
    alone = False

    def __init__(self, where: str) -> None:
        self.where: str = where
        """The peer, in words, for tracebacks."""
        self.number: int = 0
        self.answered: bool = False
        """Its answer is here, or will not come."""
        self.received: Received | None = None
        self.why_lost: str = ""
        self.due: float | None = None
        """When it is given up by itself, if it is left alone."""
        self.locks: tuple[threading.Lock, ...] = ()
        """Of the threads that wait for it beside one that reads."""
        self.arrived: deque[Received] | None = None
        """Items of a stream that have not been taken yet."""

    def value(self) -> Any:
        """What the call returned, once it is answered.

        Raises:
            Lost: the link ended first.
            NotServed: the call did not run.
            Exception: what the call raised.
        """
        received, self.received = self.received, None
        if received is None:
            raise Lost(self.why_lost)
        return value_of(received, self.where)

    def settle(self) -> None:
        """It is answered: tell those who wanted to be told. Runs user code."""

    def expire(self) -> None:
        """It was given up at `due`: tell those who wanted to be told."""


class Dropped(PendingCall):
    """A call whose answer nobody wants."""

    __slots__ = ()
    alone = True


def value_of(received: Received, where: str) -> Any:
    """The value in an answer or item, or raise what it stands for."""
    message = received.message
    kind = cast("type[Any]", type(message))
    if kind is Answer or kind is StreamItem:
        return unpack(received, message.shared)
    if kind is Several:
        return loads(received.parts[0])
    if kind is Raised:
        raise rebuild_error(message.failure, where)
    assert kind is Gone
    raise NotServed(message.reason)


__all__ = ["Busy", "Dropped", "Lost", "NotServed", "PendingCall", "value_of"]
