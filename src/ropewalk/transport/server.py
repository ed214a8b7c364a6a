"""Listening: takes connections, sees the handshake through, hands over links that are up.

A stranger costs one small buffer and a deadline, and there is a limit to how
many may be undecided at once; members are served meanwhile. The handshake runs
on the loop for unix sockets. A TLS handshake may block on a slow peer, so each
has a short-lived thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from ropewalk.errors import LinkClosed
from ropewalk.transport.address import UnixAddress
from ropewalk.transport.credentials import AllowList
from ropewalk.transport.frames import MEMBER, STRANGER
from ropewalk.transport.handshake import CODEC, Hello, Refused, Welcome, judge
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.streams.plain import PlainStream, peer_uid

#: A stranger has this long to say who it is.
HANDSHAKE_S = 10.0
#: More undecided connections than this are closed unheard, oldest first.
MAX_UNDECIDED = 256

#: Called with the dialler's id and its link. It chooses the protocol (`relabel`) and adds the link to the loop.
OnLink = Callable[[str, Link], None]


class UnixListener:
    """Accepts members of a run on a unix socket; everything happens on the loop."""

    def __init__(self, loop: Loop, path: str, run_id: str, members: AllowList, codec: Codec, on_link: OnLink) -> None:
        """Bind and listen; call `open` from the loop's thread to begin.

        Raises:
            OSError: the path cannot be bound.
        """
        self.address = UnixAddress(path)
        self.num_refused = 0
        self._loop = loop
        self._run_id = run_id
        self._members = members
        self._codec = codec
        self._on_link = on_link
        self._undecided: dict[Link, None] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(path)
            os.chmod(path, 0o600)
            self._socket.listen(1024)
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def open(self) -> None:
        """Begin to accept; from the loop's thread."""
        self._loop.watch(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting and remove the socket's path; from the loop's thread, may be called twice."""
        if self._socket.fileno() != -1:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)
        for link in list(self._undecided):
            self._loop.remove_link(link)
        self._undecided.clear()

    def forget(self) -> None:
        """In a forked child: close our copy of the socket and nothing else."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())

    def _accept(self) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError:
            # Out of descriptors, or the peer left: pause, or the loop would spin on the readable socket.
            self._loop.unwatch(self._socket.fileno())
            self._loop.call_later(0.1, self.open)
            return
        if peer_uid(sock) != os.getuid():
            self.num_refused += 1
            sock.close()
            return
        link = Link(PlainStream(sock), CODEC, "a process that has not said who it is", STRANGER)
        self._undecided[link] = None
        if len(self._undecided) > MAX_UNDECIDED:
            self._drop(next(iter(self._undecided)))
        self._loop.call_later(HANDSHAKE_S, lambda: self._drop(link))
        self._loop.add_link(link, lambda received: self._greeted(link, received), lambda _: self._drop(link))

    def _drop(self, link: Link) -> None:
        if link in self._undecided:
            del self._undecided[link]
            self.num_refused += 1
            self._loop.remove_link(link)

    def _greeted(self, link: Link, received: Received) -> None:
        self._undecided.pop(link, None)
        theirs = received.message
        reason = judge(theirs, self._run_id, self._members) if isinstance(theirs, Hello) else "expected a greeting"
        if reason:
            self.num_refused += 1
            with contextlib.suppress(LinkClosed):
                link.send(Refused(reason))
            self._loop.remove_link(link)
            return
        with contextlib.suppress(LinkClosed):  # a peer that left at once is noticed by the loop
            link.send(Welcome())
        self._loop.release_link(link)
        link.relabel(self._codec, MEMBER)
        link.peer = theirs.process_id
        self._on_link(theirs.process_id, link)
