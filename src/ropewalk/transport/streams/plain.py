"""Plain streams: a unix domain socket between two processes of one host.

The kernel names the peer (`SO_PEERCRED`), so nothing here is encrypted. File
descriptors travel as ancillary data; they must be read with `recvmsg`, or the
kernel drops them, so every read is a `recvmsg`.

A call and the note of its result are one step where an interrupt must not lose the result: Python looks for signals
between a call of C and the assignment of what it returned, but not inside of `list.extend(map(call, ...))`.
"""

from __future__ import annotations

import array
import contextlib
import socket
from collections.abc import Sequence

from ropewalk.errors import LinkClosed
from ropewalk.transport.streams.stream import TURN_BYTES, Reception, Stream

MAX_BUFFERS = 1024
"""`sendmsg` refuses more buffers than this (IOV_MAX on Linux)."""
_FD_SPACE = socket.CMSG_SPACE(253 * array.array("i").itemsize)
"""Room for the descriptors of one read, which are those of one frame at most; further ones are lost (SCM_MAX_FD)."""
# As plain numbers: an enum is converted to one at each call.
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_WAIT = int(socket.MSG_CMSG_CLOEXEC)
_DO_NOT_WAIT = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_ONE_SEND_FLAGS, _ONE_WAIT, _ONE_FD_SPACE = (_SEND_FLAGS,), (_WAIT,), (_FD_SPACE,)
_GONE = (BrokenPipeError, ConnectionResetError, ConnectionAbortedError)


class PlainStream(Stream):
    """A connected unix stream socket."""

    carries_fds = True
    keeps_bytes = False

    def __init__(self, sock: socket.socket, *, carries_fds: bool = True) -> None:
        """Take over a connected socket.

        Args:
            sock: the socket, owned by the stream from now on.
            carries_fds: False if the other end is on another host, and another program carries the bytes there.
        """
        self.carries_fds = carries_fds
        sock.setblocking(True)  # a wait costs one system call then; MSG_DONTWAIT avoids waiting
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, buffers: Sequence[memoryview], fds: Sequence[int] = ()) -> int:
        if fds and not self.carries_fds:
            raise ValueError(f"{len(fds)} file descriptors cannot travel to another host; send their content")
        try:
            if len(buffers) == 1 and not fds:
                data = buffers[0]
                return self._sock.send(data if data.nbytes <= TURN_BYTES else data[:TURN_BYTES], _SEND_FLAGS)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            return self._sock.sendmsg(_one_turn(buffers[:MAX_BUFFERS]), ancillary, _SEND_FLAGS)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkClosed(f"the peer is gone: {error}") from error

    def send_bytes(self, data: bytes) -> int:
        try:
            return self._sock.send(data, _SEND_FLAGS)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkClosed(f"the peer is gone: {error}") from error

    def send_noted(self, data: bytes, noted: list[int]) -> int:
        try:
            noted.extend(map(self._sock.send, (data,), _ONE_SEND_FLAGS))
            return noted[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkClosed(f"the peer is gone: {error}") from error

    def flush(self) -> bool:
        return True

    def receive_into(self, buffer: memoryview, *, wait: bool) -> int:
        try:
            flags = _WAIT if wait else _DO_NOT_WAIT
            count, ancillary, _, _ = self._sock.recvmsg_into((buffer,), _FD_SPACE, flags)
        except BlockingIOError:
            raise
        except _GONE:
            return 0
        except OSError as error:
            raise LinkClosed(f"the link was closed here: {error}") from error
        if ancillary:
            self._keep(ancillary)
        return count

    def receive_noted(self, buffer: memoryview, noted: list[Reception]) -> int:
        try:
            noted.extend(map(self._sock.recvmsg_into, ((buffer,),), _ONE_FD_SPACE, _ONE_WAIT))
            return noted[0][0]
        except _GONE:
            return 0
        except OSError as error:
            raise LinkClosed(f"the link was closed here: {error}") from error

    def keep_fds(self, reception: Reception) -> None:
        self._keep(reception[1])

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self.arrived_fds = [*self.arrived_fds, *fds]

    def take_fds(self) -> list[int]:
        fds, self.arrived_fds = list(self.arrived_fds), ()
        return fds

    def close_copy(self) -> None:
        self._sock.close()  # not its number: the object would close that again, perhaps as another file

    def close(self) -> None:
        # A thread that waits in `recvmsg` is woken by shutdown only, not by close.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _one_turn(buffers: Sequence[memoryview]) -> Sequence[memoryview]:
    """Return as much of the buffers as one turn may send.

    While the peer reads as fast, the kernel takes more without end.
    """
    for index, buffer in enumerate(buffers):
        if buffer.nbytes > TURN_BYTES:
            return [*buffers[:index], buffer[:TURN_BYTES]]
    return buffers
