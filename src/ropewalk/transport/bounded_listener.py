"""`BoundedListener`: a listening socket for servers that are not ours, which strangers cannot exhaust of descriptors.

    accept ─▶ undecided ──admit──▶ stays as long as its server wants
                  └─ more than `most` of them: the oldest of the busiest source is hung up on

It counts from the moment of `accept`: before a TLS handshake, during it, and while a server that has refused a request
waits for the other side to close.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from typing import Any


class BoundedListener(socket.socket):
    """A listening socket that hangs up on connections nobody vouches for, if there are too many of them.

    Args:
        listening: is taken over; it is closed afterwards.
        most: connections that may be undecided at a time.
    """

    def __init__(self, listening: socket.socket, most: int) -> None:
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._most = most
        self._undecided: dict[tuple[str, int], socket.socket] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; one of the others may be hung up on."""
        sock, address = super().accept()
        self._undecided = {peer: each for peer, each in self._undecided.items() if each.fileno() != -1}
        self._undecided[address[:2]] = sock
        if len(self._undecided) > self._most:
            # A source that floods us crowds out its own connections first.
            (busiest, _), *_ = Counter(host for host, _ in self._undecided).most_common(1)
            oldest = next(peer for peer in self._undecided if peer[0] == busiest)
            with contextlib.suppress(OSError):  # the peer has left
                self._undecided.pop(oldest).shutdown(socket.SHUT_RDWR)  # its server closes it
        return sock, address

    def admit(self, peer: tuple[str, int]) -> None:
        """Let a connection stay: its peer has shown who it is.

        Args:
            peer: its address and port; nothing happens if it was admitted before.
        """
        self._undecided.pop(peer, None)


__all__ = ["BoundedListener"]
