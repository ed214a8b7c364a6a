"""Sends small items to objects at the other end of one link, with several items in one call.

    put ─▶ nothing under way? ─▶ sent at once
      └──▶ gathered ─▶ one call for all: at 64 items, after a millisecond, or before anything else is sent on this link

A call for each item would cost far more than the item. Senders do not wait for these calls; but a sender that is faster
than the receiver waits until some of them are answered.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ropewalk.calls.messages import Call
from ropewalk.calls.payloads import PackedValue
from ropewalk.calls.pending import Dropped, Lost
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.transport.frames import Part

if TYPE_CHECKING:
    from ropewalk.calls.rpc_connection import RpcConnection
    from ropewalk.transport.loop import Loop

_MOST_ITEMS, _MOST_BYTES = 64, 64 * 1024
"""Maximum items and bytes in one call: the receiver can begin with these while the next ones are made."""
_MOST_CALLS = 16
"""Maximum number of calls under way; at this number the sender waits until half of them are answered."""
_WAIT_S = 0.001
"""Maximum time in seconds for which gathered items wait."""


class Batcher:
    """The items gathered for one link. Any thread may put.

    Args:
        connection: the connection over that link.
        loop: reads that link; sends items that would wait too long.
    """

    def __init__(self, connection: RpcConnection, loop: Loop) -> None:
        self.has_some: bool = False
        """Whether any items are gathered; still true while they are being sent."""
        self._parts: list[Part] = []
        self._connection = connection
        self._loop = loop
        self._target = (0, "")
        self._num_bytes = 0
        self._under_way: deque[Dropped] = deque()
        self._lock = threading.RLock()  # callbacks of a link that ends at this moment may put again
        self._is_timed = False

    def put(self, target: int, method: str, part: Part, claim: Callable[[], bool | None] | None = None) -> bool | None:
        """Send an item, or keep it for a moment to send it with others.

        Args:
            target: the object's number.
            method: a method that takes any number of items.
            part: one item.
            claim: says whether the item may be sent; asked at the moment of sending, by one thread at a time.

        Returns:
            True if the item was sent, otherwise the result of `claim`.

        Raises:
            Lost: the link has ended; the item was not sent.
        """
        under_way = self._under_way
        if len(under_way) >= _MOST_CALLS:
            self._wait_for_room()
        with interrupts_deferred, self._lock:
            if claim and not (answer := claim()):
                return answer
            if self._parts and self._target != (target, method):
                self._send()
            self._target = target, method
            self._parts.append(part)
            self.has_some = True
            self._num_bytes += len(part)
            while under_way and under_way[0].answered:
                under_way.popleft()
            if not under_way or len(self._parts) >= _MOST_ITEMS or self._num_bytes >= _MOST_BYTES:
                self._send()
            elif not self._is_timed:
                self._is_timed = True
                self._loop.call_soon(self._later)
        return True

    def send(self) -> None:
        """Send the gathered items; when this returns, every item that any thread had put before is on its way."""
        with interrupts_deferred, self._lock, contextlib.suppress(Lost):  # the next call over this link raises it
            if self._parts:
                self._send()

    def _send(self) -> None:
        """Send the gathered items; with the lock held."""
        target, method = self._target
        parts, self._parts, self._num_bytes = self._parts, [], 0
        pending = Dropped(self._connection.where)
        try:
            self._connection.begin_now(Call(0, target, method, False, None, (), (), 0), PackedValue(parts), pending)
            self._under_way.append(pending)
        finally:
            self.has_some = bool(
                self._parts
            )  # not before these are sent: a thread that finds nothing gathered sends at once

    def _wait_for_room(self) -> None:
        """Wait until half of the calls that are under way are answered."""
        with contextlib.suppress(IndexError):  # another thread was here
            self._connection.wait(self._under_way[_MOST_CALLS // 2], None)

    def _later(self) -> None:
        self._loop.call_later(_WAIT_S, self._time_is_over)

    def _time_is_over(self) -> None:
        self._is_timed = False
        if self.has_some:
            self.send()


__all__ = ["Batcher"]
