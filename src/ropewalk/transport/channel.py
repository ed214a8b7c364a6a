"""Channels: whole messages with file descriptors, between a process and one it forks.

A pair of sequenced-packet sockets: each `send` arrives as one message or not at all, so no framing is needed, and
several processes may write to one end (the fork server and the intermediate process that it forks). A message that is
larger than what the kernel takes at once, such as one with a large environment, travels in a memory file.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Sequence

from ropewalk.errors import LinkClosed

_INLINE_BYTES = 64 * 1024
"""Larger messages travel in memory files; the kernel takes net.core.wmem_default at once, usually 208 KiB."""
_IN_FILE = b"\xc1"
"""Sent instead of such a message, whose memory file is the first descriptor; no message in msgpack is this byte."""
_MAX_FDS = 16
_SHORTAGES = (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
"""Errors of the kernel that pass: too many descriptors are under way, or it has no memory at the moment."""


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
            BlockingIOError: the other end does not read, and the timeout has passed; or the kernel lacks memory or
                descriptors at the moment.
            LinkClosed: the other end is gone.
        """
        if len(message) <= _INLINE_BYTES:
            self._send(message, fds)
            return
        file = _file_of(message)
        try:
            self._send(_IN_FILE, (file, *fds))
        finally:
            os.close(file)

    def _send(self, message: bytes, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([message], rights, socket.MSG_NOSIGNAL)
        except (BlockingIOError, TimeoutError) as error:
            raise BlockingIOError(f"the channel is full: {error}") from error
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise BlockingIOError(f"the channel takes nothing at the moment: {error}") from error
            raise LinkClosed(f"the other end of the channel is gone: {error}") from error

    def receive(self) -> tuple[bytes, list[int]]:
        """Return one message and its descriptors, which the caller owns; an empty message when the other end is gone.

        Raises:
            BlockingIOError: nothing has arrived, and the timeout has passed.
        """
        try:
            message, ancillary, _, _ = self._sock.recvmsg(
                _INLINE_BYTES, socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
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
        if message != _IN_FILE:
            return message, list(fds)
        file, *rest = fds
        with open(file, "rb") as content:
            content.seek(0)  # the position is the sender's, who wrote it
            return content.read(), rest

    def close(self) -> None:
        """Close this end; may be called twice."""
        self._sock.close()


def _file_of(message: bytes) -> int:
    """Return a memory file with a message.

    Raises:
        BlockingIOError: there are no descriptors or no memory at the moment.
    """
    file = -1
    try:
        file = os.memfd_create("ropewalk-message", os.MFD_CLOEXEC)
        rest = memoryview(message)
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError as error:
        if file >= 0:
            os.close(file)
        raise BlockingIOError(f"no memory file for a large message: {error}") from error
    return file
