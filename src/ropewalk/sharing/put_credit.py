"""Room in a bounded queue that came with its answer, and is filled without asking again.

    put ─▶ depot ─▶ room for 3 more     put, put ─▶ sent, not waited for     another process: put ─▶ depot takes 1 back

Each place is claimed in shared memory before its item is sent, and the depot can take back unclaimed ones (`AckLease`)
without asking. So places here keep no other writer waiting, and a claimed place counts as filled for all.
"""

from __future__ import annotations

import threading

from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.transport.ack_page import AckLease


class PutCredit:
    """The places that one handle of a queue may fill. Any thread may claim; one at a time may ask for more.

    Args:
        connection: the connection to the depot.
        place: the place of the lease; given back with this object.
        lot: the lease, where places are claimed: 1, 2, 3, ...
    """

    def __init__(self, connection: RpcConnection, place: int, lot: AckLease) -> None:
        self.connection = connection
        self.place = place
        self.asking = threading.Lock()
        """Held by the thread that asks for more; it checks first that no places are left."""
        self._lot = lot
        self._next, self._last = 1, 0

    def __del__(self) -> None:
        self.connection.acks.free_lot(self.place)

    @property
    def is_left(self) -> bool:
        """Whether there may be a place to claim."""
        return self._next <= self._last

    def keep(self, num: int) -> None:
        """Add `num` places to claim; for the thread that holds `asking`."""
        self._next = 1  # no place is left, so no thread reads it
        self._last = num

    def claim(self) -> bool | None:
        """Claim a place, from one thread at a time.

        Returns:
            Whether there is one; None while the depot does not say, which it does once its pending work is done.
        """
        if self._next > self._last:
            return False
        try:
            is_ours = self._lot.begin(self._next)
        except ValueError:  # the link has ended
            is_ours = False
        if is_ours:
            self._next += 1
        elif is_ours is False:
            self._last = 0
        return is_ours


__all__ = ["PutCredit"]
