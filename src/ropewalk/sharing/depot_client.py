"""This process at the depot of its host: its seat in the memory that they share, and where its threads sleep."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ropewalk.sharing.arena import NUM_BERTHS, Arena, mapped
from ropewalk.sharing.lock_rings import LockCall, place_of
from ropewalk.sharing.membership import on_fork
from ropewalk.sharing.permit_ring import PermitCall
from ropewalk.transport.process_mutex import SharedAlarm, post

if TYPE_CHECKING:
    from ropewalk.calls.rpc_connection import RpcConnection
    from ropewalk.sharing.host_queue import HostQueue
    from ropewalk.sharing.membership import SharingMember


class DepotClient:
    """This process at the depot of its host, over one link.

    Args:
        arena: the memory.
        seat: the number of this process there.
        name: its name in messages.
        connection: the link.
    """

    def __init__(self, arena: Arena, seat: int, name: str, connection: RpcConnection) -> None:
        self.arena = arena
        self.seat = seat
        self._name = name
        self.connection = connection
        self.free = list(range(NUM_BERTHS))
        """The berths at which no thread of this process sleeps."""
        self.berths = [arena.berth(seat, number) for number in range(NUM_BERTHS)]
        """Their addresses."""
        self.permit_calls = [PermitCall(seat, number) for number in range(NUM_BERTHS)]
        """The calls to semaphores of the threads that sleep there."""
        self.lock_calls = [LockCall(seat, number) for number in range(NUM_BERTHS)]
        """The calls to locks and conditions."""
        self.queues: WeakValueDictionary[int, HostQueue] = WeakValueDictionary()
        """The calls to queues, by the number of the queue."""
        self.finding = threading.RLock()
        """Held while these are found."""
        self._addresses: dict[int, int] = {}
        self.alarm = SharedAlarm()
        """When sleeping threads see whether their depot is still there, and whether a signal came."""

    def wake(self, entry: int) -> None:
        """Wake the thread of a call, of any process, by its word in a ring."""
        address = self._addresses.get(entry)
        if address is None:
            address = self._addresses[entry] = self.arena.berth(*place_of(entry))
        post(address)

    def name_of(self, seat: int) -> str:
        """Return the name of this process by its seat; "" for others, of which its states say nothing."""
        return self._name if seat == self.seat else ""


_clients: WeakValueDictionary[RpcConnection, DepotClient] = WeakValueDictionary()
_seating = threading.RLock()


def depot_client_of(member: SharingMember, address: str, connection: RpcConnection) -> DepotClient | None:
    """Return this process's client at a depot; None if it has none there.

    Args:
        member: this process in the run.
        address: of the depot.
        connection: the present link to it.

    Raises:
        PeerLost: the depot is gone.
    """
    client = _clients.get(connection)
    if client is None:
        with _seating:
            client = _clients.get(connection)
            if client is None:
                client = _seated(member, address, connection)
                if client:  # a handler of a signal may have been here
                    client = _clients.setdefault(connection, client)
    return client


def _seated(member: SharingMember, address: str, connection: RpcConnection) -> DepotClient | None:
    if not connection.link.stream.carries_fds:
        return None
    seat, name, place, mark, of_layout = member.ask(address, "sit")
    if not seat or member.connection_to(address) is not connection:
        return None
    arena = mapped(place, mark, of_layout)
    return DepotClient(arena, seat, name, connection) if arena else None


def _forget_clients() -> None:
    """Have no seat in a forked child: it is the parent's."""
    global _seating
    _seating = threading.RLock()
    _clients.clear()


on_fork.append(_forget_clients)


__all__ = ["DepotClient", "depot_client_of"]
