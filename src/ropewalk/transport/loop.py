"""The loop of a serving process: one thread waits in epoll and handles events.

All events of a session or an agent arrive here: messages on links, readable descriptors, timers, and calls from other
threads. The loop never waits for a peer.

The thread is mostly the loop's own. Two kinds of loop pass it on: that of a session to threads which would only wait
for it (`loop_with_guests.py`), and one that serves calls to another thread while a user's method runs in the first
(`loop_with_deputies.py`).
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ropewalk.errors import FrameError, LinkClosed
from ropewalk.transport.kernel import LONGEST_WAIT_S
from ropewalk.transport.link import Link, Received
from ropewalk.transport.streams.stream import TURN_BYTES

logger = logging.getLogger(__name__)

_IN, _OUT = select.POLLIN, select.POLLOUT
_TURN = 64
"""How many messages of one link are handled before the others get their turn."""
_FEW_TIMERS = 256
"""Cancelled timers are not removed while there are fewer timers than this."""


class Timer:
    """A call that will be made later unless it is cancelled."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], object]) -> None:
        self.due: float = due
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Do not make the call; may be called twice, and after it was made."""
        self.call = None


class _WakePipe:
    """The pipe by which other threads wake a loop.

    It is closed with its last reference: a thread that is about to write to it has one, so that it cannot write into a
    file that was given the number of a pipe which the loop has just closed.
    """

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self) -> None:
        """Wake the loop.

        Raises:
            OSError: it is full, so that the loop wakes anyway; or closed, as there is no loop to wake.
        """
        os.write(self._writer, b"x")

    def drain(self) -> None:
        """Read what was written."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)

    def close(self) -> None:
        """Close it now; may be called twice, and only where no other thread has it."""
        reader, writer, self.reader, self._writer = self.reader, self._writer, -1, -1
        for fd in (reader, writer):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)

    __del__ = close


