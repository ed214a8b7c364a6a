"""Items that came with a queue's answer, and are taken without asking again.

    get ─▶ depot ─▶ item 1, and a lease (2 3 4)       get, get ─▶ 2, 3      another process: get ─▶ depot takes 4 back

Each item is claimed in shared memory before it is used, and the depot can take back unclaimed ones (`AckLease`)
without asking. So items here never keep other readers waiting, and are not lost when this process dies.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.processes.interrupts import interrupts_deferred, may_serve
from ropewalk.transport.ack_page import AckLease
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import loads


class PrefetchBuffer:
    """The items that one handle of a queue may take. Any thread may take; one at a time may ask for more.

    Args:
        connection: the connection to the depot.
        place: the place of the lease; given back with this object.
        lot: the lease, where items are claimed.
        target: the id of the queue.
    """

    def __init__(self, connection: RpcConnection, place: int, lot: AckLease, target: int) -> None:
        self.connection = connection
        self.place = place
        self.asking = threading.Lock()
        """Held by the thread that asks for more; it checks first that no items are left."""
        self._lot = lot
        self._target = target
        self._parts: Sequence[Part] = ()
        self._next = 0
        self._again: deque[Part] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __del__(self) -> None:
        self.connection.acks.free_lot(self.place)

    @property
    def is_mine(self) -> bool:
        """Whether this is not a forked child's copy of its parent's buffer."""
        return self._pid == os.getpid()

    def keep(self, parts: Sequence[Part]) -> None:
        """Add items to take; for the thread that holds `asking`."""
        with self._lock:
            self._parts, self._next = parts, 0

    def take(self, settle: Callable[[], object]) -> Part | None:
        """Claim the next item; None if there is none.

        Args:
            settle: waits until the depot has done everything that it has begun.
        """
        if self._next >= len(self._parts) and not self._again:
            return None
        if may_serve():
            return self._take(settle)
        with interrupts_deferred:  # signal handlers may take items as well
            return self._take(settle)

    def _take(self, settle: Callable[[], object]) -> Part | None:
        with self._lock:
            if self._again:
                return self._again.popleft()
            at = self._next
            if at >= len(self._parts):
                return None
            # The results of earlier items are sent now: a process that is killed then loses only the item in hand.
            if self.connection.batcher.has_some:
                self.connection.batcher.send()
            if not self._begin(at + 1, settle):  # (the first of the lease came as the answer)
                self._parts, self._next = (), 0
                return None
            part = self._parts[at]
            self._next = at + 1
            return part

    def _begin(self, value: int, settle: Callable[[], object]) -> bool | None:
        try:
            is_ours = self._lot.begin(value)
            if is_ours is None:
                settle()
                is_ours = self._lot.begin(value)
            if is_ours and self._lot.is_watched:
                with interrupts_deferred:
                    self._lot.unwatch()
                    self.connection.acks.tell_begun(self._target)
            return is_ours
        except ValueError:  # the link has ended
            return False

    def value(self, part: Part) -> Any:
        """Unpickle an item; an item that an interrupt keeps from being used is taken next."""
        try:
            return loads(part)
        except Exception:
            raise
        except BaseException:
            self._again.append(part)
            raise


__all__ = ["PrefetchBuffer"]
