"""The calling side of one link: calls that wait for their answers, and the thread that reads them.

The thread that waits for an answer reads the link itself, so the kernel wakes it directly and no other thread has to.
While one thread has the reading role, the others wait until it delivers their answers or passes the role on:

    wait ──role free?──▶ read: mine? ──▶ return, pass on the role
             │ no                 └─ another's: deliver it, read on
             └──▶ sleep until the answer or the role comes

Answers for which no thread waits (futures, `await`) are read by the loop, which is then `armed`: at once if a callback
is to be called, otherwise when nothing has been read for `_ALONE_S`. While the loop is armed, waiting threads only
sleep. A thread that lays down the role or stops sleeping, for whatever reason, makes sure that a sleeping thread takes
the role if the loop does not read.

Small calls that begin while others are under way are held and sent together: with the next call that does not wait,
before a thread waits, or when the loop looks. Items of queues are even gathered into one call (batcher.py), which is
sent before any other call.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, cast

from ropewalk.calls.acknowledgements import Acknowledgements
from ropewalk.calls.batcher import Batcher
from ropewalk.calls.call_context import current
from ropewalk.calls.messages import (
    Answer,
    Begun,
    Call,
    Cancel,
    More,
    Several,
    StreamEnd,
    StreamItem,
    Taken,
)
from ropewalk.calls.payloads import Keep, PackedValue
from ropewalk.calls.pending import AwaitedCall, Busy, Dropped, Lost, PendingCall, value_of
from ropewalk.calls.spare_connections import SpareConnections
from ropewalk.errors import FrameError, LinkClosed
from ropewalk.processes.interrupts import interrupts_allowed, interrupts_deferred, may_block, may_serve
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop, Timer
from ropewalk.transport.streams.stream import Reception

MAX_IN_FLIGHT = 1024
"""Maximum number of calls under way over one link for which no thread waits; a further call waits, which slows callers
down to the speed of the service. Waiting threads limit themselves, and may depend on the effect of a further call."""
_ALONE_S = 0.001
"""Seconds after which calls for which no thread waits are read, and sent if they were held."""
_ARMED_S = 0.02
"""Interval in seconds at which the loop looks while it is armed; after the same time without such calls it disarms."""
_LOOK_UP_S = 1.0
"""Interval in seconds at which a waiting thread checks whether the link was closed here."""
_MOST_HELD = 16
"""Maximum number of small calls sent together: the server can begin with these while the next ones are made."""
_NOBODY = -1
"""A target that no server serves, so that it answers at once."""
_OVER = PendingCall("")
"""Stands for the call for which a thread has read, while that thread lays down the role."""
_OVER.answered = True


class RpcConnection:
    """The calls of this process over one link.

    Args:
        link: the link, which it closes.
        loop: reads answers for which no thread waits.
        where: the peer, in words, for tracebacks.
        address: the peer's address.
        dial: makes a further connection to the peer; without it there are no spares.
    """

    def __init__(
        self,
        link: Link,
        loop: Loop,
        where: str,
        address: str = "",
        dial: Callable[[], RpcConnection] | None = None,
    ) -> None:
        self.where = where
        """The peer, in words, for tracebacks."""
        self.address = address
        """The peer's address, by which others know it."""
        self.closed: str = ""
        """The reason why no more calls can be made; empty while they can."""
        self.link = link
        """The link, closed together with this connection."""
        # To another host each would have to prove itself over the network.
        self.spares: SpareConnections | None = SpareConnections(dial) if dial and link.stream.carries_fds else None
        """Further connections to the peer, closed together with this one."""
        self._loop = loop
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingCall] = {}
        self._alone: dict[int, PendingCall] = {}
        self._awaited: dict[int, AwaitedCall] = {}
        self._watched: dict[int, PendingCall] = {}
        self._for_room: deque[PendingCall] = deque()
        # The reading role. It is an RLock because that knows its owner, wherever Ctrl-C interrupts the owner.
        self._role: Any = threading.RLock()
        self._notes = link.stream.carries_fds
        """Whether the link notes what it sends and receives, so that an interrupt of a call loses nothing."""
        self.may_tear = True
        """Whether Ctrl-C in a call may end a link that makes no notes: not if its peer takes that for the end of this
        process, as depots and managers do, which then drop what this process holds."""
        self.reading_thread: int = 0
        """Identity of the thread that has the role; 0 while no thread has it."""
        self._asked = 0
        """The number of the call for which that thread waits, if it is not among the pending ones."""
        self._read_for_it: PendingCall | None = None
        """The call for which that thread waits; None if it is not among the pending ones."""
        self._read_on: PendingCall | None = None
        """Stands for such a call once a signal handler in the same thread reads as well."""
        self._sleepers: dict[threading.Lock, PendingCall] = {}
        self._lying_down = threading.Lock()
        self._settled: deque[PendingCall] = deque()
        self._armed = False
        self._looking = False
        self._timer: Timer | None = None
        self._next_due = float("inf")
        self._read_at = 0.0
        self.acks: Acknowledgements = Acknowledgements(link, self._send)
        """Of the values that answers only lent."""
        self.batcher: Batcher = Batcher(self, loop)
        """Items for which no thread waits."""
        loop.call_soon(lambda: loop.add_link(link, self._hear, self._end, self))

    @property
    def num_pending(self) -> int:
        """Number of calls under way."""
        return len(self._pending) + bool(self.batcher.has_some)

    # Calls

    def beside(self) -> RpcConnection:
        """The connection for a call that a thread makes and waits for, while another thread reads this one."""
        if (
            self.spares is None
            or not self.may_tear
            or len(self._pending) > len(self._awaited)
            or self._armed
            or self.batcher.has_some
            or self.reading_thread == get_ident()  # in a signal handler
        ):
            return self
        return self.spares.free() or self

    def ask(self, message: Call, packed: PackedValue) -> Any:
        """Call, wait for the answer without a deadline, and return the value: the fast path for a single call.

        Raises:
            Busy: other calls are under way; nothing was sent.
            Lost: the link ended.
            NotServed: the call did not run.
            Exception: the call's own exception.
        """
        if self._notes and may_block():
            received, pending = self._ask_alone(message, packed, notes=True)
        elif self.may_tear and may_serve():
            received, pending = self._ask_alone(message, packed)
        else:  # there are signal handlers, which may call as well, or Ctrl-C must not tear the link
            with interrupts_deferred:
                received, pending = self._ask_alone(message, packed)
        if pending:
            return self._wait_and_take(pending)
        assert received
        return value_of(received, self.where)

    def _ask_alone(
        self, message: Call, packed: PackedValue, *, notes: bool = False
    ) -> tuple[Received | None, PendingCall | None]:
        """Call and read the answer, or return a pending call if others have their answers first; raises as `ask`.

        With `notes`, the thread waits in the system call that receives, instead of polling before it, and an interrupt
        at any moment leaves the link whole.
        """
        if self.batcher.has_some:
            self.batcher.send()
        role, link, received, pending = self._role, self.link, None, None
        if self._pending or self._armed or role._is_owned():
            raise Busy
        number = message.number = next(self._numbers)
        sent = torn = False
        noted_sent, noted_received = list[int](), list[Reception]()
        # Ctrl-C is not deferred here, because that takes longer than everything else. The handler at the end completes
        # any step that it interrupts; without notes, calls that began after this one can be torn.
        try:
            if not role.acquire(False):
                raise Busy
            self.reading_thread, self._asked = get_ident(), number
            self._read_for_it = self._read_on = None
            if not notes:
                torn = True
                link.send(message, packed.parts, packed.fds or ())
            elif packed.fds or not link.send_alone(message, packed.parts, noted_sent):
                with interrupts_deferred:
                    link.send(message, packed.parts, packed.fds or ())
                    noted_sent.append(0)
            sent, torn = True, False
            self._loop.hand_over()  # a method here may wait for another service: the loop must not wait with it
            while received is None and not self._settled and not self._read_on:
                if notes:
                    received = self._take(number, noted_received)
                    noted_received.clear()
                    continue
                if not link.look():
                    with interrupts_allowed:  # if they are deferred at all
                        link.wait(_LOOK_UP_S)  # most interrupts arrive here
                if self._read_on:
                    break
                torn = True
                received = self._read_until(number)
                torn = False
            if received is None:  # futures of others can be settled, which must not wait for this answer
                pending = self._read_on or self._stand_in(number)
            self._release()
        except Busy:
            raise
        except BaseException as error:
            with interrupts_deferred:
                sent = sent or bool(noted_sent)
                if noted_received:  # perhaps the answer of another thread
                    link.reader.put_back(noted_received)
                    self._read_some()
                if isinstance(error, LinkClosed):
                    torn_by = str(error)
                else:
                    torn_by = "a call was interrupted" if torn else ""
                self._abandon(number, sent, torn_by)
            if isinstance(error, LinkClosed):
                raise Lost(self.closed or str(error), sent) from None
            raise
        return received, pending

    def _stand_in(self, number: int) -> PendingCall:
        """Make a pending call for a call that was read without one."""
        pending = PendingCall(self.where)
        pending.number, self._pending[number] = number, pending
        return pending

    def exchange(self, message: Call, packed: PackedValue, keep: Keep | None = None) -> Any:
        """Call, and wait for the answer without a deadline; Ctrl-C never tears the link.

        For the peer of such calls this link stands for this process: the peer would take an end of the link for an end
        of the process, and a value that is neither taken nor given back would have no owner.

        Args:
            message: the call.
            packed: its arguments.
            keep: called with the pickled values that come with the answer; without it there are none.

        Raises:
            Lost, NotServed, Exception: as `ask`.
        """
        with interrupts_deferred:
            received = self._exchange(message, packed)
            kind = cast("type[Any]", type(received.message))
            lent = kind is Several or (kind is Answer and received.message.lent)
            if keep and kind is Several:
                keep(received.parts[1:])
            try:
                with interrupts_allowed:
                    value = value_of(received, self.where)
            except Exception:  # a value that arrived and cannot be unpickled has no other owner either
                if lent:
                    self.acks.took(message.number)
                raise
            except BaseException:
                if lent:
                    self._send(Cancel(message.number))
                raise
            if lent:
                self.acks.took(message.number)
            return value

    def _exchange(self, message: Call, packed: PackedValue) -> Received:
        """The answer to a call; with interrupts deferred."""
        received = pending = None
        if not packed.fds:
            with contextlib.suppress(Busy):
                received, pending = self._ask_alone(message, packed)
        if received is None:
            if pending is None:
                pending = PendingCall(self.where)
                self.begin(message, packed, pending)
            try:
                self._wait(pending, None)
            finally:
                if not pending.answered:  # Ctrl-C
                    self.cancel(pending)
            received, pending.received = pending.received, None
            if received is None:
                raise Lost(pending.why_lost)
        return received

    def begin(self, message: Call, packed: PackedValue, pending: PendingCall, *, wait_for_room: bool = True) -> None:
        """Send a call; `pending` receives its answer.

        Args:
            message: the call.
            packed: its arguments.
            pending: stands for the call here.
            wait_for_room: whether to wait while `MAX_IN_FLIGHT` calls are under way; must be False on the loop, or with
                a lock held that the loop needs.

        Raises:
            Lost: the link has ended; the call was not sent.
            TimeoutError: there was no room until `pending.due`.
        """
        if self.batcher.has_some:
            self.batcher.send()
        if pending.alone and wait_for_room and len(self._alone) >= MAX_IN_FLIGHT:
            self.wait_for_room(pending.due)
        hold = pending.alone and bool(self._pending) and not self._armed and not packed.fds
        self.begin_now(message, packed, pending, hold=hold)

    def begin_now(self, message: Call, packed: PackedValue, pending: PendingCall, *, hold: bool = False) -> None:
        """As `begin`, without a limit on the calls under way.

        Args:
            message: the call.
            packed: its arguments.
            pending: receives the answer.
            hold: whether it may be held for a moment, to be sent with other calls.

        Raises:
            Lost: the link has ended; the call was not sent.
        """
        number = pending.number = message.number = next(self._numbers)
        try:
            self._pending[number] = pending
            if pending.alone:
                self._leave_alone(pending)
            elif type(pending) is AwaitedCall:
                self._awaited[number] = pending
            if not hold:
                with interrupts_deferred:
                    self.link.send(message, packed.parts, packed.fds or ())
            else:
                with interrupts_deferred:
                    num_held = self.link.hold(message, packed.parts)
                if num_held >= _MOST_HELD or self._armed:
                    self.flush()
        except BaseException as error:
            self._forget(pending)
            if isinstance(error, LinkClosed):
                raise Lost(self.closed or str(error), sent=False) from None
            raise
        if self.closed:
            self._end(self.closed)  # it ended while this call was being sent

    def wait(self, pending: PendingCall, due: float | None) -> bool:
        """Wait until a call is answered, or an item of its stream has arrived; False if `due` comes first."""
        if pending.answered or pending.arrived:
            return True
        running = current.get()
        if running is None or due is not None:
            with interrupts_deferred:
                return self._wait(pending, due)
        running.waits_for = self.address, pending
        try:
            with interrupts_deferred:
                return self._wait(pending, due)
        finally:
            running.waits_for = None

    def _wait(self, pending: PendingCall, due: float | None) -> bool:
        """As `wait`, with interrupts deferred."""
        self.flush()
        self._loop.hand_over()  # a method here may wait for another service: the loop must not wait with it
        try:
            while not (pending.answered or pending.arrived):
                # Two threads that wait for the same bytes would only wake each other.
                if self._role._is_owned():
                    in_time = self._read_in_handler(pending, due)
                elif not self._armed and self._role.acquire(False):
                    self.reading_thread, self._read_for_it = get_ident(), pending
                    try:
                        in_time = self._read_for(pending, due)
                    finally:
                        self._read_for_it = _OVER  # a closed connection would keep the call, and its result, for good
                        self._release()
                else:
                    if self._armed and not self._watched:
                        self._loop.call_soon(self._disarm)
                    in_time = self._sleep(pending, due)
                if self.closed:
                    self._lose(pending)
                if not in_time and not (pending.answered or pending.arrived):
                    return False
            return True
        finally:
            self._pass_on()

    def cancel(self, pending: PendingCall) -> None:
        """The answer is no longer wanted; may be called when it has arrived."""
        if self._forget(pending):
            self._send(Cancel(pending.number))

    def cancel_soon(self, pending: PendingCall) -> None:
        """As `cancel`, on the loop; the garbage collector may call it while this thread holds the lock of the link."""
        self._loop.call_soon(lambda: self.cancel(pending))

    def give_up(self, pending: PendingCall) -> None:
        """Give up a future whose deadline has passed."""
        if self._forget(pending):
            self._send(Cancel(pending.number))
            pending.expire()

    def ask_for_more(self, pending: PendingCall, credit: int) -> None:
        """Let a stream send `credit` more items."""
        self._send(More(pending.number, credit))

    def watch(self, pending: PendingCall) -> None:
        """Have the loop read, because a callback is to be called."""
        self._watched[pending.number] = pending
        if pending.answered:
            self._watched.pop(pending.number, None)
        elif not self._armed:
            self._loop.call_soon(self._arm)

    def flush(self) -> None:
        """Send the held calls and the gathered items."""
        if self.batcher.has_some:
            self.batcher.send()
        if self.link.held:
            with interrupts_deferred:
                self.link.flush()

    def close(self, why: str) -> None:
        """End the link; calls under way are lost. May be called twice, and from any thread."""
        self._end(why)

    def close_copy(self) -> None:
        """In a forked child: close the copy of the link without sending anything."""
        self.link.close_copy()
        if self.spares:
            self.spares.close_copies()

    # The reading role, as taken by the loop

    def acquire(self) -> bool:
        """Take the role if no thread reads; never waits."""
        if self._role._is_owned() or not self._role.acquire(False):
            return False
        self.reading_thread = get_ident()
        return True

    def release(self) -> None:
        """Lay down the role."""
        self._release()

    def _release(self) -> None:
        if self._alone:  # for which alone it is asked
            self._read_at = time.monotonic()
        self.reading_thread = 0
        self._role.release()
        if self._settled:
            self._settle_all()
        if self._sleepers:
            self._pass_on()

    def _abandon(self, number: int, sent: bool, torn_by: str) -> None:
        """Release the role of a thread that was interrupted while it had the role or was about to lay it down."""
        self._pending.pop(number, None)
        if torn_by:  # an unknown part of a frame was sent: the next call dials again
            self._end(torn_by)
        elif sent:
            self._send(Cancel(number))
        if self._role._is_owned():
            self._release()
        self._settle_all()
        self._pass_on()

    # Reading

    def _read_for(self, pending: PendingCall, due: float | None) -> bool:
        """With the role: read until `pending` is answered, or others are; False if `due` comes first."""
        while not (pending.answered or pending.arrived or self._settled or self.closed):
            if not self.link.reader.may_hold_more:
                left_s = _LOOK_UP_S if due is None else max(0.0, min(due - time.monotonic(), _LOOK_UP_S))
                with interrupts_allowed:
                    ready = self.link.wait(left_s)
                if not ready:
                    if self.link.closed:
                        self._end("the link was closed here")
                    elif due is not None and time.monotonic() >= due:
                        return False
                    continue
            self._read_some()
        return True

    def _read_in_handler(self, pending: PendingCall, due: float | None) -> bool:
        """As `_read_for`, in a signal handler: the interrupted thread has the role, and continues afterwards."""
        outer = self._read_for_it or self._read_on
        if outer is None:
            outer = self._read_on = self._stand_in(self._asked)
        in_time = self._read_for(pending, due)
        self._settle_all()
        if outer.answered or outer.arrived:  # the thread sleeps for this, and a further answer wakes it
            with contextlib.suppress(Lost):
                self.begin_now(Call(0, _NOBODY, "", False, None, (), (), 0), PackedValue(()), Dropped(self.where))
        return in_time

    def _read_some(self) -> None:
        """With the role: read all messages that have arrived."""
        while True:
            try:
                received = self.link.read_ready()
            except BlockingIOError:
                return
            except (LinkClosed, FrameError, ValueError) as error:
                self._end(str(error))
                return
            if received is None:
                self._end("the peer closed the link")
                return
            self._hear(received)
            if not self.link.reader.may_hold_more:
                return

    def _take(self, number: int, noted: list[Reception]) -> Received | None:
        """With the role: wait for answers, and return that to a call that is not pending, if it is among them.

        An interrupt loses nothing: bytes that were received and not delivered are in `noted`.

        Raises:
            LinkClosed: the link has ended.
        """
        link = self.link
        try:
            if link.reader.is_idle:
                received = link.receive_alone(noted)
                if received is not None and received.message.number == number:
                    return received
        except LinkClosed as error:
            self._end(str(error))
            raise
        with interrupts_deferred:  # several answers, or a large one, or that of another call
            if noted:
                link.reader.put_back(noted)
            elif not link.look():
                with interrupts_allowed:
                    link.wait(_LOOK_UP_S)
            return self._read_until(number)

    def _read_until(self, number: int) -> Received | None:
        """With the role: return the answer to a call that is not pending, if it has arrived; deliver all other answers.

        Raises:
            LinkClosed: the link has ended.
        """
        found, link = None, self.link
        try:
            while True:
                received = link.receive(wait=False)
                if received is None:
                    raise LinkClosed("the peer closed the link")
                if received.message.number != number:
                    with interrupts_deferred:  # its caller waits for it, or has a callback
                        self._hear(received)
                else:
                    found = received
                if not link.reader.may_hold_more:  # nothing reports what the link has read already: leave nothing there
                    return found
        except BlockingIOError:
            return found
        except (LinkClosed, FrameError, ValueError) as error:
            self._end(str(error))
            if found:
                return found
            raise LinkClosed(str(error)) from None

    def _hear(self, received: Received) -> None:
        """Deliver an answer to its call; with the role."""
        message = received.message
        kind = cast("type[Any]", type(message))  # (of an Any, for which a checker has no name)
        if kind is StreamItem:
            pending = self._pending.get(message.number)
            if pending and pending.arrived is not None:
                pending.arrived.append(received)
                _rouse(pending)
            return
        pending = self._pending.get(message.number)
        if pending is None or not self._forget(pending):
            return  # the call was cancelled
        if kind is not StreamEnd:
            pending.received = received
        self._answer(pending)
        if self._for_room and len(self._alone) < MAX_IN_FLIGHT:
            self._answer(self._for_room.popleft())

    def _answer(self, pending: PendingCall) -> None:
        pending.answered = True
        if pending.alone:
            self._settled.append(pending)
        if pending.locks:
            _rouse(pending)

    def _forget(self, pending: PendingCall) -> bool:
        """Remove a call from those under way; False if it was not among them."""
        number = pending.number
        if pending.alone:
            self._alone.pop(number, None)
            if self._watched:
                self._watched.pop(number, None)
        elif self._awaited:
            self._awaited.pop(number, None)
        return self._pending.pop(number, None) is not None

    def _end(self, why: str) -> None:
        """Mark the link as ended, and fail its calls."""
        with interrupts_deferred:
            self.closed = self.closed or why
            self.link.close()
            self.acks.close()
            if self.spares:
                self.spares.close(self.closed)
            self._fail(self.closed)

    def _lose(self, pending: PendingCall) -> None:
        """Fail a call because the link has ended, perhaps by an interrupt while its answer was being delivered."""
        if not pending.answered and pending.number not in self._pending:
            pending.why_lost = self.closed
            self._answer(pending)

    def _fail(self, why: str) -> None:
        for pending in list(self._pending.values()):
            if self._forget(pending):
                pending.why_lost = why
                self._answer(pending)
        for room in list(self._for_room):
            self._answer(room)
        self._settle_all()

    def _settle_all(self) -> None:
        """Finish the futures. Their callbacks are user code, which must not stop the loop."""
        entered = self._loop.enter() if self._loop.is_here and not self._loop.is_entered_here else None
        with interrupts_deferred:  # they may be the futures of other threads
            while self._settled:
                try:
                    self._settled.popleft().settle()
                except IndexError:  # another thread was quicker
                    break
        if entered is not None:
            self._loop.leave(entered)

    def _send(self, message: Cancel | More | Taken | Begun) -> None:
        try:
            with interrupts_deferred:
                self.link.send(message)
        except LinkClosed:
            pass  # the reading thread notices the end of the link

    # Waiting beside a reader

    def _wait_and_take(self, pending: PendingCall) -> Any:
        try:
            self.wait(pending, None)
            return pending.value()
        finally:
            if not pending.answered:  # Ctrl-C
                self.cancel(pending)

    def _sleep(self, pending: PendingCall, due: float | None) -> bool:
        """Sleep until the answer or the role comes; False when `due` comes first."""
        lock = threading.Lock()
        lock.acquire()
        with self._lying_down:
            pending.locks = (*pending.locks, lock)
        self._sleepers[lock] = pending
        try:
            if pending.answered or pending.arrived or not (self._armed or self.reading_thread):
                return True  # it changed while this thread prepared to sleep
            left_s = _LOOK_UP_S if due is None else min(due - time.monotonic(), _LOOK_UP_S)
            if left_s > 0:
                with interrupts_allowed:
                    lock.acquire(timeout=left_s)
            if self.link.closed and not pending.answered:
                self._end("the link was closed here")
            return due is None or time.monotonic() < due
        finally:
            del self._sleepers[lock]
            with self._lying_down:
                pending.locks = tuple(other for other in pending.locks if other is not lock)

    def _pass_on(self) -> None:
        """Wake a sleeping thread if no thread reads: it takes the role, or finds its answer and calls this in turn."""
        if self._sleepers and not self._armed and not self.reading_thread:
            for lock in list(self._sleepers):
                if _release(lock):
                    return

    def wait_for_room(self, due: float | None = None) -> None:
        """Wait until fewer than `MAX_IN_FLIGHT` calls for which no thread waits are under way.

        Raises:
            TimeoutError: not until `due`.
        """
        while len(self._alone) >= MAX_IN_FLIGHT and not self.closed:
            room = PendingCall(self.where)
            self._for_room.append(room)
            try:
                if len(self._alone) >= MAX_IN_FLIGHT and not self.wait(room, due):
                    raise TimeoutError(f"{MAX_IN_FLIGHT} calls to {self.where} were under way and none was answered")
            finally:
                with contextlib.suppress(ValueError):
                    self._for_room.remove(room)

    # The loop: answers for which no thread waits

    def _leave_alone(self, pending: PendingCall) -> None:
        self._alone[pending.number] = pending
        if pending.due is not None:
            self._next_due = min(self._next_due, pending.due)
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look_later)

    def _look_later(self) -> None:
        if self._timer:
            self._timer.cancel()
        pause_s = _ARMED_S if self._armed else _ALONE_S
        self._timer = self._loop.call_later(min(pause_s, max(0.0, self._next_due - time.monotonic())), self._look)

    def _look(self) -> None:
        """Read for calls without a waiting thread, as long as there are any."""
        if self.closed:
            return
        self.flush()
        now = time.monotonic()
        if now >= self._next_due:
            self._expire(now)
        if not self._alone:
            self._disarm()
            self._looking = False
            if not self._alone or self._looking:
                return
            self._looking = True  # a call was added at this moment
        elif not self._armed and not self.reading_thread and now - self._read_at > _ALONE_S:
            self._arm()
        self._look_later()

    def _expire(self, now: float) -> None:
        self._next_due = float("inf")
        for pending in list(self._alone.values()):
            if pending.due is not None:
                if pending.due <= now:
                    self.give_up(pending)
                else:
                    self._next_due = min(self._next_due, pending.due)

    def _arm(self) -> None:
        if not self.closed and not self._armed:
            self._armed = True
            self.flush()
            self._loop.arm(self.link, True)

    def _disarm(self) -> None:
        if self._armed and not self._watched:
            self._armed = False
            self._loop.arm(self.link, False)
            self._pass_on()


def _rouse(pending: PendingCall) -> None:
    """Wake the threads that wait for a call while another thread reads."""
    for lock in pending.locks:
        _release(lock)


def _release(lock: threading.Lock) -> bool:
    try:
        lock.release()
    except RuntimeError:  # its thread was woken already
        return False
    return True


__all__ = ["MAX_IN_FLIGHT", "RpcConnection"]
