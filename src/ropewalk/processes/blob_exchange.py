"""An agent's part in fan-outs: it fetches large blobs from other agents or the launcher, and serves them to others.

    launcher ── FetchBlob(source) ─▶ this agent ── ReadBlob ─▶ source
                                         │     ◀── BlobPiece ──  … written, hashed, and passed on at once to readers
                                         ├── BlobProgress, BlobFetched, BlobNotFetched ─▶ launcher
    other agents ── ReadBlob ───────────▶┘     an answer waits until the bytes are here

The launcher decides who fetches from whom (`fan_out.py`). Agents meet over mutual TLS with the certificates of the run,
and the agent that dials shows a token that the launcher has made for these two. A blob is given to processes only when
its content has the hash by which it is named, whoever sent it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

import msgspec

from ropewalk.errors import TransportError
from ropewalk.processes.blob_shelf import BlobShelf
from ropewalk.processes.fan_out import LAUNCHER_SOURCE, FetchProblem
from ropewalk.processes.messages import (
    PEER,
    PIECE_BYTES,
    AgentBoot,
    BlobAbsent,
    BlobFetched,
    BlobNotFetched,
    BlobPiece,
    BlobProgress,
    FetchBlob,
    HostEvent,
    ReadBlob,
    Retired,
)
from ropewalk.transport.address import parse_address
from ropewalk.transport.blobs import BlobRef, ContentHash, empty_file, read_bytes, write_bytes
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials, ProcessCertificate
from ropewalk.transport.frames import STRANGER, Limits
from ropewalk.transport.kernel import seal
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.server import Listener
from ropewalk.transport.tokens import TokenList, key_of_agent

WINDOW_BYTES = 32 * PIECE_BYTES
"""This many bytes are asked for in advance: 4 MiB fill a link of 1 Gbit/s with a round trip of 30 ms."""
_DIAL_S = 2.5
"""Timeout of dialling another agent, in seconds: TCP dials at 0 and 1 s."""
_PROGRESS_S = 0.5
"""How often the launcher is told how much has arrived, in seconds."""
_IDLE_S = 60.0
"""A connection to another agent is closed when nothing was fetched over it for this long (seconds)."""
_MOST_WAITING = 256
"""A blob with this many unanswered questions is not there for others."""
_FROM_SOURCE = Limits(header_bytes=STRANGER.header_bytes, num_parts=1, frame_bytes=PIECE_BYTES, num_fds=0)
"""What an agent accepts from one that it has dialled; from one that dials it accepts no parts."""


class _Arrival(msgspec.Struct, eq=False):
    """A blob that is being fetched."""

    owner: Link
    ref: BlobRef
    fd: int
    content: ContentHash
    source: str = LAUNCHER_SOURCE
    number: int = 0
    """Number of the order that is followed."""
    link: Link | None = None
    """Link to the source; None while it is dialled, and after it was lost."""
    num_bytes: int = 0
    num_asked: int = 0
    num_told: int = 0
    waiting: list[tuple[Link, ReadBlob]] = msgspec.field(default_factory=list[tuple[Link, ReadBlob]])
    """Questions of other agents for bytes that are not here yet."""


class BlobExchange:
    """The blobs that travel from and to this host. Everything is called on the loop's thread.

    Args:
        boot: boot configuration of the agent.
        loop: loop of the agent.
        shelf: takes the blobs that have arrived.
        tell: sends a message to the launcher.
    """

    def __init__(self, boot: AgentBoot, loop: Loop, shelf: BlobShelf, tell: Callable[[msgspec.Struct], object]) -> None:
        self._boot = boot
        self._loop = loop
        self._shelf = shelf
        self._tell = tell
        self._members = TokenList(key_of_agent(boot.service_key))
        self._certificate: ProcessCertificate | None = None
        self._ip = ""
        self._listener: Listener | None = None
        self._arrivals: dict[str, _Arrival] = {}
        self._sources: dict[str, Link] = {}
        """The agents that were dialled."""
        self._used: dict[str, float] = {}
        self._dialling: set[str] = set()
        self._readers: dict[Link, str] = {}
        """The agents that have dialled this one."""
        self._reports = False
        self._without_memory: set[str] = set()
        """Blobs of which the user was told that this host has no memory for them."""

    def open(self, ip: str) -> str:
        """Listen for other agents; returns the address, or "" in a run whose hosts have none, or where it cannot be.

        Args:
            ip: address of this host for others; "" if it has none.
        """
        if not (ip and self._boot.certificate):
            return ""
        from ropewalk.transport.tls_server import TlsListener  # only a run of several hosts loads `ssl`

        self._ip, self._certificate = ip, self._boot.certificate.unpacked()
        try:
            listener = TlsListener(
                self._loop, ip, 0, self._certificate, self._boot.run_id, self._members, PEER, self._met
            )
        except OSError:
            return ""  # it is served by the others and the launcher
        self._listener = listener
        listener.open()
        return str(listener.address)

    def close(self) -> None:
        """Stop listening; the loop closes the links."""
        if self._listener:
            self._listener.close()

    # Fetching

    def fetch(self, launcher: Link, received: Received) -> None:
        """Begin to fetch a blob, or go on with another source."""
        order: FetchBlob = received.message
        id = order.ref.id
        if self._shelf.hold(launcher, id):
            self._tell(BlobFetched(id, order.number))
            return
        arrival = self._arrivals.get(id)
        if arrival is None:
            try:
                fd = empty_file(order.ref.size_bytes, f"ropewalk-{id[:12]}")
            except OSError as error:
                self._tell_of_no_memory(order.ref, error)
                self._tell(BlobNotFetched(id, order.number, FetchProblem.NO_MEMORY))
                return
            arrival = self._arrivals[id] = _Arrival(launcher, order.ref, fd, ContentHash(order.ref.lengths))
        arrival.source, arrival.number, arrival.link = order.source, order.number, None
        if order.source == LAUNCHER_SOURCE:
            self._begin(arrival, launcher, 0 if arrival.num_bytes else order.ahead_bytes)
        elif link := self._sources.get(order.source):
            self._begin(arrival, link)
        else:
            self._dial(order)
        self._report_from_now()

    def drop(self, id: str) -> None:
        """Stop fetching a blob; may be called for one that is not being fetched."""
        arrival = self._arrivals.pop(id, None)
        if arrival:
            os.close(arrival.fd)
            for reader, _ in arrival.waiting:
                reader.send_if_open(BlobAbsent(id))

    def piece(self, link: Link, received: Received) -> None:
        """Take some bytes of a blob."""
        message: BlobPiece = received.message
        arrival = self._arrivals.get(message.id)
        if arrival is None or arrival.link is not link or message.offset != arrival.num_bytes:
            return  # it was asked for before the source changed
        try:
            (part,) = received.parts
            arrival.content.update(part)
            write_bytes(arrival.fd, part, arrival.num_bytes)
        except ValueError:
            self._failed(arrival, FetchProblem.CORRUPT)
            return
        except OSError as error:
            self._tell_of_no_memory(arrival.ref, error)
            self._failed(arrival, FetchProblem.NO_MEMORY)
            return
        arrival.num_bytes += len(part)
        self._used[arrival.source] = time.monotonic()
        self._answer_waiting(arrival)
        if arrival.num_bytes == arrival.ref.size_bytes:
            self._complete(arrival)
        else:
            self._ask(arrival, link)

    def absent(self, link: Link, received: Received) -> None:
        """Handle a source that does not have a blob, or not any more."""
        arrival = self._arrivals.get(received.message.id)
        if arrival and arrival.link is link:
            self._failed(arrival, FetchProblem.LOST)

    def _begin(self, arrival: _Arrival, link: Link, ahead_bytes: int = 0) -> None:
        arrival.link, arrival.num_asked = link, arrival.num_bytes + ahead_bytes
        self._ask(arrival, link)

    def _ask(self, arrival: _Arrival, link: Link) -> None:
        size = arrival.ref.size_bytes
        while arrival.num_asked < min(size, arrival.num_bytes + WINDOW_BYTES):
            length = min(PIECE_BYTES, size - arrival.num_asked)
            link.send_if_open(ReadBlob(arrival.ref.id, arrival.num_asked, length))
            arrival.num_asked += length

    def _complete(self, arrival: _Arrival) -> None:
        id = arrival.ref.id
        if arrival.content.name() != id:
            self._failed(arrival, FetchProblem.CORRUPT)
            return
        del self._arrivals[id]
        seal(arrival.fd)
        self._shelf.keep(arrival.owner, arrival.ref, arrival.fd)
        self._tell(BlobFetched(id, arrival.number))

    def _failed(self, arrival: _Arrival, problem: FetchProblem) -> None:
        arrival.link = None
        if problem in (FetchProblem.CORRUPT, FetchProblem.NO_MEMORY):
            self.drop(arrival.ref.id)
        self._tell(BlobNotFetched(arrival.ref.id, arrival.number, problem))

    def _tell_of_no_memory(self, ref: BlobRef, error: OSError) -> None:
        """Tell the user, once, why processes of this host wait for a value."""
        if ref.id not in self._without_memory:
            self._without_memory.add(ref.id)
            size = f"{ref.size_bytes / 1e6:.1f} MB"
            text = f"a value of {size} that processes need cannot be held here: {error.strerror}; it is fetched again"
            self._tell(HostEvent(text))

    def _report_from_now(self) -> None:
        if not self._reports:
            self._reports = True
            self._loop.call_later(_PROGRESS_S, self._report)

    def _report(self) -> None:
        self._reports = bool(self._arrivals)
        for id, arrival in self._arrivals.items():
            if arrival.num_bytes != arrival.num_told:
                arrival.num_told = arrival.num_bytes
                self._tell(BlobProgress(id, arrival.number, arrival.num_bytes))
        if self._reports:
            self._loop.call_later(_PROGRESS_S, self._report)

    # Connections to sources

    def _dial(self, order: FetchBlob) -> None:
        source = order.source
        if source in self._dialling:
            return
        self._dialling.add(source)
        credentials = Credentials(self._boot.run_id, self._boot.agent_id, order.token)
        passport = Passport(self._boot.agent_id, self._ip, self._certificate)

        def connect() -> None:
            """Run in a thread, because other hosts may be slow."""
            link: Link | None = None
            with contextlib.suppress(TransportError, OSError, ValueError):
                link = dial(parse_address(order.address), credentials, PEER, passport=passport, timeout_s=_DIAL_S)
            self._loop.call_soon(lambda: self._dialled(source, link))

        try:
            threading.Thread(target=connect, name="rw-fetch", daemon=True).start()
        except RuntimeError:  # no more threads at the moment: another source is tried, and this one again later
            self._loop.call_soon(lambda: self._dialled(source, None))

    def _dialled(self, source: str, link: Link | None) -> None:
        self._dialling.discard(source)
        if link:
            link.relabel(PEER, _FROM_SOURCE)
            self._sources[source] = link
            self._loop.add_link(
                link, lambda received: self._heard_source(link, received), lambda _why: self._source_gone(source, link)
            )
            self._used[source] = time.monotonic()
            self._loop.call_later(_IDLE_S, lambda: self._close_if_idle(source, link))
        for arrival in self._fetching_from(source):
            if link:
                self._begin(arrival, link)
            else:
                self._failed(arrival, FetchProblem.UNREACHABLE)

    def _heard_source(self, link: Link, received: Received) -> None:
        match received.message:
            case BlobPiece():
                self.piece(link, received)
            case BlobAbsent():
                self.absent(link, received)
            case _:
                pass  # it asks this agent for nothing here

    def _source_gone(self, source: str, link: Link) -> None:
        if self._sources.get(source) is link:
            del self._sources[source]
            for arrival in self._fetching_from(source):
                self._failed(arrival, FetchProblem.LOST)

    def _fetching_from(self, source: str) -> list[_Arrival]:
        return [arrival for arrival in self._arrivals.values() if arrival.source == source]

    def _close_if_idle(self, source: str, link: Link) -> None:
        if self._sources.get(source) is not link:
            return
        idle_s = time.monotonic() - self._used[source]
        if idle_s >= _IDLE_S and not self._fetching_from(source):
            del self._sources[source]
            self._loop.remove_link(link)
        else:
            self._loop.call_later(max(1.0, _IDLE_S - idle_s), lambda: self._close_if_idle(source, link))

    # Serving

    def retired(self, news: Retired) -> None:
        """Refuse agents that are gone or struck off, and end what is under way from them and to them."""
        for process in news.processes:
            self._members.retire(process.id, process.fingerprint)
            if not process.is_cut:
                continue
            if link := self._sources.get(process.id):
                self._source_gone(process.id, link)
                self._loop.remove_link(link)
            for reader in [reader for reader, id in self._readers.items() if id == process.id]:
                self._reader_gone(reader)
                self._loop.remove_link(reader)

    def _met(self, id: str, link: Link) -> None:
        """Take the link of an agent that has dialled."""
        link.relabel(PEER, STRANGER)
        self._readers[link] = id
        self._loop.add_link(
            link, lambda received: self._heard_reader(link, received), lambda _why: self._reader_gone(link)
        )

    def _heard_reader(self, link: Link, received: Received) -> None:
        question = received.message
        if not isinstance(question, ReadBlob):
            return
        held, arrival = self._shelf.file_of(question.id), self._arrivals.get(question.id)
        end = question.offset + question.length
        if held and end <= held[1]:
            send_piece(link, held[0], question)
        elif arrival is None or end > arrival.ref.size_bytes or len(arrival.waiting) >= _MOST_WAITING:
            link.send_if_open(BlobAbsent(question.id))
        elif end <= arrival.num_bytes:
            send_piece(link, arrival.fd, question)
        else:
            arrival.waiting.append((link, question))

    def _answer_waiting(self, arrival: _Arrival) -> None:
        later: list[tuple[Link, ReadBlob]] = []
        for link, question in arrival.waiting:
            if question.offset + question.length <= arrival.num_bytes:
                send_piece(link, arrival.fd, question)
            else:
                later.append((link, question))
        arrival.waiting = later

    def _reader_gone(self, link: Link) -> None:
        self._readers.pop(link, None)
        for arrival in self._arrivals.values():
            arrival.waiting = [(reader, question) for reader, question in arrival.waiting if reader is not link]


def send_piece(link: Link, fd: int, question: ReadBlob) -> None:
    """Answer a question for bytes of a blob, from the memory file that holds it."""
    data = read_bytes(fd, question.offset, question.length)
    link.send_if_open(BlobPiece(question.id, question.offset), [data])
