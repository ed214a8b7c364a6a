"""Calls to a queue of this host, which its processes make themselves, in memory that they share with the depot.

put ─▶ HostQueue ─▶ ring: done here ─▶ post ─▶ the process whose turn it is, asleep at its berth
                      └ the depot has the queue ─▶ False: the handle calls the depot      (ringed_queue.py)
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.calls.payloads import unpack_parts
from ropewalk.sharing import queue_ring
from ropewalk.sharing.host_calls import HostCalls
from ropewalk.sharing.queue_memory import CALL, GET, JOIN, PUT, QueueRing, opened, side
from ropewalk.sharing.queue_ring import ELSEWHERE, OTHER, REFUSED, WAITS, Hand, RingCall
from ropewalk.sharing.record_words import IN_DEPOT, PRESENT, TARGET
from ropewalk.transport.looking import Looking
from ropewalk.transport.serialization import loads

if TYPE_CHECKING:
    from ropewalk.sharing.depot_client import DepotClient
    from ropewalk.sharing.host_calls import OnLost
    from ropewalk.transport.frames import Part

NOW = 0.0
"""The time at which a call ends that does not wait."""
_MOST_ATTEMPTS = 3
"""Attempts, each just too late, after which a call takes its place among those that wait."""
_SHORT_LOOK_S, _LONG_LOOK_S = 2e-6, 50e-6
_SHORT_SLEEP_S = 100e-6
"""The longest sleep, in seconds, that is mostly the time to fall asleep and be woken."""
_Attempt = Callable[[RingCall | None], int]
"""Makes a call, which may be one that waits already; returns what `queue_ring` does."""


class HostQueue(HostCalls):
    """Calls to one queue. Methods return whether they were made; if not, the depot has to make them.

    Args:
        client: this process at the depot.
        slot: the place of the queue's record.
        ring: tells the depot that calls which waited were interrupted.
        settle: waits until the depot has done what was sent to it.
    """

    def __init__(
        self, client: DepotClient, slot: int, ring: Callable[[], object], settle: Callable[[], object]
    ) -> None:
        super().__init__(client, slot, 0, ring)
        self.link = client.connection.link
        self._again: deque[tuple[bytes, int]] = deque()
        self.has_sent = False
        """Whether items were sent to the depot that may not have arrived."""
        self._queue = QueueRing(client.arena, slot)
        self._settle = settle
        self._settling = threading.Lock()
        self._looking = Looking(_SHORT_LOOK_S, _LONG_LOOK_S, _SHORT_SLEEP_S)

    def put(self, content: Part, num_parts: int, due: float | None, lost: OnLost) -> bool:
        """Put an item, as `queue_memory.sealed` returns it; raises `queue.Full` at the time `due`, see `left_s`."""
        if self.has_sent and not self._is_here():
            return False
        found = queue_ring.put(self._queue, content, num_parts)
        if found == REFUSED and due != NOW:
            found = self._wait(PUT, lambda call: queue_ring.put(self._queue, content, num_parts, call), due, lost)
        if found > 0:
            self._client.wake(found & CALL)
            if found >> OTHER:
                self._client.wake(found >> OTHER & CALL)
        elif found == REFUSED:
            raise queue.Full
        return found >= 0

    def take(self, hand: Hand, due: float | None, lost: OnLost) -> bool:
        """Take an item into the hand; raises `queue.Empty` at the time `due`, see `left_s`."""
        if self._again:
            with contextlib.suppress(IndexError):  # another thread was here
                hand[0] = self._again.popleft()
                return True
        if self.has_sent and not self._is_here():
            return False
        found = queue_ring.get(self._queue, hand)
        if found == REFUSED and due != NOW:
            found = self._wait(GET, lambda call: queue_ring.get(self._queue, hand, call), due, lost)
        if found > 0:
            self._client.wake(found & CALL)
        elif found == REFUSED:
            raise queue.Empty
        return found >= 0

    def value(self, hand: Hand) -> Any:
        """Return the item in the hand."""
        item = hand[0]
        assert item
        content, num_parts = item
        return loads(content) if num_parts == 1 else unpack_parts(opened(content, num_parts))

    def keep(self, hand: Hand) -> None:
        """Have the item in the hand, if there is one, be the next to be taken: an interrupt kept it from being used."""
        if hand[0]:
            self._again.append(hand[0])

    def finish(self) -> bool:
        """Count an item as finished; raises ValueError if all are."""
        if self.has_sent and not self._is_here():
            return False
        found = queue_ring.finish(self._queue)
        if found == REFUSED:
            raise ValueError("task_done() called too many times")
        if found == WAITS:
            self._wake_due(queue_ring.due(self._queue))
        return found != ELSEWHERE

    def join(self, lost: OnLost) -> bool:
        """Wait until all items are finished."""
        if self.has_sent and not self._is_here():
            return False
        found = queue_ring.join(self._queue, None)
        if found == REFUSED:
            found = self._wait(JOIN, lambda call: queue_ring.join(self._queue, call), None, lost)
        return found == 0

    def sizes(self) -> tuple[int, int] | None:
        """Return the number of items, and the largest one, 0 for any; None if the depot has to be asked."""
        return queue_ring.sizes(self._queue) if not self.has_sent or self._is_here() else None

    @property
    def is_in_depot(self) -> bool:
        """Whether the depot has the queue at this moment."""
        return self.words[PRESENT] == IN_DEPOT

    def _is_here(self) -> bool:
        """Whether the depot does not have the queue; what was sent to it has arrived then."""
        if self.is_in_depot:
            return False
        with self._settling:
            if self.has_sent:
                self.has_sent = False
                self._settle()
        return True

    def _wait(self, what: int, attempt: _Attempt, due: float | None, lost: OnLost) -> int:
        """Make a call in its turn; returns REFUSED if its time is over."""
        for _ in range(_MOST_ATTEMPTS if what != JOIN else 0):
            if not self._is_soon(what):
                break
            found = attempt(None)
            if found != REFUSED:
                return found
        number, timeout = self._berth(), left_s(due)
        call = RingCall(self.seat, number, what)

        def see(is_late: bool) -> tuple[Any, Exception | None] | None:
            found = attempt(call)
            if found != WAITS:
                return found, None
            return (REFUSED, None) if is_late else None

        found, begun = REFUSED, time.monotonic()
        try:
            found = (see(False) or self._sleep((self.seat, number, 0), timeout, lost, see))[0]
            self._looking.slept(time.monotonic() - begun)
        except BaseException:  # Ctrl-C, perhaps while the depot has the queue, and a claim for this call
            if self.is_in_depot:
                self._ring()
            raise
        finally:
            if found == REFUSED or what == JOIN:
                self._wake_due(queue_ring.withdraw(self._queue, call))
            self._client.free.append(number)
        return found

    def _is_soon(self, what: int) -> bool:
        """Look for some microseconds whether a call can be made at any moment."""
        ring = self._queue
        if ring.words[side(what)[0]]:  # it is the turn of others first
            return False
        return bool(self._looking.look(functools.partial(ring.looks_possible, what)))

    def _wake_due(self, words: Sequence[int]) -> None:
        for word in words:
            self._client.wake(word & CALL)


def left_s(due: float | None) -> float | None:
    """Return the seconds until a time of `time.monotonic`, which may be NOW; None for None, which is never."""
    return max(due - time.monotonic(), 0.0) if due else due


def queue_at(
    client: DepotClient, target: int, slot: int, ring: Callable[[], object], settle: Callable[[], object]
) -> HostQueue | None:
    """Return this process's calls to a queue, one object for all handles; None if there can be none."""
    with client.finding:
        calls = client.queues.get(target)
        if calls is None:
            try:
                calls = HostQueue(client, slot, ring, settle)
            except OSError:  # no memory
                return None
            if calls.words[TARGET] != target:
                return None
            calls = client.queues.setdefault(target, calls)  # a handler of a signal may have been here
        return calls


__all__ = ["NOW", "HostQueue", "left_s", "queue_at"]