class Loop:
    """Waits for many things at once and handles them one at a time."""

    def __init__(self) -> None:
        # Without the wrapper in `selectors`, which takes longer than the system call. Both speak in the same flags.
        self._poll = select.epoll()
        self._on_readable: dict[int, Callable[[], object]] = {}
        self._events: dict[int, int] = {}
        self._calls: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._many_timers = _FEW_TIMERS
        self._order = itertools.count()
        self._wake_pipe: _WakePipe | None = _WakePipe()
        """None once the loop has ended."""
        self._awake = False
        self._running = True
        self._watched: dict[int, Callable[[], object]] = {}
        self._links: dict[Link, tuple[int, Callable[[Received], object], Callable[[str], object]]] = {}
        self._by_fd: dict[int, Link] = {}
        self._roles: dict[Link, ReadingRole] = {}
        self._disarmed: set[Link] = set()
        self._busy: dict[Link, None] = {}  # links that had more messages than one turn allows
        self._left: set[int] = set()  # unwatched descriptors, whose events of this turn must be ignored
        self._register(self._wake_pipe.reader, self._drain_wakes)
        self.thread: threading.Thread | None = None
        self.ended: threading.Event = threading.Event()
        self._owner: int = 0
        self._handler: int = 0
        """Identity of the thread that handles a turn, and looks for calls before it waits; 0 while it may wait."""
        self._tenure: int = 0
        """Changes when another thread takes over."""
        self._reading: Link | None = None

    def start(self, name: str) -> None:
        """Run the loop in a thread of its own."""
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.thread.start()

    def call_soon(self, call: Callable[[], object]) -> None:
        """Have the loop make a call; from any thread."""
        self._calls.append(call)
        # First the call, then the look at the handler: whoever takes the loop over afterwards finds the call.
        if not self._awake and self._handler != threading.get_ident() and (pipe := self._wake_pipe):
            try:
                self._awake = True
                pipe.write()
            except OSError:  # full: the loop wakes anyway
                pass
            except BaseException:  # Ctrl-C, perhaps between the flag and the byte: the loop would sleep for ever
                with contextlib.suppress(OSError):
                    pipe.write()
                raise

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Have the loop make a call after a delay; from the loop's thread."""
        if len(self._timers) >= self._many_timers:  # many may have been cancelled, and due only in hours
            self._timers = [entry for entry in self._timers if entry[2].call]
            heapq.heapify(self._timers)
            self._many_timers = max(_FEW_TIMERS, 2 * len(self._timers))
        timer = Timer(time.monotonic() + delay_s, call)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def watch(self, fd: int, on_readable: Callable[[], object]) -> None:
        """Call whenever `fd` can be read; from the loop's thread."""
        self._watched[fd] = on_readable
        self._register(fd, on_readable)

    def rewatch(self, fd: int, *, reading: bool, writing: bool) -> None:
        """Change the events for which a descriptor is watched, at first only readability; from the loop's thread.

        Errors and hang-ups are always reported, again and again until it is unwatched.
        """
        if fd in self._watched:
            self._want(fd, (_IN if reading else 0) | (_OUT if writing else 0))

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`; may be called twice."""
        if self._watched.pop(fd, None):
            self._unregister(fd)

    def add_link(
        self,
        link: Link,
        on_message: Callable[[Received], object],
        on_closed: Callable[[str], object],
        role: ReadingRole | None = None,
    ) -> None:
        """Serve a link: `on_message` for each message, `on_closed(why)` once when the peer is gone.

        From the loop's thread. The loop closes the link when the peer is gone. A link with a `role` may be read by
        other threads as well, one at a time: the loop only reads it while it holds the role, and after `arm`.
        """
        fd = link.stream.fileno()
        if fd < 0:  # another thread was quicker
            self._guard(lambda: on_closed("the link was closed here"))
            return
        try:
            self._register(fd, functools.partial(self._read if role else self._read_turn, link))
        except OSError:  # or is just closing it
            self._guard(lambda: on_closed("the link was closed here"))
            return
        self._links[link] = (fd, on_message, on_closed)
        self._by_fd[fd] = link
        if role:
            self._roles[link] = role
            self._disarmed.add(link)
            self._want(fd, 0)  # only hang-ups are still reported
        link.want_write = lambda: self.call_soon(lambda: self._write(link))
        self._write(link)  # messages of the handshake may still wait to be sent
        # A stream may hold bytes that were read with the handshake. They are handled after the caller has finished.
        self._busy[link] = None

    def arm(self, link: Link, reading: bool) -> None:
        """Whether the loop reads a link that was added with a role; from the loop's thread."""
        served = self._links.get(link)
        if served is None or (link not in self._disarmed) == reading:
            return
        (self._disarmed.discard if reading else self._disarmed.add)(link)
        self._write(link)
        if reading:
            self._read(link)

    def remove_link(self, link: Link) -> None:
        """Stop serving a link, and close it, without a call to `on_closed`; from the loop's thread."""
        self._leave(link)
        link.want_write = None
        link.close()

    def drain(self, link: Link) -> None:
        """Handle all messages that have already arrived on a link; from the loop's thread."""
        while link in self._links:
            before = link.received_bytes
            if not self._read(link, everything=True) and link.received_bytes == before:
                return

    def stop(self) -> None:
        """End the loop after the current call; from any thread."""
        self._running = False
        self.call_soon(lambda: None)

    def run(self) -> None:
        """Serve until `stop` is called; then close every link."""
        self._serve(self._tenure)

    # User code, which only a loop with deputies runs

    def enter(self) -> int:
        """Note that user code begins, during which another thread may take over; from the loop's thread.

        Returns the argument for `leave`.
        """
        return self._tenure

    def leave(self, entered: int) -> bool:
        """Return, after user code, whether this thread still runs the loop.

        If not, it must not touch any state of the loop.
        """
        return self._tenure == entered

    def hand_over(self) -> None:
        """Note that this thread is going to wait: if it runs the loop, inside `enter`, another one takes over."""

    @property
    def is_here(self) -> bool:
        """Return whether this thread runs the loop."""
        return self._owner == threading.get_ident()

    @property
    def is_entered_here(self) -> bool:
        """Return whether this thread runs the loop and is in user code."""
        return False

    def is_reading(self, link: Link) -> bool:
        """Return whether this thread reads a link for the loop, and may find more in it.

        Held messages are sent afterwards.
        """
        return link.reader.may_hold_more and self._reading is link and self._owner == threading.get_ident()

    def _serve(self, tenure: int) -> None:
        """Run the loop in this thread for one tenure."""
        self._owner = threading.get_ident()
        try:
            self._turn(tenure)
        finally:
            if self._tenure == tenure:
                self._close()

    def _turn(self, tenure: int) -> None:
        here = threading.get_ident()
        while self._running and self._tenure == tenure:
            self._handler = 0  # before the calls are looked at: those that come from now on wake the loop
            ready = self._wait(self._timeout())
            self._handler = here
            self._handle(ready, tenure)

    def _wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait until descriptors are ready, and for at most `timeout_s` seconds; return their events."""
        return self._poll.poll(timeout_s)

    def _close(self) -> None:
        for link in list(self._links):
            self.remove_link(link)
        self._poll.close()
        self._wake_pipe = None
        self.ended.set()

    def forget(self) -> None:
        """In a forked child: close our copies of every descriptor, touching nothing shared with the parent."""
        pipe, self._wake_pipe = self._wake_pipe, None
        if pipe:  # a thread of the parent may have been about to write to it, and never ends here
            pipe.close()
        for link in self._links:
            link.close_copy()
        with contextlib.suppress(OSError):
            self._poll.close()

    def _handle(self, ready: list[tuple[int, int]], tenure: int) -> None:
        """Handle one turn: ready descriptors, timers that are due, calls of other threads.

        Ends early if the loop was lost meanwhile.
        """
        self._left.clear()
        for fd, events in ready:
            if events & _OUT:
                if link := self._by_fd.get(fd):
                    self._guard(lambda link=link: self._write(link))
                elif fd in self._watched:
                    events |= _IN  # one call for both
            # An earlier handler of this turn may have closed the descriptor, and its number may have been reused.
            # (Errors and hang-ups are always reported, and reading tells which they are.)
            if events & ~_OUT and fd not in self._left and (call := self._on_readable.get(fd)):
                try:
                    call()
                except Exception:  # as in `_guard`
                    logger.exception("a call on the loop failed")
                if self._tenure != tenure:
                    return
        now = time.monotonic() if self._timers else 0.0
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call:
                self._guard(call)
                if self._tenure != tenure:
                    return
        # An interrupt in `call_soon` may have come between setting the flag and writing the byte: this turn repairs it.
        self._awake = False
        if not self._calls and not self._busy:
            return
        for _ in range(len(self._calls)):
            self._guard(self._calls.popleft())
            if self._tenure != tenure:
                return
        for link in list(self._busy):
            self._busy.pop(link, None)
            self._guard(lambda link=link: self._read(link))
            if self._tenure != tenure:
                return

    def _timeout(self) -> float | None:
        """Return how many seconds to wait; None without a limit."""
        if self._calls or self._busy:
            return 0.0
        if not self._timers:
            return None
        # Rounded up: a wake-up that is too early finds nothing to do, and waits again.
        return min(max(0.0, self._timers[0][0] - time.monotonic() + 0.0005), LONGEST_WAIT_S)

    def _drain_wakes(self) -> None:
        # Read first: a byte written after the flag was cleared would be read away, and no thread would write another
        # one.
        if pipe := self._wake_pipe:
            pipe.drain()
        self._awake = False

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # the loop must survive any failure of a handler
            logger.exception("a call on the loop failed")

    def _register(self, fd: int, call: Callable[[], object]) -> None:
        if fd in self._events:
            # Another thread closed a link that is served here, and the kernel reused its number.
            stale = self._by_fd.get(fd)
            if stale is None or not stale.closed:
                raise KeyError(f"descriptor {fd} is served already")
            self._lost(stale, "the link was closed here")
        self._poll.register(fd, _IN)
        self._on_readable[fd] = call
        self._events[fd] = _IN

    def _want(self, fd: int, events: int) -> None:
        if self._events[fd] != events:
            with contextlib.suppress(OSError):  # another thread has closed it just now, which is noticed elsewhere
                self._poll.modify(fd, events)
            self._events[fd] = events

    def _unregister(self, fd: int) -> None:
        self._left.add(fd)
        self._on_readable.pop(fd, None)
        if self._events.pop(fd, None) is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._poll.unregister(fd)

    def _leave(self, link: Link) -> None:
        served = self._links.pop(link, None)
        if served:
            self._by_fd.pop(served[0], None)
            self._busy.pop(link, None)
            self._roles.pop(link, None)
            self._disarmed.discard(link)
            self._unregister(served[0])

    def _read(self, link: Link, *, everything: bool = False) -> bool:
        """Handle messages of a link, for one turn; True if there may be more."""
        role = self._roles.get(link) if self._roles else None
        if role is None:
            return self._read_turn(link, everything)
        if not role.acquire():
            return False  # the thread that reads it gets the same error
        try:
            return self._read_turn(link, everything)
        finally:
            role.release()

    def _read_turn(self, link: Link, everything: bool = False) -> bool:
        tenure = self._tenure
        if link.held:
            link.flush()  # messages held by a predecessor that lost the loop while it read
        self._reading = link
        more = self._read_messages(link, everything, tenure)
        if self._tenure == tenure:
            self._reading = None
            if link.held:
                link.flush()
        return more

    def _read_messages(self, link: Link, everything: bool, tenure: int) -> bool:
        served = self._links.get(link)
        if served is None:
            return False
        reader = link.reader
        enough = reader.num_bytes + TURN_BYTES
        for _ in range(_TURN):
            try:
                received = link.receive(wait=False)
            except BlockingIOError:
                return False
            except (LinkClosed, FrameError, ValueError) as error:  # ValueError: a header that cannot be decoded
                self._lost(link, str(error))
                return False
            if received is None:
                self._lost(link, "the peer closed the link")
                return False
            try:
                served[1](received)
            except Exception:  # as in `_guard`, without a closure for each message
                logger.exception("a message from %s could not be handled", link.peer)
            if self._tenure != tenure or self._links.get(link) is not served:
                return False  # a deputy goes on where this thread stopped
            # A read ends early where descriptors travel, so that only the kernel knows whether more is there.
            if not (everything or reader.may_hold_more):
                return False
            if received.parts and reader.num_bytes > enough:
                break
        self._busy[link] = None
        return True

    def _lost(self, link: Link, why: str) -> None:
        served = self._links.get(link)
        self.remove_link(link)
        if served:
            self._guard(lambda: served[2](why))

    def _write(self, link: Link) -> None:
        served = self._links.get(link)
        if served is None:
            return
        try:
            done = link.write_ready()
        except LinkClosed as error:
            # The peer may have sent messages before it went: read them, then end.
            self.drain(link)
            self._lost(link, str(error))
            return
        if link.closed:
            self._lost(link, "the link was closed here")
            return
        self._want(served[0], (0 if link in self._disarmed else _IN) | (0 if done else _OUT))


class ReadingRole(Protocol):
    """The right to read a link, which one thread has at a time."""

    def acquire(self) -> bool:
        """Acquire the role if no thread has it; never waits."""
        ...

    def release(self) -> None:
        """Release the role."""
        ...
