"""Listening: accepts connections, performs the handshake, and hands over links that are up.

A stranger costs one small buffer and a deadline, and the number of connections in the handshake is limited; members are
served meanwhile. Everything here happens on the loop. Between hosts a TLS handshake comes first
(`transport/tls_server.py`), a module that only runs with a second host import.
"""

from __future__ import annotations

import abc
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from ropewalk.errors import FrameError, LinkClosed
from ropewalk.transport.address import UnixAddress
from ropewalk.transport.credentials import AllowList
from ropewalk.transport.frames import MEMBER, STRANGER
from ropewalk.transport.handshake import CODEC, Ends, Hello, Refused, ServerHandshake, Welcome
from ropewalk.transport.link import Codec, Link
from ropewalk.transport.loop import Loop, Timer
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.stream import Stream
from ropewalk.transport.unix_sockets import listen_at, peer_uid

HANDSHAKE_S = 10.0
"""Timeout within which a stranger must complete the handshake, in seconds."""
MAX_UNDECIDED = 256
"""When more connections than this are in the handshake, the oldest of the source that has most of them is closed."""
LINGER_S = 0.5
"""How long a refused peer may take to read the reason and to hang up, in seconds. If we close while bytes from it are
still unread, TCP resets the connection and the reason may be lost."""
BACKLOG = 1024
"""Waiting connections that the kernel keeps for us."""
_PAUSE_S = 0.1
"""Accepting pauses this long (seconds) when this process is out of descriptors, or the loop would spin on the waiting
connection."""

OnLink = Callable[[str, Link], None]
"""Called with the dialler's id and its link. The callback chooses the protocol (`relabel`) and adds the link to the
loop."""


class Stranger(msgspec.Struct, eq=False):
    """A connection, from its first byte until it is let in or refused."""

    stream: Stream
    source: str
    """Source of the connection: an IP address; empty on a unix socket."""
    deadline: Timer
    link: Link | None = None
    admission: ServerHandshake | None = None
    refused: bool = False


