"""Both ends of a pipe in its depot, which hands them out, and uses them for processes on other hosts.

end 0 ── Packets ══ kernel ══ Packets ── end 1
   └ a duplicate to each process of this host that holds it        └ the same
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.calls.payloads import PackedValue
from ropewalk.sharing.states.pipe import PipeState
from ropewalk.sharing.waiting_calls import QueuedItem, WaitingCalls
from ropewalk.transport.blobs import total_bytes
from ropewalk.transport.frames import Part
from ropewalk.transport.loop import Loop
from ropewalk.transport.packets import PackedMessage, Packets


class WireMessage:
    """A message from the wire, for a process on another host; its contents are handled there."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return WireMessage, ([pickle.PickleBuffer(part) for part in self.parts],)


class PacketWire:
    """One end of a pipe, in its depot.

    Args:
        packets: the descriptors of that end.
        loop: the loop of the depot.
    """

    def __init__(self, packets: Packets, loop: Loop) -> None:
        self.at_end = False
        """Whether the end of the stream was reached."""
        self.on_ready: Callable[[], object] = lambda: None
        """Called when there is something to read, or room, if that is watched."""
        self._packets = packets
        self._loop = loop
        self._watched = (False, False)
        self._first: tuple[QueuedItem, PackedMessage] | None = None

    @property
    def fd(self) -> int:
        """The descriptor of the end."""
        return self._packets.fileno()

    def receive(self) -> QueuedItem | None:
        """Return the next message; None if there is none now."""
        if self.at_end:
            return None
        try:
            parts = self._packets.receive(wait=False)
        except EOFError:
            self.at_end = True
            return None
        if parts is None:
            return None
        buffers: list[Part] = []
        head = pickle.dumps(WireMessage(parts), 5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
        return QueuedItem(PackedValue([head, *buffers]), total_bytes(parts))

    def is_readable(self) -> bool:
        """Whether there is a message, or the end."""
        return self._packets.poll(0.0) != 0

    def send(self, item: Any) -> bool:
        """Send a message, if there is room; returns whether there was.

        Raises:
            BrokenPipeError: no process has the other end any more.
            OSError: there is no memory for the message.
        """
        if self._first is None or self._first[0] is not item:
            packed = item.packed
            self._first = item, PackedMessage(packed.parts, packed.shared, packed.fds[0] if packed.fds else None)
        done = True
        try:
            done = self._packets.send(self._first[1], wait=False)
            return done
        finally:
            if done:
                self._first = None

    def watch(self, reading: bool, writing: bool) -> None:
        """Watch for something to read, or for room; calls `on_ready` then."""
        if (reading, writing) != self._watched:
            self._watched = reading, writing
            if self._loop.is_here:
                self._follow()
            else:
                self._loop.call_soon(self._follow)

    def close(self) -> None:
        """Close the depot's descriptor; processes that have the end keep theirs."""
        self._watched = False, False
        self._first = None
        self._loop.unwatch(self.fd)
        self._packets.close()

    def _follow(self) -> None:
        """Start or stop watching, as requested; runs in the loop."""
        fd = self.fd
        if fd < 0:
            return
        self._loop.unwatch(fd)  # otherwise the loop would report the end again and again
        reading, writing = self._watched
        if reading or writing:
            self._loop.watch(fd, self.on_ready)
            self._loop.rewatch(fd, reading=reading, writing=writing)


def make_pipe(loop: Loop, calls: WaitingCalls, duplex: bool = True) -> PipeState:
    """Make a pipe, of which processes of this host can get descriptors.

    Raises:
        OSError: there are too many open descriptors.
    """
    first, second = (PacketWire(packets, loop) for packets in Packets.pair())
    state = PipeState((first, second), duplex)

    def serve(end: int) -> None:
        with calls.lock:
            calls.end_all(state.ready(end))

    first.on_ready = lambda: serve(0)
    second.on_ready = lambda: serve(1)
    return state


__all__ = ["PacketWire", "WireMessage", "make_pipe"]
