"""A relay: two processes that cannot reach each other connect through a third one, which both can reach.

    a ──"I have ticket t"─────▶ relay ◀─────"I have ticket t"── b
    a ◀──joined──────────────────┤├──────────joined──────────▶ b
    a ◀══════════ from here on every byte is between a and b ═════════▶ b

Both sides were told the ticket over links that they had already. It is valid for two sides, each once, and for a
limited time. It proves little: it crosses networks in the clear, so a and b must speak TLS with each other from the
first byte on, and a process with a stolen ticket gets no further than that. The relay itself sees ciphertext, and
interprets nothing.

Strangers get a small buffer and a deadline, as in `transport/server.py`. All of it happens on a `Loop`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ropewalk.transport.interfaces import listen_on
from ropewalk.transport.joining import GREETING, NO, TICKET_DIGITS, YES
from ropewalk.transport.loop import Loop, Timer
from ropewalk.transport.server import BACKLOG, MAX_UNDECIDED
from ropewalk.transport.splice import BUFFER_BYTES, Splice, prepare
from ropewalk.transport.unix_sockets import listen_at, peer_uid

TICKET_S = 5.0
"""Timeout within which a stranger must show a ticket, in seconds."""
LINGER_S = 5.0
"""Timeout within which a refused socket, or one whose partner broke off, should hang up, in seconds. If we close while
bytes from it are still unread, TCP resets the connection, and data on its way to it may be lost."""
MAX_LINGERING = 256
"""At most this many refused sockets are waited for."""
_LOOK_S = 1.0
"""How often splices are checked for a host that is cut off, in seconds."""
_PAUSE_S = 0.1
"""Accepting pauses this long when this process is out of descriptors, in seconds."""

_SAID_BYTES = len(GREETING) + TICKET_DIGITS
_NOT_VALID = "the ticket is not valid: it was used, or its time is over, or it was never given out here"


@dataclass(slots=True, eq=False)
class _Guest:
    """A connection that has not shown its whole ticket."""

    sock: socket.socket
    source: str
    deadline: Timer
    said: bytes = b""


@dataclass(slots=True, eq=False)
class _Side:
    """One of the two sides to be joined."""

    sock: socket.socket
    told: bool
    """Whether it showed the ticket itself and gets an answer; False if our own process brought it."""


@dataclass(slots=True, eq=False)
class _OpenTicket:
    """A ticket that may be used, and the side that came with it."""

    ticket: str
    timeout_s: float
    on_timeout: Callable[[], object] | None
    deadline: Timer = field(init=False)
    first: _Side | None = None


@dataclass(slots=True, eq=False)
class _OwnTicket:
    """A ticket whose bearer connects to this process itself."""

    ticket: str
    on_come: Callable[[socket.socket], object]
    deadline: Timer | None
    """None: it is valid for every side, without a timeout."""


class Relay:
    """Joins pairs of connections that show the same ticket. Everything but `forget` is for the loop's thread."""

    def __init__(self, loop: Loop, on_joined: Callable[[str], None] | None = None) -> None:
        """Create a relay that does not listen yet.

        Args:
            loop: the loop that serves it.
            on_joined: called with the ticket when two sides have been joined.
        """
        self.num_refused = 0
        """Number of connections that were refused."""
        self._loop = loop
        self._on_joined = on_joined
        self._listening: dict[socket.socket, str] = {}  # with the path of a unix socket
        self._guests: dict[_Guest, None] = {}
        self._meetings: dict[bytes, _OpenTicket] = {}  # by hash: the time of a look-up tells nothing
        self._claims: dict[bytes, _OwnTicket] = {}  # by hash as well
        self._splices: dict[Splice, str] = {}
        self._lingering: dict[socket.socket, Timer] = {}
        self._scratch = memoryview(bytearray(BUFFER_BYTES))
        self._look: Timer | None = None

    def listen_unix(self, path: str) -> None:
        """Accept connections of this user's processes at a unix socket.

        Raises:
            OSError: the path cannot be bound.
        """
        self._listen(listen_at(path, backlog=BACKLOG), path)

    def listen_tcp(self, ip: str) -> tuple[str, int]:
        """Accept connections at one address of this host; returns it with the port, which the kernel chooses.

        Raises:
            SettingsError: the address means "every network that this host is on".
            OSError: the address cannot be bound.
        """
        sock = listen_on(ip, 0, backlog=BACKLOG)
        self._listen(sock, "")
        return ip, sock.getsockname()[1]

    def expect(self, ticket: str, timeout_s: float = 10.0, on_timeout: Callable[[], object] | None = None) -> None:
        """Accept a ticket from two sides; to be called before either is told of it.

        Args:
            ticket: from `new_ticket`.
            timeout_s: seconds until the ticket expires.
            on_timeout: called if the sides were not joined: the ticket expired, or the first side went away.

        Raises:
            ValueError: the ticket is expected already, or malformed.
        """
        if len(ticket) != TICKET_DIGITS or not ticket.isascii():
            raise ValueError(f"a ticket has {TICKET_DIGITS} hexadecimal digits, this one {len(ticket)} characters")
        key = _hash(ticket)
        if key in self._meetings:
            raise ValueError(f"the ticket with the hash {key.hex()[:12]} is expected already; make a new one")
        meeting = self._meetings[key] = _OpenTicket(ticket, timeout_s, on_timeout)
        meeting.deadline = self._loop.call_later(timeout_s, lambda: self._give_up(meeting))

    def bring(self, ticket: str, sock: socket.socket) -> None:
        """Add a side that shows no ticket itself, such as one that we connected to.

        Args:
            ticket: ticket of the pair. If it is not expected, the socket is closed.
            sock: connected; owned by the relay from now on. Nothing is sent on it, not even that it was joined.
        """
        try:
            prepare(sock)
        except OSError:  # it has gone already; the waiting side is told when the ticket expires
            sock.close()
            return
        self._arrive(ticket, _Side(sock, told=False))

    def claim(self, ticket: str, on_come: Callable[[socket.socket], object], timeout_s: float | None = None) -> None:
        """Accept a ticket whose bearer connects to this process itself.

        Args:
            ticket: as in `expect`.
            on_come: called with the socket, which does not block; its next byte is the first that the other side sends
                to us.
            timeout_s: seconds until the ticket expires; it is valid for one side then. None: it is valid for every side
                that comes, until the relay is closed.
        """
        deadline = None
        if timeout_s is not None:
            deadline = self._loop.call_later(timeout_s, lambda: self._claims.pop(_hash(ticket), None))
        self._claims[_hash(ticket)] = _OwnTicket(ticket, on_come, deadline)

    def withdraw(self, ticket: str) -> None:
        """Invalidate a ticket: a waiting side is refused, and the pair that it has joined is cut.

        Args:
            ticket: as in `expect`; nothing happens if it was never expected, or has expired.
        """
        meeting = self._meetings.get(_hash(ticket))
        if meeting:
            first = self._end_of(meeting)
            if first:
                self._refuse(first, "the other side is gone")
        for splice in [splice for splice, joined in self._splices.items() if joined == ticket]:
            splice.stop()
            del self._splices[splice]
            for flow in (splice.a_to_b, splice.b_to_a):
                flow.source.close()

    def joined(self) -> set[str]:
        """The tickets of all pairs that are joined now."""
        return set(self._splices.values())

    def close(self) -> None:
        """Close everything at once, splices too; may be called twice. No callback is called."""
        for timer in (self._look, *(meeting.deadline for meeting in self._meetings.values()), *self._timers()):
            if timer:
                timer.cancel()
        for claim in self._claims.values():
            if claim.deadline:
                claim.deadline.cancel()
        for splice in self._splices:
            splice.stop()
        for sock in self._sockets():
            self._loop.unwatch(sock.fileno())
            sock.close()
        for path in filter(None, self._listening.values()):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        for kept in (self._listening, self._guests, self._meetings, self._claims, self._splices, self._lingering):
            kept.clear()
        self._look = None

    def forget(self) -> None:
        """In a forked child: close our copies of the sockets and nothing else."""
        for sock in self._sockets():
            with contextlib.suppress(OSError):
                sock.close()

    # Connections

    def _listen(self, sock: socket.socket, path: str) -> None:
        sock.setblocking(False)
        self._listening[sock] = path
        self._loop.watch(sock.fileno(), lambda: self._accept(sock))

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, address = listening.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError:  # out of descriptors: the loop would spin on the connection that waits
            self._loop.unwatch(listening.fileno())
            self._loop.call_later(_PAUSE_S, lambda: self._accept_again(listening))
            return
        if sock.family == socket.AF_UNIX and peer_uid(sock) != os.geteuid():
            self.num_refused += 1
            sock.close()
            return
        try:
            prepare(sock)
        except OSError:  # it left at once
            sock.close()
            return
        self._receive(sock, address)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.watch(listening.fileno(), lambda: self._accept(listening))

    def _receive(self, sock: socket.socket, address: Any) -> None:
        source = address[0] if sock.family != socket.AF_UNIX else ""
        guest = _Guest(sock, source, self._loop.call_later(TICKET_S, lambda: self._drop(guest)))
        self._guests[guest] = None
        self._loop.watch(sock.fileno(), lambda: self._hear(guest))
        if len(self._guests) > MAX_UNDECIDED:
            # A source that floods us crowds out its own connections first.
            (busiest, _), *_ = Counter(guest.source for guest in self._guests).most_common(1)
            self._drop(next(guest for guest in self._guests if guest.source == busiest))

    def _hear(self, guest: _Guest) -> None:
        """Read no more than the ticket: the bytes after it are not for us."""
        try:
            heard = guest.sock.recv(_SAID_BYTES - len(guest.said))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        guest.said += heard
        if not heard:
            self._drop(guest)
        elif not guest.said.startswith(GREETING[: len(guest.said)]):
            self._release(guest)
            self._refuse(_Side(guest.sock, told=True), "this is a relay of Ropewalk, which wants to see a ticket")
        elif len(guest.said) == _SAID_BYTES:
            self._release(guest)
            self._arrive(guest.said[len(GREETING) :].decode("latin-1"), _Side(guest.sock, told=True))

    def _release(self, guest: _Guest) -> None:
        del self._guests[guest]
        guest.deadline.cancel()
        self._loop.unwatch(guest.sock.fileno())

    def _drop(self, guest: _Guest) -> None:
        if guest in self._guests:
            self._release(guest)
            self.num_refused += 1
            guest.sock.close()

    # Joining

    def _arrive(self, ticket: str, side: _Side) -> None:
        claim = self._claims.get(_hash(ticket))
        if claim and hmac.compare_digest(claim.ticket.encode(), ticket.encode()):
            self._hand_over(claim, side)
            return
        meeting = self._meetings.get(_hash(ticket))
        if meeting is None or not hmac.compare_digest(meeting.ticket.encode(), ticket.encode()):
            self._refuse(side, _NOT_VALID)
        elif meeting.first is None:
            meeting.first = side
            self._loop.watch(side.sock.fileno(), lambda: self._look_at_first(meeting))
        else:
            first = self._end_of(meeting)
            assert first
            self._join(ticket, first, side)

    def _hand_over(self, claim: _OwnTicket, side: _Side) -> None:
        if claim.deadline:
            claim.deadline.cancel()
            del self._claims[_hash(claim.ticket)]
        if side.told:
            with contextlib.suppress(OSError):  # it has gone, and the splice will find that out when it reads
                side.sock.send(YES, socket.MSG_NOSIGNAL)
        try:
            claim.on_come(side.sock)
        except BaseException:
            side.sock.close()
            raise

    def _look_at_first(self, meeting: _OpenTicket) -> None:
        """Handle an event of the waiting side: it has hung up, or sends early, which is read when it is joined."""
        assert meeting.first
        sock = meeting.first.sock
        try:
            gone = not sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        self._loop.unwatch(sock.fileno())
        if gone:
            self._end_of(meeting)
            sock.close()
            if meeting.on_timeout:
                meeting.on_timeout()

    def _end_of(self, meeting: _OpenTicket) -> _Side | None:
        """Invalidate a ticket; returns the waiting side."""
        del self._meetings[_hash(meeting.ticket)]
        meeting.deadline.cancel()
        if meeting.first:
            self._loop.unwatch(meeting.first.sock.fileno())
        return meeting.first

    def _give_up(self, meeting: _OpenTicket) -> None:
        first = self._end_of(meeting)
        if first:
            self._refuse(first, f"the other side did not come within {meeting.timeout_s:g} s")
        if meeting.on_timeout:
            meeting.on_timeout()

    def _join(self, ticket: str, a: _Side, b: _Side) -> None:
        for side in (a, b):
            if side.told:
                with contextlib.suppress(OSError):  # it has gone, and the splice will find that out
                    side.sock.send(YES, socket.MSG_NOSIGNAL)
        splice = Splice(self._loop, a.sock, b.sock, self._scratch, lambda: self._ended(splice))
        self._splices[splice] = ticket
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_S, self._look_for_cuts)
        splice.move()  # bytes may have come early
        if self._on_joined:
            self._on_joined(ticket)

    def _look_for_cuts(self) -> None:
        for splice in list(self._splices):
            splice.look()
        self._look = self._loop.call_later(_LOOK_S, self._look_for_cuts) if self._splices else None

    def _ended(self, splice: Splice) -> None:
        del self._splices[splice]
        for flow in (splice.a_to_b, splice.b_to_a):
            if flow.said_all:
                flow.source.close()
            else:
                self._linger(flow.source)

    # Closing

    def _refuse(self, side: _Side, reason: str) -> None:
        self.num_refused += 1
        if side.told:
            said = reason.encode()[:255]
            with contextlib.suppress(OSError):
                side.sock.send(NO + bytes([len(said)]) + said, socket.MSG_NOSIGNAL)
        self._linger(side.sock)

    def _linger(self, sock: socket.socket) -> None:
        """Shut down our direction, and wait a moment for the peer to hang up too."""
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        if len(self._lingering) >= MAX_LINGERING:
            self._hang_up(next(iter(self._lingering)))
        self._lingering[sock] = self._loop.call_later(LINGER_S, lambda: self._hang_up(sock))
        self._loop.watch(sock.fileno(), lambda: self._discard(sock))

    def _discard(self, sock: socket.socket) -> None:
        try:
            if sock.recv_into(self._scratch):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._hang_up(sock)

    def _hang_up(self, sock: socket.socket) -> None:
        timer = self._lingering.pop(sock, None)
        if timer:
            timer.cancel()
            self._loop.unwatch(sock.fileno())
            sock.close()

    def _timers(self) -> list[Timer]:
        return [*(guest.deadline for guest in self._guests), *self._lingering.values()]

    def _sockets(self) -> list[socket.socket]:
        return [
            *self._listening,
            *(guest.sock for guest in self._guests),
            *(meeting.first.sock for meeting in self._meetings.values() if meeting.first),
            *(flow.source for splice in self._splices for flow in (splice.a_to_b, splice.b_to_a)),
            *self._lingering,
        ]


def _hash(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode()).digest()
