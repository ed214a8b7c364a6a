"""Channels: whole messages with file descriptors, between a process and one it forks.

A pair of sequenced-packet sockets: each `send` arrives as one message or not at all, so no framing is needed, and
several processes may write to one end (the fork server and the intermediate process that it forks).
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence

from ropewalk.errors import LinkClosed

_MAX_MESSAGE_BYTES = 1 << 20
"""A message must be smaller than what the kernel takes at once (net.core.wmem_default, usually 208 KiB)."""
_MAX_FDS = 16


class Channel:
    """One end of a pair; see `pair`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two connected ends, both blocking.

        Raises:
            OSError: no descriptors are left.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        """The descriptor, for a loop; -1 once closed."""
        return self._sock.fileno()

    def wait_at_most(self, timeout_s: float | None) -> None:
        """Set the timeout of `send` and `receive`, in seconds: 0 does not wait, None waits without a limit."""
        self._sock.settimeout(timeout_s)

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send one message with descriptors; the caller keeps its own.

        Raises:
            BlockingIOError: the other end does not read, and the timeout has passed.
            LinkClosed: the other end is gone.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([message], rights, socket.MSG_NOSIGNAL)
        except (BlockingIOError, TimeoutError) as error:
            raise BlockingIOError(f"the channel is full: {error}") from error
        except OSError as error:
            raise LinkClosed(f"the other end of the channel is gone: {error}") from error

    def receive(self) -> tuple[bytes, list[int]]:
        """Return one message and its descriptors, which the caller owns; an empty message when the other end is gone.

        Raises:
            BlockingIOError: nothing has arrived, and the timeout has passed.
        """
        try:
            message, ancillary, _, _ = self._sock.recvmsg(
                _MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, TimeoutError) as error:
            raise BlockingIOError(f"nothing has come: {error}") from error
        except ConnectionResetError:
            return self.receive()  # it closed with messages unread: said once, before what it sent
        except OSError:
            return b"", []
        fds = array.array("i")
        for _, _, raw in ancillary:
            fds.frombytes(raw)
        return message, list(fds)

    def close(self) -> None:
        """Close this end; may be called twice."""
        self._sock.close()