class Listener(abc.ABC):
    """Accepts members of a run and hands over their links, on the loop."""

    def __init__(
        self, loop: Loop, sock: socket.socket, run_id: str, members: AllowList, codec: Codec, on_link: OnLink
    ) -> None:
        """Take over a listening socket, or a closed one; call `open` from the loop's thread to start accepting."""
        if sock.fileno() != -1:
            sock.setblocking(False)
        self.num_refused = 0
        self._socket = sock
        self._loop = loop
        self._run_id = run_id
        self._members = members
        self._codec = codec
        self._on_link = on_link
        self._strangers: dict[Stranger, None] = {}

    def open(self) -> None:
        """Start accepting; from the loop's thread."""
        if self._socket.fileno() != -1:
            self._loop.watch(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting; existing links stay up. From the loop's thread, may be called twice."""
        if self._socket.fileno() != -1:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
        for stranger in list(self._strangers):
            self._drop(stranger)

    def forget(self) -> None:
        """In a forked child: close our copies of the sockets and nothing else."""
        with contextlib.suppress(OSError):
            self._socket.close()
        for stranger in self._strangers:
            with contextlib.suppress(OSError):
                stranger.stream.close_copy()

    @abc.abstractmethod
    def adopt(self, sock: socket.socket) -> None:
        """Take a connection that came another way, such as through a relay; from the loop's thread."""

    @abc.abstractmethod
    def _meet(self, sock: socket.socket, address: Any) -> None:
        """Handle a new connection: refuse it, or `_admit` it and in the end `_listen_to` it.

        Args:
            sock: accepted; owned by the listener from now on.
            address: address of the peer, as `accept` returns it.
        """

    def _accept(self) -> None:
        try:
            sock, address = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError:
            self._loop.unwatch(self._socket.fileno())
            self._loop.call_later(_PAUSE_S, self.open)
            return
        self._meet(sock, address)

    def _admit(self, stream: Stream, source: str) -> Stranger:
        """Count a connection as being in the handshake, and close one if there are too many."""
        stranger = Stranger(stream, source, self._loop.call_later(HANDSHAKE_S, lambda: self._drop(stranger)))
        self._strangers[stranger] = None
        if len(self._strangers) > MAX_UNDECIDED:
            # A source that floods us crowds out its own connections first.
            (busiest, _), *_ = Counter(stranger.source for stranger in self._strangers).most_common(1)
            self._drop(next(stranger for stranger in self._strangers if stranger.source == busiest))
        return stranger

    def _listen_to(self, stranger: Stranger) -> None:
        """Send the challenge to a connection, and wait for its greeting."""
        if stranger not in self._strangers:
            return
        stranger.admission = ServerHandshake(self._run_id, self._members, self._ends_of(stranger))
        stranger.link = Link(stranger.stream, CODEC, "a process that has not said who it is", STRANGER)
        stranger.link.want_write = lambda: None  # our message fits; the loop must not wait even if it does not
        stranger.link.send_if_open(stranger.admission.challenge)
        self._loop.watch(stranger.stream.fileno(), lambda: self._hear(stranger))
        self._hear(stranger)  # a stream may hold bytes that came with its own handshake

    def _drop(self, stranger: Stranger) -> None:
        if stranger in self._strangers:
            self._release(stranger)
            self.num_refused += not stranger.refused
            (stranger.link or stranger.stream).close()

    def _release(self, stranger: Stranger) -> None:
        del self._strangers[stranger]
        stranger.deadline.cancel()
        if stranger.link:
            self._loop.unwatch(stranger.stream.fileno())

    def _hear(self, stranger: Stranger) -> None:
        link = stranger.link
        assert link
        try:
            received = link.read_ready() if not stranger.refused else _discard(stranger.stream)
        except BlockingIOError:
            return
        except FrameError as error:
            self._refuse(stranger, str(error))
            return
        except LinkClosed:
            received = None
        if received is None:
            self._drop(stranger)
            return
        theirs = received.message
        assert stranger.admission
        if not isinstance(theirs, Hello):
            self._refuse(stranger, "a link begins with a greeting")
            return
        answer = stranger.admission.judge(theirs)
        if isinstance(answer, Refused):
            self._refuse(stranger, answer.reason)
        else:
            self._welcome(stranger, link, theirs.process_id, answer)

    def _ends_of(self, stranger: Stranger) -> Ends:
        """Return the certificates of a connection."""
        return Ends()

    def _refuse(self, stranger: Stranger, reason: str) -> None:
        """Send the reason, and give the peer a moment to hang up first."""
        assert stranger.link
        self.num_refused += 1
        stranger.refused = True
        stranger.deadline.cancel()
        stranger.deadline = self._loop.call_later(LINGER_S, lambda: self._drop(stranger))
        try:
            stranger.link.send(Refused(reason[:900]))  # in bytes it must fit into what a stranger accepts
        except LinkClosed:
            self._drop(stranger)

    def _welcome(self, stranger: Stranger, link: Link, process_id: str, welcome: Welcome) -> None:
        self._release(stranger)
        link.send_if_open(welcome)
        link.want_write = None
        link.relabel(self._codec, MEMBER)
        link.peer = process_id
        try:
            self._on_link(process_id, link)
        except BaseException:
            link.close()
            raise


class UnixListener(Listener):
    """Accepts members of a run on a unix socket; processes of other users are refused before the greeting."""

    def __init__(self, loop: Loop, path: str, run_id: str, members: AllowList, codec: Codec, on_link: OnLink) -> None:
        """Bind and listen; call `open` from the loop's thread to start accepting.

        Raises:
            OSError: the path cannot be bound.
        """
        self.address = UnixAddress(path)
        sock = listen_at(path, backlog=BACKLOG)
        super().__init__(loop, sock, run_id, members, codec, on_link)

    def close(self) -> None:
        """Stop accepting and remove the socket's path; from the loop's thread, may be called twice."""
        if self._socket.fileno() != -1:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)
        super().close()

    def adopt(self, sock: socket.socket) -> None:
        self._listen_to(self._admit(PlainStream(sock, carries_fds=False), "another host"))

    def _meet(self, sock: socket.socket, address: Any) -> None:
        if peer_uid(sock) != os.geteuid():
            self.num_refused += 1
            sock.close()
            return
        self._listen_to(self._admit(PlainStream(sock), ""))


_waste = memoryview(bytearray(4096))


def _discard(stream: Stream) -> None:
    """Read and drop what a refused peer still sends; returns when it has hung up."""
    while stream.receive_into(_waste, wait=False):
        for fd in stream.take_fds():
            os.close(fd)
