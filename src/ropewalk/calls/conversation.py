"""The calling side of one link: calls that wait for their answers, and who reads them.

The thread that waits for an answer reads the link itself: it is woken by the kernel
and by nobody else. While one thread has the reading role, the others wait for it to
bring their answers, or to hand on the role:

    wait ──role free?──▶ read: mine? ──▶ return, hand on the role
             │ no                 └─ another's: give it to its owner, read on
             └──▶ sleep until the answer or the role comes

Answers that nobody waits for (futures with callbacks, `await`) are read by the loop. It
is asked to when a callback is registered, or when a future was left alone for `_ALONE_S`.
"""

from __future__ import annotations

import itertools
import select
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from ropewalk.calls.messages import Answer, Call, Cancel, End, Gone, Item, More, Raised
from ropewalk.calls.payloads import Packed, unpack
from ropewalk.errors import FrameError, LinkClosed
from ropewalk.processes.interrupts import interrupts_allowed, interrupts_deferred
from ropewalk.transport.failures import rebuild_error
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop

#: So many calls of one link may be under way; a further one waits, which is how a slow service slows its callers down.
MAX_IN_FLIGHT = 1024
#: Answers of futures that nobody waits for are read by the loop after this long.
_ALONE_S = 0.001
#: The loop stops reading for futures when there were none for so many looks.
_LOOKS = 20
#: A thread that waits looks this often whether the link was closed here.
_LOOK_UP_S = 1.0


class Busy(Exception):
    """Another thread reads the link just now."""


class Lost(Exception):
    """The link ended before the answer came."""

    def __init__(self, why: str, sent: bool = False) -> None:
        super().__init__(why)
        self.sent = sent


class NotServed(Exception):
    """The server is there, and does not serve this object (any more); the call did not run."""


class Pending:
    """A call whose answer has not come."""

    __slots__ = ("alone", "arrived", "conversation", "done", "future", "lock", "number", "received", "why_lost")

    def __init__(self, conversation: Conversation, number: int) -> None:
        self.conversation = conversation
        self.number = number
        self.done = False
        self.received: Received | None = None
        self.why_lost = ""
        self.lock: threading.Lock | None = None  # of the thread that waits and does not read
        self.future: Future[Any] | None = None
        self.arrived: deque[Received] | None = None  # of a stream
        self.alone = False  # nobody waits for it, or perhaps later

    def value(self) -> Any:
        """What the call returned, once it is done.

        Raises:
            Lost: the link ended first.
            NotServed: the call did not run.
            Exception: what the call raised.
        """
        received = self.received
        if received is None:
            raise Lost(self.why_lost)
        return value_of(received, self.conversation.where)


def value_of(received: Received, where: str) -> Any:
    """The value in an answer or item, or raise what it stands for."""
    message = received.message
    kind = type(message)
    if kind is Answer or kind is Item:
        return unpack(received, message.shared)
    if kind is Raised:
        raise rebuild_error(message.failure, where)
    assert kind is Gone
    raise NotServed(message.reason)


