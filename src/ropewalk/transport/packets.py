"""Packets: whole messages between processes of one host, over a pair of sockets.

Any process may hold an end.

    send ─▶ one packet ─▶ kernel ─▶ one packet ─▶ receive        several may send or receive, unmixed
      └─ large parts: in a memory file, whose descriptor goes with the packet

The kernel preserves the bounds of packets, so two readers never get parts of the same message, and a process that is
killed leaves nothing half read or half sent. A packet with a memory file is padded in proportion to the size of the
file: the padding is never read, but the kernel counts it and makes senders wait.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence

from ropewalk.transport.blobs import open_parts, pack
from ropewalk.transport.frames import Part

ROOM_BYTES = 16 << 20
"""Bytes in memory files that one direction holds before senders wait."""
PACKET_BYTES = 64 * 1024
"""A packet has at most this many bytes; more goes into a memory file."""
_BUFFER_BYTES = 208 * 1024
"""Socket buffer for packets in one direction: the default limit of Linux."""
LOOK_UP_S = 1.0
"""A waiting thread checks this often (seconds) whether the socket was closed by another thread."""
_LOOK_UP_MS = int(1000 * LOOK_UP_S)
_LOOK_UP = struct.pack("ll", int(LOOK_UP_S), 0)

# The kind of a packet, in its first byte.
_ONE, _SEVERAL, _FILE, _MANY_IN_FILE = b"\0", b"\1", b"\2", b"\3"
_ONE_KIND, _SEVERAL_KIND, _FILE_KIND = 0, 1, 2
_COUNT = struct.Struct("<BI")
_LENGTH_BYTES = 8
_MOST_LENGTHS = 4096
"""The lengths of more parts than this go into a second memory file."""

_FD_SPACE = socket.CMSG_SPACE(2 * array.array("i").itemsize)
# As plain numbers: an enum is turned into one at each call.
_SEND, _SEND_NOW = int(socket.MSG_NOSIGNAL), int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_RECEIVE = int(socket.MSG_CMSG_CLOEXEC)
_RECEIVE_NOW = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)


class PackedMessage:
    """A message that is ready to be sent, any number of times.

    Args:
        parts: parts of the message; none if there are `files`.
        shared: lengths of the parts in a memory file.
        file: that memory file; it stays the caller's.

    Raises:
        OSError: no memory, or no descriptor, is left for a memory file.
    """

    __slots__ = ("fds", "head", "owned", "size_bytes", "tail")

    def __init__(self, parts: Sequence[Part], shared: tuple[int, ...] = (), file: int | None = None) -> None:
        self.owned: list[int] = []
        self.fds: list[int] = []
        self.tail: Sequence[Part] = ()
        self.size_bytes = 0
        """Size of the memory file in bytes."""
        if file is None:
            if len(parts) == 1 and memoryview(parts[0]).nbytes < PACKET_BYTES:
                self.head, self.tail = _ONE, parts
                return
            lengths = tuple(memoryview(part).nbytes for part in parts)
            if _COUNT.size + _LENGTH_BYTES * len(lengths) + sum(lengths) <= PACKET_BYTES:
                self.head = _COUNT.pack(_SEVERAL_KIND, len(lengths)) + array.array("Q", lengths).tobytes()
                self.tail = [b"".join(parts)]
                return
            shared, file = lengths, pack(parts, "ropewalk-pipe")
            self.owned.append(file)
        self.fds.append(file)
        self.size_bytes = sum(shared)
        index = array.array("Q", shared).tobytes()
        if len(shared) <= _MOST_LENGTHS:
            self.head = _COUNT.pack(_FILE_KIND, len(shared)) + index
            return
        self.owned.append(pack([index], "ropewalk-pipe"))
        self.fds.append(self.owned[-1])
        self.head = _COUNT.pack(_MANY_IN_FILE[0], len(shared))

    def close(self) -> None:
        """Close the memory files that were made here; may be called twice."""
        while self.owned:
            os.close(self.owned.pop())

    def __del__(self) -> None:
        self.close()


class Packets:
    """One end of a pair.

    Args:
        fd: its socket, which this object owns from now on.
    """

    __slots__ = ("_poller", "_room", "_sock")

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
        self._sock.settimeout(None)  # programs set timeouts for their own sockets (`socket.setdefaulttimeout`)
        self._poller = select.poll()
        self._poller.register(fd, select.POLLIN)
        self._room = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    @staticmethod
    def pair() -> tuple[Packets, Packets]:
        """Both ends of a new pair.

        Raises:
            OSError: there are no descriptors left.
        """
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK_UP)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _LOOK_UP)
        return Packets(ends[0].detach()), Packets(ends[1].detach())

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self._sock.fileno()

    def send_one(self, data: bytes) -> bool:
        """Send a message of one small part, as `send` does: the fast path."""
        try:
            self._sock.send(_ONE + data, _SEND)
        except BlockingIOError:
            return False
        except ConnectionResetError as error:  # it was closed with messages unread
            raise BrokenPipeError(errno.EPIPE, str(error)) from None
        return True

    def send(self, parcel: PackedMessage, *, wait: bool = True) -> bool:
        """Send a message, whole or not at all.

        Args:
            parcel: the message.
            wait: whether to wait for room, for `LOOK_UP_S` at most.

        Returns:
            Whether there was room.

        Raises:
            BrokenPipeError: no process has the other end any more.
            OSError: this end was closed here.
        """
        buffers: list[Part] = [parcel.head, *parcel.tail]
        ancillary = []
        if parcel.fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", parcel.fds))]
            buffers.append(self._weight(parcel))
        try:
            self._sock.sendmsg(buffers, ancillary, _SEND if wait else _SEND_NOW)
        except BlockingIOError:
            return False
        except ConnectionResetError as error:
            raise BrokenPipeError(errno.EPIPE, str(error)) from None
        return True

    def receive(self, *, wait: bool = True) -> list[Part] | None:
        """Receive a message: its parts, all of which are writable unless there is only one.

        Args:
            wait: whether to wait for a message, for `LOOK_UP_S` at most. In the main thread Ctrl-C is delivered while
                this waits, and not when a message has been taken already.

        Returns:
            None if there was none; there may be one immediately afterwards.

        Raises:
            EOFError: no process has the other end any more, and no message is left.
            OSError: this end was closed here, or a message came for which this process has no descriptors left.
        """
        if wait and threading.current_thread() is threading.main_thread():
            wait = False
            self._poller.poll(_LOOK_UP_MS)
        try:
            data, ancillary, _, _ = self._sock.recvmsg(PACKET_BYTES, _FD_SPACE, _RECEIVE if wait else _RECEIVE_NOW)
        except (BlockingIOError, ConnectionResetError):  # the kernel says once that the other end left messages unread
            return None
        if not data:
            raise EOFError
        if data[0] == _ONE_KIND:
            return [memoryview(data)[1:]]
        return _parts_of(data, _fds_in(ancillary))

    def poll(self, timeout_s: float) -> int:
        """Wait until there is a message, or the end: the events of `select.poll`, 0 after the timeout."""
        poller = select.poll()
        poller.register(self._sock.fileno(), select.POLLIN)
        due = time.monotonic() + timeout_s
        while True:
            events = poller.poll(max(0.0, timeout_s) * 1000)
            if events:
                return events[0][1]
            timeout_s = due - time.monotonic()
            if timeout_s <= 0:
                return 0

    def is_at_end(self) -> bool:
        """Return whether no process has the other end any more, and no message is left."""
        while True:
            try:
                return not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except ConnectionResetError:
                continue
            except BlockingIOError:
                return False

    def close(self) -> None:
        """Close it; may be called twice."""
        self._sock.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # never made, or this interpreter is ending
            self._sock.close()

    def _weight(self, parcel: PackedMessage) -> memoryview:
        """Return the padding, in bytes, that stands for the memory file in proportion to `ROOM_BYTES`."""
        most = self._room - len(parcel.head) - 1024  # the kernel refuses a packet that its buffer could never hold
        return memoryview(_zeros(self._room))[: min(parcel.size_bytes * self._room // ROOM_BYTES, most)]


_nothing = b""


def _zeros(num_bytes: int) -> bytes:
    global _nothing
    if len(_nothing) < num_bytes:
        _nothing = bytes(num_bytes)
    return _nothing


def _fds_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _parts_of(data: bytes, fds: list[int]) -> list[Part]:
    kind, count = _COUNT.unpack_from(data)
    try:
        if kind == _SEVERAL_KIND:
            at = _COUNT.size + _LENGTH_BYTES * count
            parts: list[Part] = []
            for length in array.array("Q", data[_COUNT.size : at]):
                parts.append(bytearray(data[at : at + length]))  # values lie in it, and may be written to
                at += length
            return parts
        if len(fds) != (1 if kind == _FILE_KIND else 2):
            raise OSError(errno.EMFILE, "a large message came, and this process has too many descriptors to take it")
        if kind == _FILE_KIND:
            lengths = array.array("Q", data[_COUNT.size : _COUNT.size + _LENGTH_BYTES * count])
        else:
            (index,) = open_parts(fds.pop(), (_LENGTH_BYTES * count,), writable=False)
            lengths = array.array("Q", bytes(index))
        return [*open_parts(fds.pop(), lengths, writable=True)]
    finally:
        for fd in fds:
            os.close(fd)


__all__ = ["LOOK_UP_S", "PACKET_BYTES", "ROOM_BYTES", "PackedMessage", "Packets"]
