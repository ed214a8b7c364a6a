"""The serving side of calls: objects, whose turn it is, and the way back of what they return.

    link ──Call──▶ loop: turn? ──yes──▶ method, in this very thread ──▶ Answer
                     │ no: waits in its lane         (a deputy goes on with the loop if it lasts)
                     ├─ @concurrent: in a thread of its own
                     ├─ @batched: gathers, then one call for many
                     └─ a generator: each item is a turn of its own

The loop hears cancels, stops and questions of status meanwhile, whatever a method does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.calls.batches import BatchQueue, split_compatible, stack, unstack
from ropewalk.calls.frame import Frame, current, new_key
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import Answer, Call, Cancel, End, Gone, Item, More, Raised
from ropewalk.calls.payloads import Packed, pack_value, unpack
from ropewalk.calls.threads import Threads
from ropewalk.calls.turns import Lane
from ropewalk.errors import CallCycle, DeadlineExceeded, LinkClosed, ProgramStopped
from ropewalk.transport.failures import Failure, failure_of, not_sendable
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop

logger = logging.getLogger(__name__)

#: Calls that waited are begun for so long in one turn of the loop.
_TURN_S = 0.001


class Incoming(Frame):
    """A call that has arrived: what it asks for, and where its answer goes."""

    __slots__ = ("link", "number", "received", "served", "since", "way")

    def __init__(self, served: Served, way: Way, link: Link, message: Call, received: Received) -> None:
        self.chain = message.chain
        self.deadline = None if message.timeout_s is None else time.monotonic() + message.timeout_s
        self.label = way.label
        self.key = new_key()
        self.cancelled = False
        self.served = served
        self.way = way
        self.link = link
        self.number = message.number
        self.received: Received | None = received
        self.since = 0.0

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpickle them; once."""
        received, self.received = self.received, None
        assert received is not None
        message: Call = received.message
        value = unpack(received, message.shared)
        return value if message.keywords else (value, {})


@dataclass(slots=True, eq=False)
class Way:
    """How one method of one object is called."""

    method: Callable[..., Any]
    facts: MethodFacts
    label: str
    lane: Lane
    batch: BatchQueue[Incoming] | None = None
    in_thread: bool = False


class Stream(Incoming):
    """A generator at work; it has a turn for each item."""

    __slots__ = ("credit", "in_turn", "items")

    def __init__(self, served: Served, way: Way, link: Link, message: Call, received: Received) -> None:
        Incoming.__init__(self, served, way, link, message, received)
        self.credit = message.credit
        self.in_turn = False
        self.items: Iterator[Any] | None = None


class Batch(Frame):
    """Calls that were merged into one; a call out of it belongs to the chains of them all."""

    __slots__ = ("calls", "served", "since", "way")

    def __init__(self, way: Way, served: Served, calls: list[Incoming]) -> None:
        chain = tuple(origin for call in calls for origin in call.chain)
        Frame.__init__(self, chain, None, way.label)
        self.calls = calls
        self.way = way
        self.served = served
        self.since = 0.0


class Served:
    """One object that is served."""

    def __init__(self, target: int, obj: object, methods: Mapping[str, MethodFacts], label: str) -> None:
        self.target = target
        self.label = label
        self.lock = threading.Lock()
        self.lane = Lane()
        self.num_done = 0
        self.closed = ""
        self.ways: dict[str, Way] = {}
        for name, facts in methods.items():
            beside = facts.concurrency > 1
            way = Way(getattr(obj, name), facts, f"{label}.{name}", Lane(facts.concurrency) if beside else self.lane)
            way.in_thread = beside
            if facts.batch_size:
                way.batch = BatchQueue(facts.batch_size, facts.batch_wait_s)
            self.ways[name] = way

    @property
    def running(self) -> list[Any]:
        """The calls that run."""
        lanes = {id(way.lane): way.lane for way in self.ways.values()}.values()
        return [call for lane in lanes for call in list(lane.running.values())]

    @property
    def num_waiting(self) -> int:
        """Calls that wait for their turn, or for company."""
        lanes = {id(way.lane): way.lane for way in self.ways.values()}.values()
        gathering = sum(len(way.batch) for way in self.ways.values() if way.batch)
        return sum(len(lane.waiting) for lane in lanes) + gathering


