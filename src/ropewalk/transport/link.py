"""Links: typed messages over a stream, sent from any thread and received in one.

A link is used in one of two ways. A worker's main thread calls `receive`, which looks for a moment if that pays
(`looking.py`) and then waits in the kernel. A serving process gives its links to a `Loop`, which calls `read_ready` and
`write_ready`; then `send` never waits for the peer: bytes that do not go out at once are kept in order and sent by the
loop.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ropewalk import injection
from ropewalk.errors import FrameError, LinkClosed
from ropewalk.transport.descriptors import NONE, Descriptors
from ropewalk.transport.frames import (
    MEMBER,
    FrameReader,
    Limits,
    Part,
    encode_alone,
    encode_head,
    encode_with_one,
    encode_with_two,
)
from ropewalk.transport.looking import Looking
from ropewalk.transport.streams.stream import TURN_BYTES, Reception, Stream

_MOST_HELD_FDS = 32
"""Messages with descriptors are held until their descriptors reach this number; the kernel passes at most 253 at once.
"""
_LOOK_UP_MS = 1000
"""A sender that waits for the peer checks this often whether the link was closed meanwhile."""
_JOIN_BYTES = 16 * 1024
"""Frames smaller than this are sent as one piece."""


class Codec:
    """Encodes and decodes one protocol: a union of tagged msgspec structs."""

    def __init__(self, messages: Any) -> None:
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[Part], Any] = msgspec.msgpack.Decoder(messages).decode


class Received(msgspec.Struct, eq=False):  # made without a step of the interpreter, as it is made for each message
    """A message with the parts and file descriptors that came with it.

    Descriptors that are not taken are closed with it.
    """

    message: Any
    parts: list[Part]
    fds: Descriptors = NONE


class Link:
    """One end of a connection between two processes."""

    def __init__(self, stream: Stream, codec: Codec, peer: str, limits: Limits = MEMBER) -> None:
        self.stream = stream
        self.peer = peer
        self.codec: Codec = codec
        self.limits: Limits = limits
        self.closed: bool = False
        self.reader: FrameReader = FrameReader(stream, limits)
        """Holds what was received and not taken yet."""
        self._sending = threading.Lock()
        self.held: list[bytes] = []
        """Messages that wait for the next one."""
        self._held_fds: list[int] = []
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._unsent_bytes = 0
        self.want_write: Callable[[], None] | None = None
        """Set by the loop that serves this link: called, from any thread, when unsent data waits."""

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that were sent here but not yet accepted by the kernel."""
        return self._unsent_bytes

    @property
    def received_bytes(self) -> int:
        """Number of bytes received so far, those of an incomplete frame included."""
        return self.reader.num_bytes

    def relabel(self, codec: Codec, limits: Limits) -> None:
        """Change protocol and limits, after the handshake."""
        self.codec = codec
        self.limits = self.reader.limits = limits

    def send(
        self,
        message: Any,
        parts: Sequence[Part] = (),
        fds: Sequence[int] = (),
        *,
        copies: bool = False,
    ) -> None:
        """Send one message. The descriptors are duplicated if they have to wait; the caller keeps its own.

        Args:
            message: a struct of this link's protocol.
            parts: bytes-like and contiguous; they must not change until they are sent.
            fds: descriptors to pass along (plain streams only).
            copies: whether to copy what has to wait for the peer, so that the parts may change after this.

        Raises:
            LinkClosed: the peer is gone.
        """
        if injection.visit and injection.visit("link.send", type(message).__name__):
            return
        if parts or fds:
            head, parts = self._frame(message, parts, len(fds))
        else:
            head = encode_alone(self.codec.encode(message))
        if not (parts or fds) and self.want_write and self._send_at_once(head):
            return
        buffers = [memoryview(head)]
        for part in parts:
            if len(part):
                buffers.append(memoryview(part).cast("B"))
        with self._sending:
            if self.closed:
                raise LinkClosed(f"the link to {self.peer} is closed")
            held, held_fds = self.held, self._held_fds
            if held:
                buffers.insert(0, memoryview(b"".join(held)))
                fds = (*held_fds, *fds)
                self.held, self._held_fds = [], []
            try:
                sent = 0 if self._unsent else self.stream.send(buffers, fds)
                self._keep_rest(buffers, sent, fds, copies=copies)
            except OSError:  # no descriptor is left: nothing was sent
                self.held, self._held_fds = held, held_fds
                raise
            if self.want_write is None:
                self._drain()
            elif self._unsent or not self.stream.flush():
                self.want_write()

    def send_if_open(self, message: Any, parts: Sequence[Part] = (), fds: Sequence[int] = ()) -> None:
        """Send one message, or drop it if the peer is gone: the loop notices the end of the link by itself."""
        with contextlib.suppress(LinkClosed):
            self.send(message, parts, fds)

    def hold(self, message: Any, parts: Sequence[Part] = (), fds: Sequence[int] = (), *, copies: bool = False) -> int:
        """Hold one message, to be sent with the next one or at `flush`, which must follow. Returns how many are held.

        Args:
            message: a struct of this link's protocol.
            parts: bytes-like, contiguous.
            fds: descriptors to pass along; they must stay open until they are sent.
            copies: as for `send`.

        Raises:
            LinkClosed: the peer is gone.
        """
        head, rest = self._frame(message, parts, len(fds))
        too_many = len(self._held_fds) + len(fds) > _MOST_HELD_FDS
        if rest or too_many or injection.visit:  # too large to gain by it, or fault injection must see every message
            self.send(message, parts, fds, copies=copies)
            return 0
        with self._sending:
            if self.closed:
                raise LinkClosed(f"the link to {self.peer} is closed")
            self.held.append(head)
            self._held_fds += fds
            return len(self.held)

    def flush(self) -> None:
        """Send the held messages; does nothing if there are none, or the link is closed."""
        if self.held:
            with self._sending:
                if self.held and not self.closed:
                    with contextlib.suppress(LinkClosed):  # the thread that reads the link finds out by itself
                        self._send_held()
                        if self.want_write is None:
                            self._drain()
                        elif self._unsent or not self.stream.flush():
                            self.want_write()

    def _send_held(self) -> None:
        held, fds = self.held, self._held_fds
        joined = memoryview(b"".join(held))
        self.held, self._held_fds = [], []
        try:
            if self._unsent:
                self._keep([joined], fds)
            else:
                self._keep_rest([joined], self.stream.send((joined,), fds), fds)
        except OSError:
            self.held, self._held_fds = held, fds
            raise

    def _frame(self, message: Any, parts: Sequence[Part], num_fds: int = 0) -> tuple[bytes, Sequence[Part]]:
        """Return the bytes of a frame, and the parts that follow it; small parts are included in the frame."""
        header = self.codec.encode(message)
        if not num_fds:
            if not parts:
                return encode_alone(header), ()
            if len(parts) == 1 and len(parts[0]) < _JOIN_BYTES:
                return encode_with_one(header, parts[0]), ()
            if len(parts) == 2 and len(parts[0]) + len(parts[1]) < _JOIN_BYTES:
                return encode_with_two(header, *parts), ()
        head = encode_head(header, parts, num_fds)  # type: ignore[arg-type]
        if sum(map(len, parts)) < _JOIN_BYTES:
            return b"".join((head, *parts)), ()  # copying a little is cheaper than handing over many pieces
        return head, parts

    def _send_at_once(self, head: bytes) -> bool:
        """Take the fast path of most messages: small, and the kernel has room. False: nothing was sent."""
        with self._sending:
            if self._unsent or self.closed or self._held_fds:
                return False
            if self.held:
                head = b"".join((*self.held, head))
                self.held = []
            stream = self.stream
            sent = stream.send_bytes(head)
            if sent == len(head) and (not stream.keeps_bytes or stream.flush()):
                return True
            self._keep_rest([memoryview(head)], sent, ())
            assert self.want_write
            self.want_write()
            return True

    def send_alone(self, message: Any, parts: Sequence[Part], noted: list[int]) -> bool:
        """Send one small message if it goes at once; False: nothing was sent, and `send` may do it.

        An interrupt at any moment leaves `noted`, which is empty before, true: with an entry the message was sent. For
        streams that carry descriptors.

        Raises:
            LinkClosed: the peer is gone.
        """
        if injection.visit or not self.want_write:
            return False
        head, rest = self._frame(message, parts)
        if rest:
            return False
        with self._sending:
            if self._unsent or self.closed or self.held:
                return False
            try:
                sent = self.stream.send_noted(head, noted)
                if sent < len(head):
                    self._keep_noted(head, noted)
            except BaseException:
                self._keep_noted(head, noted)  # again if it was interrupted
                raise
        return sent > 0

    def _keep_noted(self, head: bytes, noted: list[int]) -> None:
        """Let the loop send the rest of a frame of which a part was sent; once more, if that was interrupted."""
        if noted and noted[0] < len(head):
            rest = memoryview(head)[noted[0] :]
            if not self._unsent:
                self._unsent.append((rest, ()))
            self._unsent_bytes = rest.nbytes
            assert self.want_write
            self.want_write()

    def receive(self, *, wait: bool = True) -> Received | None:
        """Wait for the next message; None when the peer has closed. For a thread that is the only one to read.

        Args:
            wait: False to return only what has arrived, as `read_ready` does.
        """
        reader = self.reader
        if not wait or reader.may_hold_more or self.look():
            frame = reader.next(wait=wait)
        else:
            slept_from = time.monotonic()
            frame = reader.next(wait=True)  # which sleeps and takes in one system call
            self._looking.slept(time.monotonic() - slept_from)
        if frame is None:
            return None
        fds = Descriptors(frame.fds) if frame.fds else NONE
        try:
            message = self.codec.decode(frame.header)
        except (ValueError, RecursionError) as error:  # not of this protocol, or nested too deep
            raise FrameError(f"{self.peer} sent a header that is not a message of this link: {error}") from error
        return Received(message, frame.parts, fds)

    def receive_alone(self, noted: list[Reception]) -> Received | None:
        """Wait for the next message, with a reader that is idle; an interrupt at any moment loses nothing.

        What was received is in `noted` until the caller clears it, and `reader.put_back` has it received again. After
        None it has to: more or less than one small message has arrived.

        Raises:
            LinkClosed: the peer has closed, or the connection broke.
        """
        if self.look():
            frame = self.reader.next_alone(noted)
        else:
            slept_from = time.monotonic()
            frame = self.reader.next_alone(noted)
            self._looking.slept(time.monotonic() - slept_from)
        if frame is None:
            return None
        try:
            return Received(self.codec.decode(frame.header), frame.parts)
        except (ValueError, RecursionError):
            return None  # `receive` says what is wrong

    def read_ready(self) -> Received | None:
        """Return the next message that has arrived; None when the peer has closed.

        Raises:
            BlockingIOError: no whole message is here.
        """
        return self.receive(wait=False)

    def look(self) -> bool:
        """Look for what arrives now, if that pays; return whether something has. For the thread that reads."""
        looking = self._looking
        return looking.pays and bool(looking.look(self._poll_now))

    def wait(self, timeout_s: float) -> bool:
        """Wait until `read_ready` has something to tell; return whether it has. For the thread that reads.

        This takes nothing: it may be interrupted at any moment, also by a handler that waits as well.

        Args:
            timeout_s: the maximum, in seconds.
        """
        return self.closed or bool(self._looking.poll(self._poller(select.POLLIN).poll, 1000 * timeout_s))

    @functools.cached_property  # links that a loop serves need none
    def _looking(self) -> Looking:
        return Looking()

    @functools.cached_property
    def _poll_now(self) -> Callable[[], list[tuple[int, int]]]:
        return functools.partial(self._poller(select.POLLIN).poll, 0)

    def _poller(self, events: int) -> select.poll:
        poller = select.poll()
        with contextlib.suppress(ValueError):  # it was closed here at this moment
            poller.register(self.stream.fileno(), events)
        return poller

    def write_ready(self) -> bool:
        """Send waiting bytes until the kernel takes no more or other links must get their turn.

        Returns True when none are left.
        """
        with self._sending:
            if self.closed:
                return True
            return self._push()

    def write_out(self, timeout_s: float) -> bool:
        """Send waiting bytes before this process ends, for at most `timeout_s` seconds; True when none are left."""
        deadline = time.monotonic() + timeout_s
        while not self.write_ready():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._poller(select.POLLOUT).poll(min(left_s * 1000, _LOOK_UP_MS))
        return True

    def close(self) -> None:
        """Close both directions; may be called twice and from any thread."""
        with self._sending:
            if self.closed:
                return
            self.closed = True
            for _, fds in self._unsent:
                for fd in fds:
                    os.close(fd)
            self._unsent.clear()
            self.held.clear()
            self._held_fds.clear()
            self._unsent_bytes = 0
        self.stream.close()
        for fd in self.reader.take_fds():
            os.close(fd)
        if self.want_write:
            self.want_write()  # the loop that serves this link must stop watching it

    def close_copy(self) -> None:
        """In a forked child: close our copy of the socket, without sending anything to the peer."""
        self.closed = True
        self.stream.close_copy()

    def _keep_rest(self, buffers: list[memoryview], sent: int, fds: Sequence[int], *, copies: bool = False) -> None:
        if sent:
            fds = ()
        for index, view in enumerate(buffers):
            if sent < view.nbytes:
                rest = [view[sent:], *buffers[index + 1 :]]
                self._keep([memoryview(bytes(each)) for each in rest] if copies else rest, fds)
                return
            sent -= view.nbytes

    def _keep(self, buffers: list[memoryview], fds: Sequence[int]) -> None:
        waiting_fds = _duplicates(fds) if fds else ()
        for view in buffers:
            self._unsent.append((view, waiting_fds))
            self._unsent_bytes += view.nbytes
            waiting_fds = ()

    def _advance(self, sent: int) -> None:
        self._unsent_bytes -= sent
        while sent or (self._unsent and not self._unsent[0][0].nbytes):
            view, fds = self._unsent.popleft()
            for fd in fds:
                os.close(fd)  # our duplicate; the kernel has its own now
            if sent < view.nbytes:
                self._unsent.appendleft((view[sent:], ()))
                return
            sent -= view.nbytes

    def _push(self) -> bool:
        """Hand waiting bytes to the kernel until it takes no more or other links must get their turn.

        Returns True when none are left.
        """
        done = self.stream.flush()
        left = TURN_BYTES
        while done and self._unsent:
            if left <= 0:
                return False
            views: list[memoryview] = []
            first_fds = self._unsent[0][1]
            for view, fds in self._unsent:
                if views and fds:
                    break  # descriptors travel with the first byte of their own frame
                views.append(view)
                if len(views) == 256:
                    break
            sent = self.stream.send(views, first_fds)
            if sent == 0:
                done = False
            else:
                left -= sent
                self._advance(sent)
                done = self.stream.flush()
        return done

    def _drain(self) -> None:
        """Wait until everything is sent: the sending half of a link without a loop.

        The lock is released while this waits, so that `close` and other senders need not wait for the peer.
        """
        while not self._push():
            poller = self._poller(select.POLLOUT)
            self._sending.release()
            try:
                # With a timeout: once closed, the descriptor's number may belong to another file by the time it is
                # polled.
                poller.poll(_LOOK_UP_MS)
            finally:
                self._sending.acquire()
            if self.closed:
                raise LinkClosed(f"the link to {self.peer} was closed here while a message waited")


def _duplicates(fds: Sequence[int]) -> tuple[int, ...]:
    """Return duplicates of descriptors.

    Raises:
        OSError: there is no descriptor left for one of them; none are made then.
    """
    with contextlib.ExitStack() as on_error:
        made: list[int] = []
        for fd in fds:
            made.append(os.dup(fd))
            on_error.callback(os.close, made[-1])
        on_error.pop_all()
    return tuple(made)
