"""What really passes the sockets of this process, so that counters can be held against it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence

import pytest

from ropewalk.transport.streams.plain import PlainStream


class Wire:
    """Bytes that were handed to the kernel, by stream, since they were taken last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[PlainStream, bytearray] = {}

    def add(self, stream: PlainStream, data: bytes | memoryview) -> None:
        with self._lock:
            self._sent.setdefault(stream, bytearray()).extend(data)

    def take(self) -> list[bytes]:
        """What was sent since the last call, for each stream that sent anything."""
        with self._lock:
            sent, self._sent = self._sent, {}
        return [bytes(one) for one in sent.values()]


@contextlib.contextmanager
def tapped() -> Generator[Wire]:
    """Copy what is sent by streams of one host."""
    wire = Wire()
    send, send_bytes = PlainStream.send, PlainStream.send_bytes

    def tapped_send(stream: PlainStream, buffers: Sequence[memoryview], fds: Sequence[int] = ()) -> int:
        num_sent = send(stream, buffers, fds)
        wire.add(stream, b"".join(buffers)[:num_sent])
        return num_sent

    def tapped_send_bytes(stream: PlainStream, data: bytes) -> int:
        num_sent = send_bytes(stream, data)
        wire.add(stream, data[:num_sent])
        return num_sent

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainStream, "send", tapped_send)
        patch.setattr(PlainStream, "send_bytes", tapped_send_bytes)
        yield wire