class Conversation:
    """The calls of this process over one link."""

    def __init__(self, link: Link, loop: Loop, where: str) -> None:
        self.where = where
        """The peer, in words, for tracebacks."""
        self.closed = ""
        """Why no more calls can be made; empty while they can."""
        self._link = link
        self._loop = loop
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._reading = threading.Lock()
        self._sleepers: dict[Pending, None] = {}
        self._settled: deque[Pending] = deque()
        self._armed = False
        self._checking = False
        self._num_idle_looks = 0
        self._read_at = 0.0
        self._poll = select.poll()
        self._poll.register(link.stream.fileno(), select.POLLIN)
        loop.call_soon(lambda: loop.add_link(link, self._hear, self._end, self))

    @property
    def link(self) -> Link:
        """The link; closed together with the conversation."""
        return self._link

    @property
    def num_pending(self) -> int:
        """Calls under way."""
        return len(self._pending)

    def begin(
        self,
        message: Call,
        packed: Packed,
        *,
        alone: bool = False,
        future: Future[Any] | None = None,
        arrived: deque[Received] | None = None,
    ) -> Pending:
        """Send a call.

        Args:
            message: its number is chosen here.
            packed: its arguments; closed afterwards.
            alone: nobody will wait for it, or perhaps later.
            future: is settled with the answer.
            arrived: takes the items of a stream.

        Raises:
            Lost: the link has ended; the call was not sent.
        """
        if len(self._pending) >= MAX_IN_FLIGHT:
            self._wait_for_room()
        with interrupts_deferred:
            pending = Pending(self, next(self._numbers))
            pending.future, pending.arrived = future, arrived
            message.number = pending.number
            self._pending[pending.number] = pending
            if alone:
                self._leave_alone(pending)
            try:
                self._link.send(message, packed.parts, packed.fds)
            except LinkClosed as error:
                self._pending.pop(pending.number, None)
                raise Lost(str(error)) from None
            finally:
                packed.close()
            if self.closed:
                self._fail(self.closed)  # it ended while this was on its way
            return pending

    def ask(self, message: Call, packed: Packed) -> Any:
        """Call, wait for the answer without a deadline, and return the value: the shortest way.

        Raises:
            Busy: another thread reads; nothing was sent.
            Lost: the link ended, before or after the call was sent: `sent` of the error says which.
            NotServed: the call did not run.
            Exception: what the call raised.
        """
        if self._armed or not self._reading.acquire(blocking=False):
            raise Busy
        link, sent = self._link, False
        try:
            message.number = number = next(self._numbers)
            link.send(message, packed.parts, packed.fds)
            sent = True
            if self._loop.is_entered_here:
                self._loop.hand_over()  # a method of ours waits for another service: the loop must not wait with it
            while True:
                received = link.receive()
                if received is None:
                    raise LinkClosed("the peer closed the link")
                if received.message.number == number:
                    break
                self._hear(received)
        except (LinkClosed, FrameError, ValueError) as error:
            self._end(str(error))
            raise Lost(str(error), sent) from None
        except BaseException:  # Ctrl-C may have torn a frame apart: the next call dials anew
            self._end("a caller was interrupted")
            raise
        finally:
            packed.close()
            self.release()
        return value_of(received, self.where)

    def wait(self, pending: Pending, deadline: float | None) -> bool:
        """Wait until a call is done, or an item of its stream is there; False when the deadline comes first. Then the caller cancels it."""
        if pending.done or pending.arrived:
            return True
        if self._loop.is_entered_here:
            self._loop.hand_over()  # a method of ours waits for another service: the loop must not wait with it
        while not (pending.done or pending.arrived):
            # The loop reads what has callbacks; two who wait for the same bytes would only wake each other.
            if not self._armed and self._reading.acquire(blocking=False):
                with interrupts_deferred:
                    try:
                        in_time = self._read_for(pending, deadline)
                    finally:
                        self.release()
            else:
                in_time = self._sleep(pending, deadline)
            if not (in_time or pending.done or pending.arrived):
                return False
        return True

    def cancel(self, pending: Pending) -> None:
        """Nobody wants the answer any more; may be called when it is done."""
        if self._pending.pop(pending.number, None) is None:
            return
        try:
            self._link.send(Cancel(pending.number))
        except LinkClosed:
            pass

    def ask_for_more(self, pending: Pending, credit: int) -> None:
        """Let a stream send so many more items."""
        try:
            self._link.send(More(pending.number, credit))
        except LinkClosed:
            pass  # its end is noticed by who reads

    def watch(self) -> None:
        """Have the loop read: somebody wants to be called back, instead of waiting."""
        self._loop.call_soon(self._arm)

    def close(self, why: str) -> None:
        """End the link; calls under way are lost. May be called twice, and from any thread."""
        self.closed = self.closed or why
        self._link.close()
        self._fail(self.closed)

    # The reading role, as the loop takes it

    def acquire(self) -> bool:
        """Take the role if nobody reads; never waits."""
        return self._reading.acquire(blocking=False)

    def release(self) -> None:
        """Hand on the role: settle what was read, and wake one who waits if the loop does not read."""
        self._read_at = time.monotonic()
        self._reading.release()
        if self._settled:
            self._settle_all()
        if self._sleepers and not self._armed:
            self._wake_one()

    # Reading

    def _read_for(self, pending: Pending, deadline: float | None) -> bool:
        """With the role: read until `pending` is done; False when the deadline comes first."""
        while not (pending.done or pending.arrived):
            left_s = _LOOK_UP_S if deadline is None else min(deadline - time.monotonic(), _LOOK_UP_S)
            with interrupts_allowed:
                ready = self._poll.poll(max(0.0, left_s) * 1000)
            if not ready:
                if self.closed or self._link.closed:
                    self._end(self.closed or "the link was closed here")
                elif deadline is not None and time.monotonic() >= deadline:
                    return False
                continue
            self._read_some()
        return True

    def _read_some(self) -> None:
        while True:
            try:
                received = self._link.read_ready()
            except BlockingIOError:
                return
            except (LinkClosed, FrameError, ValueError) as error:
                self._end(str(error))
                return
            if received is None:
                self._end("the peer closed the link")
                return
            self._hear(received)
            if not self._link.may_hold_more:
                return

    def _hear(self, received: Received) -> None:
        """Give an answer to its call; with the role."""
        message = received.message
        kind = type(message)
        if kind is Item:
            pending = self._pending.get(message.number)
            if pending and pending.arrived is not None:
                pending.arrived.append(received)
                self._rouse(pending)
            return
        pending = self._pending.pop(message.number, None)
        if pending is None:
            return  # it was cancelled
        if kind is not End:
            pending.received = received
        self._done(pending)

    def _done(self, pending: Pending) -> None:
        pending.done = True
        if pending.future is not None:
            self._settled.append(pending)
        self._rouse(pending)

    def _rouse(self, pending: Pending) -> None:
        lock = pending.lock
        if lock is not None and lock.locked():
            lock.release()

    def _end(self, why: str) -> None:
        """The link has ended."""
        self.closed = self.closed or why
        self._link.close()
        self._fail(why)

    def _fail(self, why: str) -> None:
        while self._pending:
            try:
                _, pending = self._pending.popitem()
            except KeyError:
                break
            pending.why_lost = why
            self._done(pending)
        self._settle_all()

    def _settle_all(self) -> None:
        """Give futures their answers. Their callbacks are user code, to which the loop must not be lost."""
        entered = self._loop.enter() if self._loop.is_here and not self._loop.is_entered_here else None
        while self._settled:
            try:
                _settle(self._settled.popleft())
            except IndexError:  # another thread was quicker
                break
        if entered is not None:
            self._loop.leave(entered)

    # Waiting beside a reader

    def _sleep(self, pending: Pending, deadline: float | None) -> bool:
        """Wait for the answer or for the role; False when the deadline comes first."""
        lock = pending.lock = threading.Lock()
        lock.acquire()
        self._sleepers[pending] = None
        try:
            if pending.done or pending.arrived or (not self._armed and not self._reading.locked()):
                return True  # it changed while we lay down
            left_s = _LOOK_UP_S if deadline is None else min(deadline - time.monotonic(), _LOOK_UP_S)
            if left_s > 0:
                lock.acquire(timeout=left_s)
            if (self.closed or self._link.closed) and not pending.done:
                self._fail(self.closed or "the link was closed here")
            return deadline is None or time.monotonic() < deadline
        finally:
            self._sleepers.pop(pending, None)
            pending.lock = None

    def _wake_one(self) -> None:
        for sleeper in list(self._sleepers):
            if not sleeper.done:
                self._rouse(sleeper)
                return

    def _wait_for_room(self) -> None:
        while len(self._pending) >= MAX_IN_FLIGHT and not self.closed:
            try:
                oldest = next(iter(self._pending.values()))
            except (StopIteration, RuntimeError):  # another thread changed it
                continue
            self.wait(oldest, time.monotonic() + _LOOK_UP_S)

    # Answers that nobody waits for

    def _leave_alone(self, pending: Pending) -> None:
        pending.alone = True
        if not self._checking and not self._armed:
            self._checking = True
            self._loop.call_soon(lambda: self._loop.call_later(_ALONE_S, self._check))

    def _check(self) -> None:
        """On the loop: read for those who were left alone, as long as there are any."""
        if self.closed:
            return
        if any(pending.alone for pending in list(self._pending.values())):
            self._num_idle_looks = 0
            if not self._armed and not self._reading.locked() and time.monotonic() - self._read_at > _ALONE_S:
                self._arm()
        else:
            self._num_idle_looks += 1
            if self._num_idle_looks > _LOOKS:
                self._num_idle_looks = 0
                self._armed = self._checking = False
                self._loop.arm(self._link, False)
                self._wake_one()
                if not any(pending.alone for pending in list(self._pending.values())):
                    return
                self._checking = True  # one came in this moment
        self._loop.call_later(_ALONE_S, self._check)

    def _arm(self) -> None:
        if self.closed or self._armed:
            return
        self._armed = True
        if not self._checking:
            self._checking = True
            self._loop.call_later(_ALONE_S, self._check)
        self._loop.arm(self._link, True)


def _settle(pending: Pending) -> None:
    """Give a future its answer; its callbacks run here."""
    future = pending.future
    assert future is not None
    if future.cancelled():
        return
    try:
        value = pending.value()
    except BaseException as error:
        outcome: BaseException | None = error
        value = None
    else:
        outcome = None
    try:
        if outcome is not None:
            future.set_exception(outcome)
        else:
            future.set_result(value)
    except Exception:  # it was cancelled in this moment
        pass
