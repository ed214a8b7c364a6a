"""Pipes between any processes of a run: `multiprocessing.Pipe` and its two connections.

    on one host:      send ─▶ packet ═══ kernel ═══▶ packet ─▶ recv        the depot made the pair and keeps its ends
    on another host:   send ─▶ link ─▶ depot ─▶ packet ═══▶ ...            several processes may hold one end

A message is an object or bytes. As in the standard library, both go through one stream: `recv` of bytes loads them as
a pickle, and `recv_bytes` of an object returns a pickle of it. Two things differ. An object arrives with its arrays
beside its pickle, so that the pickle is made only when it is requested. And on another host than the pipe's,
`fileno()` only signals that there are messages and does not carry them, and a message counts as received once it has
arrived: a message on its way to a process that dies goes to the next one that receives there.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import select
import time
import types
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import cloudpickle

from ropewalk.calls.payloads import PackedValue, pack_item
from ropewalk.errors import PeerLost
from ropewalk.processes.session import Session
from ropewalk.sharing.membership import member_of_run
from ropewalk.sharing.readiness import Readiness
from ropewalk.sharing.shared_object import ObjectLocation, SharedObject, create
from ropewalk.transport.frames import Part
from ropewalk.transport.packets import LOOK_UP_S, PACKET_BYTES, PackedMessage, Packets
from ropewalk.transport.serialization import dumps, loads
from ropewalk.user_frames import shortened

_cloudpickle: Any = cloudpickle  # untyped


class Connection(SharedObject):
    """One end of a pipe; pickling it gives another process the same end.

    An end is closed when no process has a handle of it any more. The other end then reads the remaining messages, and
    learns which process held the closed end last.

    Args:
        reference: the location of this end.
        readable: whether it receives.
        writable: whether it sends.
    """

    _packets: Packets | None = None
    """This end's descriptors, on the host of the pipe, from its first use on."""
    _is_far = False
    """Whether the pipe is known to be on another host."""
    _readiness: Readiness | None = None
    _closed = False
    _readable = True
    _writable = True

    def __init__(self, reference: ObjectLocation, readable: bool = True, writable: bool = True) -> None:
        super().__init__(reference, is_new=True)
        self._readable = readable
        self._writable = writable

    def _facts(self) -> dict[str, Any]:
        return {"_readable": self._readable, "_writable": self._writable}

    def __reduce__(self) -> Any:
        self._check_closed()
        return super().__reduce__()

    def __del__(self) -> None:
        if self._readiness:
            with contextlib.suppress(Exception):  # this interpreter is ending
                self._readiness.abandon()
        if self._packets:
            self._packets.close()
        super().__del__()

    @property
    def closed(self) -> bool:
        """Whether this handle is closed."""
        return self._closed

    @property
    def readable(self) -> bool:
        """Whether it receives."""
        return self._readable

    @property
    def writable(self) -> bool:
        """Whether it sends."""
        return self._writable

    def fileno(self) -> int:
        """Return a descriptor, readable while `poll()` is true, for `select`, `wait` and asyncio; not for `os.read`.

        It exists from the first call on, and is closed with this handle.

        Raises:
            OSError: this handle is closed, or too many descriptors are open.
        """
        self._check_closed()
        packets = self._packets or self._open()
        if packets:
            return packets.fileno()
        if self._readiness and self._readiness.pid != os.getpid():
            self._readiness.abandon()  # it belongs to the process that forked this one
            self._readiness = None
        readiness = self._readiness
        if readiness is None:
            loop = member_of_run(self._reference.run_id).loop
            readiness = self._readiness = Readiness(self._reference.target, loop)
        if self._readable:
            readiness.refresh(self._connection, lambda: self._ask("poll", timeout=0.0))
        return readiness.fileno()

    def close(self) -> None:
        """Close this handle; if it is the last one, its end is closed when this returns. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._readiness:
            if self._readiness.pid == os.getpid():
                self._readiness.close()
            else:
                self._readiness.abandon()
        packets, self._packets = self._packets, None
        if packets:
            packets.close()
        counts = self._pid == os.getpid()  # a forked child that only had the descriptor does not
        self._give_back()
        if counts:
            with contextlib.suppress(PeerLost):
                member = member_of_run(self._reference.run_id)
                if member.connection_to(self._reference.address).link.stream.carries_fds:
                    self._settle()

    def send(self, obj: Any) -> None:
        """Send an object.

        Args:
            obj: pickled before this returns.

        Raises:
            BrokenPipeError: no process holds the other end any more.
            OSError: this handle is closed, or only receives.
            NotPicklable: the object cannot be sent; `path` says which part of it.
            PeerLost: the depot of the pipe is gone.
        """
        self._check_closed()
        self._check_writable()
        packets = self._packets or self._open()
        if packets is None:
            self._ask_with("send", obj)
            return
        packed = pack_item(None, obj)
        try:
            self._send(packets, packed)
        finally:
            packed.close()

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Send bytes.

        Args:
            buf: an object with a buffer.
            offset: the offset of the message in it, in bytes.
            size: the number of bytes; None: up to the end.

        Raises:
            ValueError: the buffer has fewer bytes.
            BrokenPipeError, OSError, PeerLost: as `send`.
        """
        self._check_closed()
        self._check_writable()
        view = memoryview(buf)
        if view.itemsize > 1:
            view = view.cast("B")
        num_bytes = view.nbytes
        if offset < 0:
            raise ValueError("offset is negative")
        if num_bytes < offset:
            raise ValueError(f"buffer length {num_bytes} < offset {offset}")
        if size is None:
            size = num_bytes - offset
        elif size < 0:
            raise ValueError("size is negative")
        elif offset + size > num_bytes:
            raise ValueError(f"buffer length {num_bytes} < offset {offset} + size {size}")
        view = view[offset : offset + size]
        packed = PackedValue([view if view.contiguous else bytes(view)])
        packets = self._packets or self._open()
        if packets is None:
            self._call(self._connection(), "send", packed, None)
        else:
            self._send(packets, packed)

    def recv(self) -> Any:
        """Receive an object, waiting for one.

        Raises:
            EOFError: no process holds the other end any more, and no message is left; names the last holder.
            OSError: this handle is closed, or only sends.
            PeerLost: the depot of the pipe is gone, with its messages.
        """
        try:
            parts = self._receive()
            return loads(parts[0], parts[1:])
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Receive bytes, waiting for them.

        Args:
            maxlength: in bytes; a longer message is an error, after which the connection cannot receive any more.

        Returns:
            The message.

        Raises:
            OSError: the message was longer, or as `recv`.
            EOFError, PeerLost: as `recv`.
        """
        self._check_closed()
        self._check_readable()
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")
        try:
            data = bytes(_bytes_of(self._receive()))
        except KeyboardInterrupt as error:
            shortened(error)
            raise
        if maxlength is not None and len(data) > maxlength:
            if self._writable:
                self._readable = False
            else:
                self.close()
            raise OSError(f"bad message length: the message has {len(data)} bytes, maxlength is {maxlength}")
        return data

    def recv_bytes_into(self, buf: Any, offset: int = 0) -> int:
        """Receive bytes into a buffer, waiting for them; returns their number.

        Args:
            buf: a writable buffer.
            offset: the offset in it at which the message is stored, in bytes.

        Raises:
            multiprocessing.BufferTooShort: the buffer is too short for the message, which is the error's argument.
            EOFError, OSError, PeerLost: as `recv`.
        """
        self._check_closed()
        self._check_readable()
        with memoryview(buf) as whole, whole.cast("B") as view:
            if offset < 0:
                raise ValueError("negative offset")
            if offset > view.nbytes:
                raise ValueError(f"offset too large: {offset} in a buffer of {view.nbytes} bytes")
            data = _bytes_of(self._receive())
            if view.nbytes < offset + len(data):
                raise multiprocessing.BufferTooShort(bytes(data))
            view[offset : offset + len(data)] = data
            return len(data)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether `recv` would return or raise without waiting: there is a message, or the end.

        Args:
            timeout: seconds to wait for that; None waits for ever.

        Raises:
            OSError, PeerLost: as `recv`.
        """
        self._check_closed()
        self._check_readable()
        try:
            packets = self._packets or self._open()
            if packets is None:
                return self._ask("poll", timeout=timeout)
            due = None if timeout is None else time.monotonic() + timeout
            while True:
                left_s = LOOK_UP_S if due is None else due - time.monotonic()
                events = self._poll_for(packets, min(left_s, LOOK_UP_S))
                if events & select.POLLHUP and packets.is_at_end():
                    self._last_holders()  # raises if the depot is gone
                if events:
                    return True
                if left_s <= LOOK_UP_S and due is not None:
                    return False
                self._check_closed()
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = f"{self._reference.target} at {self._reference.address.partition('|')[0]}"
        return f"<Connection {place}{', closed' if self._closed else ''}>"

    __class_getitem__: ClassVar[Any] = classmethod(cast("Any", types.GenericAlias))

    def _open(self) -> Packets | None:
        """Get this end's descriptors from the depot; None if it is on another host."""
        if self._is_far:
            return None
        fd = self._ask("open")
        if fd is None:
            self._is_far = True
            return None
        opened = Packets(fd)
        packets = self.__dict__.setdefault("_packets", opened)  # two threads may do this; the first one counts
        if packets is not opened or self._closed:
            opened.close()
            self._check_closed()
        return packets

    def _send(self, packets: Packets, packed: PackedValue) -> None:
        """Send a message over the wire."""
        parts = packed.parts
        try:
            if len(parts) == 1 and type(parts[0]) is bytes and len(parts[0]) < PACKET_BYTES:
                while not packets.send_one(parts[0]):
                    self._check_closed()
                return
            parcel = PackedMessage(parts, packed.shared, packed.fds[0] if packed.fds else None)
            try:
                while not packets.send(parcel):
                    self._check_closed()
            finally:
                parcel.close()
        except BrokenPipeError:
            self._check_closed()
            problem = f"nobody holds the other end of this pipe{self._last_holders()}"
            raise BrokenPipeError(errno.EPIPE, problem) from None
        except OSError:
            self._check_closed()
            raise

    def _receive(self) -> Sequence[Part]:
        """Return the parts of the next message."""
        self._check_closed()
        self._check_readable()
        packets = self._packets or self._open()
        if packets is None:
            return self._receive_from_afar()
        try:
            while True:
                parts = packets.receive()
                if parts is not None:
                    return parts
                self._check_closed()
        except EOFError:
            raise EOFError(f"nobody holds the other end of this pipe{self._last_holders()}") from None
        except OSError:
            self._check_closed()
            raise

    def _receive_from_afar(self) -> Sequence[Part]:
        try:
            return self._ask("recv").parts
        finally:
            readiness = self._readiness
            if readiness and readiness.pid == os.getpid() and not self._closed:
                readiness.again(self._connection)

    def _poll_for(self, packets: Packets, timeout_s: float) -> int:
        try:
            return packets.poll(timeout_s)
        except ValueError:  # its descriptor is closed
            self._check_closed()
            raise

    def _last_holders(self) -> str:
        """Return the last holders of the other end, as the end of a sentence.

        Raises:
            PeerLost: they are not known, because the depot of the pipe is gone.
        """
        return self._ask("last_holders")

    def _check_closed(self) -> None:
        if self._closed:
            raise OSError("handle is closed")

    def _check_readable(self) -> None:
        if not self._readable:
            raise OSError("connection is write-only")

    def _check_writable(self) -> None:
        if not self._writable:
            raise OSError("connection is read-only")


def _bytes_of(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    message = loads(parts[0], parts[1:])
    payload = dumps(message, what="message")
    return _cloudpickle.dumps(message, 5) if payload.buffers else payload.pickle


def Pipe(duplex: bool = True, *, session: Session | None = None) -> tuple[Connection, Connection]:
    """Make a pipe.

    Example:
        >>> import ropewalk as rw
        >>> ours, theirs = rw.Pipe()
        >>> process = rw.Process(target=theirs.send, args=({"loss": 0.5},))
        >>> process.start()
        >>> ours.recv()
        {'loss': 0.5}

    Args:
        duplex: whether both ends send and receive; if not, the first one only receives and the second one only sends.
        session: the session of its run; by default that of this process.

    Returns:
        Its two ends.

    Raises:
        StartFailed: there is no depot to hold it, and none can be started.
    """
    first, second = create("pipe", bool(duplex), label="Pipe", session=session)
    return Connection(first, True, duplex), Connection(second, duplex, True)


__all__ = ["Connection", "Pipe"]