class CallServer:
    """Serves objects to the links that its host hands over."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._threads = Threads("ropewalk-call")
        self._served: dict[int, Served] = {}
        self._num_served = 0
        self._calls: dict[Link, dict[int, Incoming]] = {}
        """Calls with an answer to come, which may be cancelled."""

    # Any thread

    def serve(self, obj: object, methods: Mapping[str, MethodFacts], label: str) -> Served:
        """Let an object be called from now on."""
        self._num_served += 1
        served = Served(self._num_served, obj, methods, label)
        self._served[served.target] = served
        return served

    def refuse(self, served: Served, reason: str) -> None:
        """Answer no new calls of an object; those that have begun, and those that wait, go on."""
        served.closed = reason

    def withdraw(self, served: Served) -> None:
        """Serve an object no longer: calls that wait for it do not run."""
        self._served.pop(served.target, None)
        served.closed = served.closed or "it has ended"
        with served.lock:
            waiting = [call for way in served.ways.values() for call in way.lane.waiting]
            for way in served.ways.values():
                way.lane.waiting.clear()
                if way.batch:
                    waiting += way.batch.take()
        for call in waiting:
            for each in call.calls if isinstance(call, Batch) else [call]:
                self._finish(each, Gone(each.number, served.closed))  # type: ignore[union-attr]

    def wait_idle(self, served: Served, timeout_s: float) -> bool:
        """Wait until no call of an object runs or waits; False if that takes too long."""
        due = time.monotonic() + timeout_s
        while served.running or served.num_waiting:
            if time.monotonic() > due:
                return False
            time.sleep(0.002)
        return True

    def close(self) -> None:
        """Serve nothing more; may be called twice."""
        for served in list(self._served.values()):
            self.withdraw(served)
        self._threads.close()

    def in_turn(self, served: Served, action: Callable[[], None]) -> None:
        """Run something in a thread of its own when no call of the object's own lane runs."""
        call = _Errand((), None, served.label)
        call.action, call.served = action, served
        with served.lock:
            begun = served.lane.arrive(call)
        if begun:
            self._threads.run(lambda: self._run_errand(call))

    # The loop

    def attend(self, link: Link) -> None:
        """Hear a link that is up; from the loop's thread."""
        self._calls[link] = {}
        self._loop.add_link(link, lambda received: self._hear(link, received), lambda _why: self._gone(link))

    def _hear(self, link: Link, received: Received) -> None:
        message = received.message
        if type(message) is Call:
            self._call(link, message, received)
        elif type(message) is Cancel:
            self._cancel(link, message.number)
        elif type(message) is More:
            stream = self._calls[link].get(message.number)
            if isinstance(stream, Stream):
                stream.credit += message.credit
                self._step(stream)

    def _call(self, link: Link, message: Call, received: Received) -> None:
        served = self._served.get(message.target)
        if served is None or served.closed:
            _close_fds(received)
            _send(link, Gone(message.number, served.closed if served else ""))
            return
        way = served.ways.get(message.method)
        if way is None:
            _close_fds(received)
            error = AttributeError(f"{served.label} has no method {message.method!r}; it has: {', '.join(served.ways)}")
            _send(link, Raised(message.number, failure_of(error)))
            return
        if way.facts.streams:
            stream = self._calls[link][message.number] = Stream(served, way, link, message, received)
            self._step(stream)
            return
        call = self._calls[link][message.number] = Incoming(served, way, link, message, received)
        if way.batch:
            self._gather(call, way.batch)
        else:
            self._begin(call)

    def _begin(self, call: Incoming | Batch) -> None:
        """Run a call now, or let it wait for its turn."""
        served, way = call.served, call.way
        try:
            with served.lock:
                begun = way.lane.arrive(call)
        except CallCycle as error:
            for each in call.calls if isinstance(call, Batch) else [call]:
                self._finish(each, Raised(each.number, failure_of(error)))
            return
        if not begun:
            return
        if way.in_thread:
            self._threads.run(lambda: self._run(call))
            return
        entered = self._loop.enter()
        self._run(call)
        self._loop.leave(entered)

    def _continue(self, served: Served, lane: Lane) -> None:
        """Begin calls that waited; on the loop, for a moment."""
        due = time.monotonic() + _TURN_S
        while True:
            with served.lock:
                call: Any = lane.begin_next()
            if call is None:
                return
            if isinstance(call, _Errand):
                self._threads.run(lambda call=call: self._run_errand(call))
                continue
            if call.way.in_thread:
                self._threads.run(lambda call=call: self._run(call))
                continue
            entered = self._loop.enter()
            self._run(call)
            if not self._loop.leave(entered):
                return  # whoever has the loop now was told to go on
            if time.monotonic() > due:
                self._loop.call_soon(lambda: self._continue(served, lane))
                return

    def _run(self, call: Incoming | Batch) -> None:
        """Run a call whose turn it is, and answer it."""
        served, lane = call.served, call.way.lane
        call.since = time.monotonic()
        if type(call) is Incoming:
            answer, packed = self._run_one(call)
            answers = None
        elif isinstance(call, Stream):
            answer, packed = self._run_step(call)
            answers = None
        else:
            assert isinstance(call, Batch)
            answers = self._run_batch(call)
            answer = packed = None
        served.num_done += 1
        with served.lock:
            more = lane.finish(call)
        if more:
            self._loop.call_soon(lambda: self._continue(served, lane))
        # The turn is over before its answer is sent: whoever has the answer may call again at once.
        if answers is None:
            self._finish(call, answer, packed)  # type: ignore[arg-type]
            return
        for each, answer, packed in answers:
            self._finish(each, answer, packed)

    def _run_one(self, call: Incoming) -> tuple[Any, Packed | None]:
        if call.cancelled:
            return None, None
        if call.deadline is not None and call.since >= call.deadline:
            return Raised(call.number, _too_late(call)), None
        token = current.set(call)
        try:
            received, call.received = call.received, None
            message: Call = received.message  # type: ignore[union-attr]
            args = unpack(received, message.shared)  # type: ignore[arg-type]
            if message.keywords:
                args, kwargs = args
                value = call.way.method(*args, **kwargs)
            else:
                value = call.way.method(*args)
            return _packed(call, value, Answer)
        except BaseException as error:
            return Raised(call.number, failure_of(error, __name__)), None
        finally:
            current.reset(token)

    def _finish(self, call: Incoming, answer: Any, packed: Packed | None = None) -> None:
        """Send what became of a call, unless nobody wants to know."""
        if type(answer) is not Item and (calls := self._calls.get(call.link)):
            calls.pop(call.number, None)
        if call.received is not None:
            _close_fds(call.received)
        if answer is None or call.cancelled:
            if packed:
                packed.close()
            return
        try:
            if packed is None:
                call.link.send(answer)
            else:
                call.link.send(answer, packed.parts, packed.fds)
                if packed.fds:
                    packed.close()
        except LinkClosed:
            pass  # the loop notices by itself

    def _cancel(self, link: Link, number: int) -> None:
        call = self._calls.get(link, {}).pop(number, None)
        if call is None:
            return
        call.cancelled = True
        with call.served.lock:
            waited = call.way.lane.withdraw(call)
            if not waited and call.way.batch:
                call.way.batch.discard(call)
        if isinstance(call, Stream) and not call.in_turn:
            self._threads.run(lambda: _close_items(call))

    def _gone(self, link: Link) -> None:
        """A caller is gone: what it asked for and has not begun is not done for nobody."""
        for number in list(self._calls.get(link, {})):
            self._cancel(link, number)
        self._calls.pop(link, None)

    # Streams

    def _step(self, stream: Stream) -> None:
        """Let a stream yield its next item, if it may and does not already."""
        if stream.in_turn or stream.credit <= 0 or stream.cancelled:
            return
        stream.in_turn = True
        self._begin(stream)

    def _run_step(self, stream: Stream) -> tuple[Any, Packed | None]:
        token = current.set(stream)
        try:
            if stream.items is None:
                args, kwargs = stream.arguments()
                stream.items = iter(stream.way.method(*args, **kwargs))
            try:
                value = next(stream.items)
            except StopIteration:
                return End(stream.number), None
            stream.credit -= 1
            answer = _packed(stream, value, Item)
            if type(answer[0]) is Item:
                self._loop.call_soon(lambda: self._stepped(stream))
            return answer
        except BaseException as error:
            return Raised(stream.number, failure_of(error, __name__)), None
        finally:
            current.reset(token)

    def _stepped(self, stream: Stream) -> None:
        stream.in_turn = False
        if stream.cancelled:
            self._threads.run(lambda: _close_items(stream))
        else:
            self._step(stream)

    # Batches

    def _gather(self, call: Incoming, queue: BatchQueue[Incoming]) -> None:
        with call.served.lock:
            calls = queue.add(call, time.monotonic())
            due = queue.next_due
        self._begin_batch(call.served, call.way, calls)
        if not calls and due is not None:
            self._loop.call_later(due - time.monotonic(), lambda: self._batch_due(call.served, call.way, queue))

    def _batch_due(self, served: Served, way: Way, queue: BatchQueue[Incoming]) -> None:
        with served.lock:
            calls = queue.due(time.monotonic())
        self._begin_batch(served, way, calls)

    def _batch_done(self, served: Served, way: Way, queue: BatchQueue[Incoming]) -> None:
        """While a batch ran, others gathered."""
        with served.lock:
            calls = queue.done(time.monotonic())
            due = queue.next_due
        self._begin_batch(served, way, calls)
        if not calls and due is not None:
            self._loop.call_later(due - time.monotonic(), lambda: self._batch_due(served, way, queue))

    def _begin_batch(self, served: Served, way: Way, calls: list[Incoming]) -> None:
        if calls:
            self._begin(Batch(way, served, calls))

    def _run_batch(self, batch: Batch) -> list[tuple[Incoming, Any, Packed | None]]:
        answers: list[tuple[Incoming, Any, Packed | None]] = []
        calls: list[Incoming] = []
        arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        token = current.set(batch)
        try:
            for call in batch.calls:
                if call.cancelled:
                    answers.append((call, None, None))
                    continue
                try:
                    arguments.append(call.arguments())
                    calls.append(call)
                except BaseException as error:
                    answers.append((call, Raised(call.number, failure_of(error, __name__)), None))
            fitting, odd = split_compatible(arguments)
            answers += [(calls[at], Raised(calls[at].number, failure_of(error)), None) for at, error in odd.items()]
            calls = [calls[at] for at in fitting]
            if calls:
                answers += self._call_batch(batch.way, calls, [arguments[at] for at in fitting])
        except BaseException as error:
            answers += [(call, Raised(call.number, failure_of(error, __name__)), None) for call in calls]
        finally:
            current.reset(token)
            queue = batch.way.batch
            assert queue
            self._loop.call_soon(lambda: self._batch_done(batch.served, batch.way, queue))
        return answers

    def _call_batch(
        self, way: Way, calls: list[Incoming], arguments: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> list[tuple[Incoming, Any, Packed | None]]:
        args, kwargs = stack(arguments)
        values = unstack(way.method(*args, **kwargs), len(calls))
        return [(call, *_packed(call, value, Answer)) for call, value in zip(calls, values, strict=True)]

    # Errands

    def _run_errand(self, call: _Errand) -> None:
        try:
            call.action()
        except Exception:  # an errand is ours, and its failure must not stop the object
            logger.exception("%s: an errand failed", call.label)
        with call.served.lock:
            more = call.served.lane.finish(call)
        if more:
            self._loop.call_soon(lambda: self._continue(call.served, call.served.lane))


class _Errand(Frame):
    """Something of ours that must not run beside the calls of an object, such as a checkpoint."""

    __slots__ = ("action", "served")
    action: Callable[[], None]
    served: Served


def _packed(call: Incoming, value: Any, kind: type[Answer] | type[Item]) -> tuple[Any, Packed | None]:
    """The answer that carries a value: the message with its parts, or a failure."""
    if value is None:
        return kind(call.number, ()), None
    try:
        packed = pack_value(call.link, value)
    except Exception as error:
        return Raised(call.number, not_sendable(error, value)), None
    return kind(call.number, packed.shared), packed


def _send(link: Link, message: Any, parts: Any = (), fds: Any = ()) -> None:
    try:
        link.send(message, parts, fds)
    except LinkClosed:
        pass  # the loop notices by itself


def _too_late(call: Incoming) -> Failure:
    return failure_of(
        DeadlineExceeded(f"the deadline of {call.label} passed while it waited for its turn; it did not run")
    )


def _close_fds(received: Received) -> None:
    import os

    while received.fds:
        os.close(received.fds.pop())


def _close_items(stream: Stream) -> None:
    close = getattr(stream.items, "close", None)
    if close:
        try:
            close()
        except Exception:  # of the user's `finally`; nobody waits for it
            logger.exception("%s: a stream that was given up raised", stream.label)


__all__ = ["CallServer", "ProgramStopped", "Served"]
