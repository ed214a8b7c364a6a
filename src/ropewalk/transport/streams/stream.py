"""The interface of a stream: ordered bytes, both ways, between two processes.

`plain` (unix sockets, which also carry file descriptors) and `tls` (TCP between hosts) implement it; one test suite
runs on both. A stream knows nothing of frames. One thread may receive while others send; senders are serialised by the
caller (`Link` holds a lock round `send`).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

TURN_BYTES = 1 << 20
"""Bytes that are read from or written to one peer before the others get their turn. A frame may have any size, and
where the peer is as fast as we are (TLS: 0.65 GB/s on both sides), it would occupy the loop until it is complete."""

Reception = tuple[int, list[tuple[int, int, bytes]], int, Any]
"""What `socket.recvmsg_into` returns: the number of bytes, the ancillary data, flags, and an address."""


class Stream(abc.ABC):
    """Ordered, reliable bytes between two processes."""

    carries_fds: bool = False
    """Whether `send` can pass file descriptors (only between processes of one host)."""
    keeps_bytes: bool = True
    """Whether accepted bytes may wait in the stream, so that `flush` is needed."""
    arrived_fds: Sequence[int] = ()
    """Descriptors that arrived with the bytes received so far, oldest first, until `take_fds`."""

    @abc.abstractmethod
    def fileno(self) -> int:
        """The socket's descriptor, for `poll` and `epoll`; -1 once closed."""

    @abc.abstractmethod
    def send(self, buffers: Sequence[memoryview], fds: Sequence[int] = ()) -> int:
        """Send as many of the bytes of `buffers` as go without blocking.

        Returns:
            How many bytes were accepted, counted over all buffers; 0 if the peer reads too slowly. A stream may stop
            after `TURN_BYTES`. `fds` travel with the first byte accepted (and are not sent when 0 is returned).
            Accepted bytes may wait in the stream until `flush` is called again (see there).

        Raises:
            LinkClosed: the peer is gone, or the stream was closed here.
        """

    def send_bytes(self, data: bytes) -> int:
        """Send as `send` does, one buffer without descriptors."""
        return self.send((memoryview(data),))

    def send_noted(self, data: bytes, noted: list[int]) -> int:
        """Send as `send_bytes` does, and append the number of bytes to `noted` in the same step of the interpreter.

        An interrupt in the middle of this leaves `noted` true; where it is empty, nothing was sent.
        """
        raise NotImplementedError("only streams that carry descriptors note what they send")

    @abc.abstractmethod
    def flush(self) -> bool:
        """Send accepted bytes that still wait in the stream; True when none are left. Never blocks."""

    @abc.abstractmethod
    def receive_into(self, buffer: memoryview, *, wait: bool) -> int:
        """Read some bytes into `buffer`.

        Returns:
            The number of bytes read, at least 1; 0 when the peer has closed.

        Raises:
            BlockingIOError: nothing has arrived and `wait` is false.
            LinkClosed: the connection broke, or the stream was closed here.
        """

    def receive_noted(self, buffer: memoryview, noted: list[Reception]) -> int:
        """Wait for bytes as `receive_into` does, and append what came to `noted` in the same step of the interpreter.

        An interrupt in the middle of this leaves `noted` true; where it is empty, nothing was taken. Descriptors stay
        there until `keep_fds`.
        """
        raise NotImplementedError("only streams that carry descriptors note what they receive")

    def keep_fds(self, reception: Reception) -> None:
        """Add the descriptors that `receive_noted` noted to `arrived_fds`."""
        raise NotImplementedError("only streams that carry descriptors note what they receive")

    def take_fds(self) -> list[int]:
        """Return `arrived_fds`, which the caller owns from now on."""
        return []

    @abc.abstractmethod
    def close_copy(self) -> None:
        """In a forked child: close this process's descriptor only; the parent's connection goes on."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close at once; may be called twice and from any thread. A waiting `receive_into` ends."""
