"""Which hosts have which blobs, and for which processes: each blob comes to each host at most once.

Small blobs, and those for agents of this host, are sent by the launcher. Large ones go from agent to agent: `FanOut`
decides who fetches from whom, and this tells the agents, and serves those that fetch from the launcher.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.blob_exchange import send_piece
from ropewalk.processes.fan_out import LAUNCHER_SOURCE, FanOut, Fetch, HostRoutes
from ropewalk.processes.messages import (
    PIECE_BYTES,
    BlobAbsent,
    BlobFetched,
    BlobNotFetched,
    BlobProgress,
    DropBlob,
    FetchBlob,
    PutBlob,
    ReadBlob,
)
from ropewalk.processes.process_manager import ProcessManager
from ropewalk.processes.regular_look import RegularLook
from ropewalk.transport.blobs import BlobRef, open_parts
from ropewalk.transport.tokens import key_of_agent, key_of_host, token_of

FAN_OUT_MIN_BYTES = 4 * PIECE_BYTES
"""Smaller blobs are sent to each host by the launcher: the messages of a fan-out would take longer."""
_AHEAD_BYTES = 8 * PIECE_BYTES
"""This much is sent to a host that fetches from the launcher before it asks: it saves a round trip."""
_LOOK_S = 0.5
"""How often fan-outs are looked at, in seconds."""

BlobNews = ReadBlob | BlobProgress | BlobFetched | BlobNotFetched
"""What agents say of blobs."""


class _Journey(msgspec.Struct, eq=False):
    """A large blob on its way to the hosts."""

    ref: BlobRef
    fd: int
    fan_out: FanOut
    holders: list[object] = msgspec.field(default_factory=list[object])
    orders: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """The number of the last order to each host that was told to fetch it: answers to earlier ones do not count."""


class BlobDirectory:
    """The blobs that a session has sent to its hosts. For any thread.

    Args:
        processes: the processes that need them.
        agents: returns all agents of the session.
        run_key: the key from which the keys of all agents follow.
    """

    def __init__(self, processes: ProcessManager, agents: Callable[[], Iterable[AgentRecord]], run_key: str) -> None:
        self._processes = processes
        self._agents = agents
        self._run_key = run_key
        # The collector may free a pool, which drops its blobs, while this very thread holds the lock.
        self._lock = threading.RLock()
        self._journeys: dict[str, _Journey] = {}
        self._routes = HostRoutes()
        self._looks = RegularLook(processes.loop, self._lock, _LOOK_S, self._look)
        self._numbers = itertools.count(1)

    def provide(self, id: str, ref: BlobRef, fd: int) -> None:
        """Make sure that the host of a process gets a blob.

        Args:
            id: id of the process; one without a host needs nothing yet.
            ref: name of the blob and the layout of its parts.
            fd: descriptor of the memory file with its bytes; stays the caller's.

        Raises:
            OSError: no descriptor is left; it may be called again.
        """
        found = self._processes.hosted(id)
        if found is None:
            return
        self.provide_host(*found, ref, fd)

    def provide_host(self, agent: AgentRecord, owner: object, ref: BlobRef, fd: int) -> None:
        """Make sure that a host gets a blob; for the arguments see `provide`.

        Args:
            agent: agent of the host.
            owner: the user of the blob there, until `drop` or the end of the session.
            ref: as for `provide`.
            fd: as for `provide`.
        """
        with self._lock:  # until it is sent, or a concurrent drop by another owner could overtake it
            if agent.link is None:
                return
            holders = agent.blobs.setdefault(ref.id, [])
            is_first, is_new = not holders, owner not in holders
            if is_new:
                holders.append(owner)
            try:
                if agent.link.stream.carries_fds:
                    if is_first:
                        _send(agent, PutBlob(ref), fds=[fd])
                elif ref.size_bytes < FAN_OUT_MIN_BYTES:
                    if is_first:
                        _send(agent, PutBlob(ref), open_parts(os.dup(fd), ref.lengths, writable=False))
                else:
                    self._fan_out(agent, owner, ref, fd)
            except OSError:  # no descriptors are left: the next one that needs the blob there has it sent
                if is_new and owner in holders:
                    holders.remove(owner)
                if not holders:
                    agent.blobs.pop(ref.id, None)
                raise

    def drop(self, blob_id: str, owner: object) -> None:
        """Note that an owner's processes need a blob no more; hosts forget it with its last owner."""
        with self._lock:
            journey = self._journeys.get(blob_id)
            if journey and owner in journey.holders:
                journey.holders.remove(owner)
                if not journey.holders:
                    self._end(journey)
                    journey = None
            for agent in self._agents():
                holders = agent.blobs.get(blob_id)
                if not holders or owner not in holders:
                    continue
                holders.remove(owner)
                if not holders:
                    del agent.blobs[blob_id]
                    _send(agent, DropBlob(blob_id))
                    if journey:
                        journey.orders.pop(agent.id, None)
                        self._carry_out(journey, journey.fan_out.gone(agent.id, time.monotonic()))

    def heard(self, agent: AgentRecord, news: BlobNews) -> None:
        """Handle what an agent says of a blob; from the loop's thread."""
        now = time.monotonic()
        with self._lock:
            journey = self._journeys.get(news.id)
            if journey is None or agent.id not in journey.fan_out.hosts:
                if isinstance(news, ReadBlob):
                    _send(agent, BlobAbsent(news.id))
                elif isinstance(news, BlobNotFetched):  # a small one, for which there was no memory
                    agent.blobs.pop(news.id, None)
                return
            if isinstance(news, ReadBlob):
                if agent.link:
                    send_piece(agent.link, journey.fd, news)
                return
            if news.number != journey.orders.get(agent.id):
                return
            match news:
                case BlobProgress():
                    journey.fan_out.progressed(agent.id, news.num_bytes, now)
                case BlobFetched():
                    self._carry_out(journey, journey.fan_out.arrived(agent.id, now))
                case BlobNotFetched():
                    self._forget_lost(journey)
                    self._carry_out(journey, journey.fan_out.failed(agent.id, news.problem, now))

    def close(self) -> None:
        """Free the memory of all fan-outs; may be called twice."""
        with self._lock:
            for journey in list(self._journeys.values()):
                self._end(journey)

    # Fan-outs; the caller holds the lock

    def _fan_out(self, agent: AgentRecord, owner: object, ref: BlobRef, fd: int) -> None:
        journey = self._journeys.get(ref.id)
        if journey is None:
            fan_out = FanOut(ref.size_bytes, self._routes, piece_bytes=PIECE_BYTES)
            journey = self._journeys[ref.id] = _Journey(ref, os.dup(fd), fan_out)
        if owner not in journey.holders:
            journey.holders.append(owner)
        if agent.id in journey.fan_out.hosts:
            return
        self._forget_lost(journey)
        fetches = journey.fan_out.want(
            agent.id,
            time.monotonic(),
            serves=bool(agent.blob_address),
            reaches_others=agent.certificate is not None,
        )
        self._carry_out(journey, fetches)
        self._looks.begin()

    def _carry_out(self, journey: _Journey, fetches: Iterable[Fetch]) -> None:
        agents = {agent.id: agent for agent in self._agents()} if fetches else {}
        for fetch in fetches:
            reader, source = agents.get(fetch.host), agents.get(fetch.source)
            if reader is None or not (source or fetch.source == LAUNCHER_SOURCE):
                continue  # a host was lost just now; the next look finds it
            is_new = fetch.host not in journey.orders
            number = journey.orders[fetch.host] = next(self._numbers)
            if source:
                token = self._token(reader, source)
                _send(reader, FetchBlob(journey.ref, number, source.id, source.blob_address, token))
                continue
            ahead = min(_AHEAD_BYTES, journey.ref.size_bytes) if is_new else 0
            _send(reader, FetchBlob(journey.ref, number, LAUNCHER_SOURCE, ahead_bytes=ahead))
            for offset in range(0, ahead, PIECE_BYTES):
                if reader.link:
                    send_piece(
                        reader.link, journey.fd, ReadBlob(journey.ref.id, offset, min(PIECE_BYTES, ahead - offset))
                    )

    def _token(self, reader: AgentRecord, source: AgentRecord) -> str:
        fingerprint = reader.certificate.fingerprint if reader.certificate else ""
        return token_of(key_of_agent(key_of_host(self._run_key, source.id)), reader.id, fingerprint)

    def _look(self) -> float | None:
        """Find hosts that are gone, and sources that give nothing."""
        for journey in list(self._journeys.values()):
            self._forget_lost(journey)
            if not journey.fan_out.is_settled:
                self._carry_out(journey, journey.fan_out.look(time.monotonic()))
        return None if all(journey.fan_out.is_settled for journey in self._journeys.values()) else _LOOK_S

    def _forget_lost(self, journey: _Journey) -> None:
        """Tell the fan-out of hosts that were lost or given back."""
        up = {agent.id for agent in self._agents() if agent.link and not agent.link.closed}
        for host in [host for host in journey.fan_out.hosts if host not in up]:
            self._routes.forget(host)
            journey.orders.pop(host, None)
            self._carry_out(journey, journey.fan_out.gone(host, time.monotonic()))

    def _end(self, journey: _Journey) -> None:
        del self._journeys[journey.ref.id]
        os.close(journey.fd)


def _send(
    agent: AgentRecord, message: msgspec.Struct, parts: Iterable[memoryview] = (), fds: Iterable[int] = ()
) -> None:
    if agent.link:
        agent.link.send_if_open(message, list(parts), list(fds))
