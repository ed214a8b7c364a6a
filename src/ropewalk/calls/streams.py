"""Calls of generators: each item is a turn of its own, so that other calls can run in between.

    Call ──▶ turn: item ──▶ turn: item ──▶ (no credit: waits) ──More──▶ turn: item ──▶ ... ──▶ StreamEnd
                                                └─Cancel, or the caller is gone──▶ turn: close

However a stream ends, its generator is closed exactly once, in a turn of its object: no other method runs beside its
`finally` blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from ropewalk.calls.call_context import current, forget_watchers
from ropewalk.calls.incoming import CallPolicy, Incoming, Reply, Served
from ropewalk.calls.messages import Call, StreamEnd, StreamItem
from ropewalk.transport.link import Link, Received

logger = logging.getLogger(__name__)


class ServedGenerator(Incoming):
    """A generator that was called and yields items."""

    __slots__ = ("credit", "ended", "in_turn", "items")

    def __init__(self, served: Served, way: CallPolicy, link: Link, message: Call, received: Received) -> None:
        Incoming.__init__(self, served, way, link, message, received)
        self.credit = message.credit
        self.in_turn = False
        """Whether it has a turn or waits for one."""
        self.items: Iterator[Any] | None = None
        self.ended = False
        """Whether nothing is left to be done for it."""

    @property
    def num_ended(self) -> int:
        return int(self.ended)

    @property
    def wants_turn(self) -> bool:
        """Whether it should wait for a turn now: to yield an item, or to be closed."""
        if self.in_turn or self.ended:
            return False
        return self.items is not None if self.cancelled else self.credit > 0

    def run(self) -> Sequence[Reply]:
        """Yield the next item, or close the generator."""
        token = current.set(self)
        try:
            reply = self._next()
        except BaseException as error:
            reply = self, self.failed(error), None
        if type(reply[1]) is not StreamItem:
            self.close()
        current.reset(token)
        return (reply,)

    def _next(self) -> Reply:
        if self.cancelled:
            return self, None, None
        if self.deadline is not None and self.since >= self.deadline:
            return self, self.too_late(), None
        if self.items is None:
            args, kwargs = self.arguments()
            self.items = iter(self.way.method(*args, **kwargs))
        try:
            value = next(self.items)
        except StopIteration:
            return self, StreamEnd(self.number), None
        self.credit -= 1
        return self.reply(value, StreamItem)

    def close(self) -> None:
        items, self.items, self.ended = self.items, None, True
        forget_watchers(self)
        close = getattr(items, "close", None)
        if close:
            try:
                close()
            except Exception:  # raised by the user's `finally`; no caller waits for it
                logger.exception("%s: a stream that was given up raised", self.label)


__all__ = ["ServedGenerator"]
