"""The state that the clients of one process share: links, the loop, the directory.

    Client ─┐                              ┌─ RpcConnection ── link ── process of learner
    Client ─┼─▶ ReplicaClient ──▶ Caller ──┤
    Client ─┘                              └─ RpcConnection ── link ── process of replay and cache

There is one link for each process that is called, however many objects that process serves; and a few more where
many threads call it all the time (`spare_connections.py`).
"""

from __future__ import annotations

import threading

from ropewalk.calls.directory import Directory, ReplicaLocation
from ropewalk.calls.messages import CALLS
from ropewalk.calls.payloads import Handover
from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.calls.sequences import Sequence
from ropewalk.calls.spare_connections import SPARE_DIAL_S
from ropewalk.calls.threads import Threads
from ropewalk.errors import ProgramStopped
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import DIAL_S, dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport

LAST_WORDS_S = 1.0
"""Seconds by which the last answers of a process on another host, and the end of its link, may arrive later than the
news that it has ended: TCP resends lost packets after 0.2 s and after 0.6 s. The link of a lost host never ends."""


class Caller:
    """The state that the clients of one process share: links, the loop, the directory."""

    def __init__(
        self,
        loop: Loop,
        directory: Directory,
        run_id: str,
        process_id: str,
        handover: Handover | None = None,
        passport: Passport | None = None,
        stream: str = "",
    ) -> None:
        self.loop = loop
        self.stream: str = stream or f"{process_id}#0"
        """Name of this process in calls that run once: a name, "#" and its generation."""
        self._sequences: dict[tuple[str, int], Sequence] = {}
        self.directory = directory
        self.handover = handover
        """Passes arguments without pickling to services that are all in this process."""
        self.threads: Threads = Threads("ropewalk-call")
        self._run_id = run_id
        self._process_id = process_id
        self._passport = passport
        self._connections: dict[str, RpcConnection] = {}
        self._choosing = threading.Lock()
        """Held while one of several new connections to a process becomes the one that is used."""
        self.closed: str = ""
        """The reason why this process makes no more calls; empty while it does."""

    def connection_to(self, name: str, place: ReplicaLocation, timeout_s: float = DIAL_S) -> RpcConnection:
        """Return the connection to the process of a service; dial within `timeout_s` seconds if there is none yet.

        Raises:
            TransportError: no process answers there.
            ProgramStopped: this process makes no more calls.
        """
        connection = self._connections.get(place.address)
        if connection is not None and not connection.closed:
            return connection
        if self.closed:
            raise ProgramStopped(self.closed)
        link = self._dial(place, timeout_s)
        made = RpcConnection(link, self.loop, name, place.address, lambda: self._spare(name, place))
        with self._choosing:
            chosen = self._connections.get(place.address)
            if chosen is None or chosen.closed:
                chosen = self._connections[place.address] = made
        if chosen is not made:
            made.close("another thread was quicker")
            return chosen
        if self.closed:  # while this thread dialled: `close` may have looked before the connection existed
            self.lose(place.address, self.closed)
            raise ProgramStopped(self.closed)
        return made

    def _dial(self, place: ReplicaLocation, timeout_s: float) -> Link:
        certificate = self._passport.certificate if self._passport else None
        fingerprint = certificate.fingerprint if certificate else ""
        credentials = Credentials(self._run_id, self._process_id, place.token, fingerprint)
        link = dial(parse_address(place.address), credentials, CALLS, passport=self._passport, timeout_s=timeout_s)
        if self.handover:
            self.handover.join(link)
        return link

    def _spare(self, name: str, place: ReplicaLocation) -> RpcConnection:
        return RpcConnection(self._dial(place, SPARE_DIAL_S), self.loop, name, place.address)

    def sequence(self, name: str, index: int) -> Sequence:
        """The numbers for calls to a replica of a service that run once."""
        return self._sequences.get((name, index)) or self._sequences.setdefault((name, index), Sequence())

    def connections(self) -> list[tuple[str, RpcConnection]]:
        """The current connections, with their addresses."""
        return list(self._connections.items())

    def known(self, address: str) -> RpcConnection | None:
        """The open connection to the process at an address, if there is one."""
        connection = self._connections.get(address)
        return connection if connection and not connection.closed else None

    def lose(self, address: str, why: str) -> None:
        """The process at an address is gone: do not wait for the kernel to report it."""
        connection = self._connections.pop(address, None)
        if connection:
            connection.close(why)

    def close(self, why: str = "the program has ended") -> None:
        """End every link; calls under way are lost. May be called twice."""
        self.closed = why
        for address in list(self._connections):
            self.lose(address, why)
        self.threads.close()

    def forget(self) -> None:
        """In a forked child: close the copies of the links without sending anything."""
        for connection in self._connections.values():
            connection.close_copy()
        self._connections = {}
        self._choosing = threading.Lock()  # another thread may have held it at the fork


__all__ = ["Caller"]
