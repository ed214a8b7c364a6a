"""The serving side of calls: the objects, and the calls that arrive for them; `turn_runner` runs these.

    link ──Call──▶ loop: turn? ──yes──▶ method, in this very thread ──▶ Answer
                     │ no: waits in its lane         (if it takes long, a deputy thread goes on with the loop)
                     ├─ @concurrent: in a thread of its own
                     ├─ @batched: gathers, then one call for many     (batching.py)
                     └─ a generator: each item is a turn of its own   (streams.py)

The loop handles cancels, stops and requests for status meanwhile, whatever a method does. Answers to calls that
arrived together are sent together.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Container, Generator, Mapping, Sequence
from typing import Any, Protocol

from ropewalk.calls.batching import Gathering
from ropewalk.calls.call_context import current, watchers
from ropewalk.calls.incoming import CallPolicy, HeldTurn, Incoming, OnceIncoming, Served, Turn
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import (
    Answer,
    Begun,
    Call,
    Cancel,
    Gone,
    More,
    OnceCall,
    Raised,
    Taken,
    TakenPageHere,
)
from ropewalk.calls.once import CallName, CallStanding, Done, OnceTable
from ropewalk.calls.streams import ServedGenerator
from ropewalk.calls.turn_runner import TurnRunner, send
from ropewalk.calls.waits import LaneWaits, leave_batch, waiting_calls, waits_of
from ropewalk.errors import CallCycle, LinkClosed
from ropewalk.transport.failures import failure_of
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop


class WaitlessHandler(Protocol):
    """Answers calls on the loop, where it must not wait: a call that has to wait does so without a thread."""

    def call(self, link: Link, message: Call, received: Received) -> bool:
        """Take a call if it is for one of this handler's objects; returns whether it was taken."""
        ...

    def cancel(self, link: Link, number: int) -> None:
        """The answer to a call is no longer wanted; the call may be of another handler, or answered."""
        ...

    def taken(self, link: Link, number: int) -> None:
        """A lent answer has arrived at the caller."""
        ...

    def page(self, link: Link, fd: int) -> None:
        """From now on the caller notes arrived answers in this memory file, which this handler then owns."""
        ...

    def begun(self, target: int) -> None:
        """Another process has begun a value of this object, which asked to be told."""
        ...

    def gone(self, link: Link) -> None:
        """A caller is gone, with all its calls."""
        ...


class CallServer:
    """Serves objects to the links that its host hands over."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._turns = TurnRunner(loop, self._go_on_with)
        self._served: dict[int, Served] = {}
        self._targets = itertools.count(1)
        self._calls = self._turns.unanswered
        self.waitless: WaitlessHandler | None = None
        """Is offered every plain `Call` first, and takes those for its own objects."""

    # Any thread

    def serve(
        self, obj: object, methods: Mapping[str, MethodFacts], label: str, once: OnceTable | None = None
    ) -> Served:
        """Make an object callable from now on.

        Args:
            obj: the object.
            methods: the methods that can be called, by name.
            label: its name in messages.
            once: the record of calls that run once, from the object's predecessor if there was one.
        """
        served = Served(self.next_target(), obj, methods, label)
        if once is not None:
            served.once = once
        served.before_waiting = self._loop.hand_over
        for way in served.ways.values():
            if way.facts.batch_size:
                way.batch = Gathering(served, way, self._loop, self._turns.begin)
        self._served[served.target] = served
        return served

    def next_target(self) -> int:
        """A number for another object, which no other one has: threads may ask at the same time."""
        return next(self._targets)

    def refuse(self, served: Served, reason: str) -> None:
        """Refuse new calls of an object; calls that have begun go on, except those that wait (`rw.wait_for`)."""
        served.closed = reason
        for turn in served.running:
            for call in turn.calls:
                self._tell_watchers(call)

    def withdraw(self, served: Served) -> None:
        """Stop serving an object: calls that wait for it do not run, and its streams are closed."""
        self._served.pop(served.target, None)
        served.closed = served.closed or "it has ended"
        waiting: list[Turn] = []
        with served.lock:
            for lane in served.lanes:
                waiting += lane.waiting
                lane.waiting.clear()
            for way in served.ways.values():
                if way.batch:
                    waiting += way.batch.take()
        for turn in waiting:
            if isinstance(turn, HeldTurn):
                turn.drop()
            for call in turn.calls:
                self._turns.finish(call, Gone(call.number, served.closed))
        self._loop.call_soon(lambda: self._end_streams(served, waiting))

    def waits(self) -> list[LaneWaits]:
        """The calls that run here and wait for others, and the calls that wait for their turns."""
        found: list[LaneWaits] = []
        for served in list(self._served.values()):
            with served.lock:
                found += waits_of(served)
        return found

    def fail(self, target: int, key: int, error: Exception) -> bool:
        """End a call that waits for its turn with an exception; False if it does not wait, or no longer."""
        served = self._served.get(target)
        if served is None:
            return False
        with served.lock:
            call = next((call for call in waiting_calls(served) if call.key == key), None)
            if call is None or not (call.lane.withdraw(call) or leave_batch(call)):
                return False
        self._turns.finish(call, call.failed(error))
        call.cancelled = "it was ended"  # the rest of it, in a batch or a stream, does not run
        if isinstance(call, ServedGenerator):
            self._loop.call_soon(lambda: self._stepped(call))
        return True

    def wait_idle(self, served: Served, timeout_s: float) -> bool:
        """Wait until no call of an object runs or waits; False after `timeout_s` seconds."""
        due = time.monotonic() + timeout_s
        while served.running or served.num_waiting:
            if time.monotonic() > due:
                return False
            time.sleep(0.002)
        return True

    def wait_for_end_of_links(self, timeout_s: float) -> None:
        """Wait until all callers have closed their links, or for `timeout_s` seconds."""
        due = time.monotonic() + timeout_s
        while self._calls and time.monotonic() < due:
            time.sleep(0.005)

    def reply(self, link: Link, answer: Any, parts: Sequence[Part] = ()) -> None:
        """Send an answer of a `WaitlessHandler`; see `TurnRunner.reply`."""
        self._turns.reply(link, answer, parts)

    def close(self) -> None:
        """Stop serving all objects; may be called twice."""
        for served in list(self._served.values()):
            self.withdraw(served)
        self._turns.threads.close()

    @contextlib.contextmanager
    def turn(self, served: Served) -> Generator[bool]:
        """Hold the turn of an object in this thread: none of its calls runs meanwhile, except for concurrent ones.

        Yields False if the turn cannot be had: the object is no longer served, or one of its calls waits for this
        thread.
        """
        lane, running = served.lane, current.get()
        call = running.call if running else None
        held = HeldTurn(served, lane)
        with served.lock:
            has_turn = call is not None and call.key in lane.running
            never = bool(served.closed) or (call is not None and lane.holds_caller_of(call))
            begun = not has_turn and not never and lane.arrive(held)
        if has_turn or never:
            yield has_turn
            return
        if begun:
            held.give()
        else:
            self._loop.hand_over()
        if not held.wait():
            yield False
            return
        try:
            yield True
        finally:
            with served.lock:
                more = lane.finish(held)
            if more:
                self._loop.call_soon(lambda: self._turns.continue_lane(served, lane))

    # The loop

    def attend(self, link: Link) -> None:
        """Read a link that is up; from the loop's thread."""
        self._calls[link] = {}
        self._loop.add_link(link, functools.partial(self._hear, link), lambda _why: self._gone(link))

    def hang_up(self, link: Link) -> None:
        """Treat a caller as gone; from the loop's thread."""
        self._loop.remove_link(link)
        self._gone(link)

    def hang_up_on(self, peers: Container[str]) -> None:
        """Treat some processes as gone; from the loop's thread."""
        for link in [link for link in self._calls if link.peer in peers]:
            self.hang_up(link)

    def _hear(self, link: Link, received: Received) -> None:
        message = received.message
        if type(message) is Call:
            if self.waitless is None or not self.waitless.call(link, message, received):
                self._call(link, message, received)
        elif type(message) is OnceCall:
            self._call_once(link, message, received)
        elif type(message) is Cancel:
            self._cancel(link, message.number, "its caller gave it up")
            if self.waitless:
                self.waitless.cancel(link, message.number)
        elif self.waitless and type(message) is Taken:
            self.waitless.taken(link, message.number)
        elif self.waitless and type(message) is Begun:
            self.waitless.begun(message.target)
        elif self.waitless and type(message) is TakenPageHere:
            self.waitless.page(link, received.fds.take())
        elif type(message) is More:
            stream = self._calls[link].get(message.number)
            if isinstance(stream, ServedGenerator):
                stream.credit += message.credit
                self._step(stream)

    def _call(self, link: Link, message: Call, received: Received) -> None:
        served = self._served.get(message.target)
        way = served.plain_ways.get(message.method) if served is not None and not served.closed else None
        if way is not None and not way.lasts:
            # The fast path for most calls: an unmarked method whose turn it is.
            assert served
            if way.facts.free:
                self._call_free(served, way, link, message, received)
                return
            call = self._calls[link][message.number] = Incoming(served, way, link, message, received)
            lane, loop = way.lane, self._loop
            with served.lock:
                begun = lane.begin_alone(call)
            if not begun:
                self._turns.begin(call)
                return
            entered = loop.enter()
            self._turns.run_alone(call)
            if not loop.leave(entered):
                link.flush()  # the turn of the loop in which its answer was held is over
            return
        if served is None or served.closed:
            send(link, Gone(message.number, served.closed if served else ""))
            return
        way = served.ways.get(message.method)
        if way is None:
            error = AttributeError(f"{served.label} has no method {message.method!r}; it has: {', '.join(served.ways)}")
            send(link, Raised(message.number, failure_of(error)))
            return
        if way.facts.streams:
            stream = ServedGenerator(served, way, link, message, received)
            stream.when_over = lambda: self._stepped(stream)
            self._calls[link][message.number] = stream
            self._step(stream)
            return
        call = self._calls[link][message.number] = Incoming(served, way, link, message, received)
        self._take(way, call)

    def _take(self, way: CallPolicy, call: Incoming) -> None:
        """Begin a call, or add it to a batch."""
        if not way.batch:
            self._turns.begin(call)
            return
        try:
            way.batch.add(call)
        except CallCycle as error:
            self._turns.finish(call, call.failed(error))

    def _call_once(self, link: Link, message: OnceCall, received: Received) -> None:
        """Take a call that may have arrived before, over this link or another one."""
        served = self._served.get(message.target)
        way = served.ways.get(message.method) if served else None
        if served is None or served.closed or way is None or way.facts.streams:
            self._call(link, message, received)  # which reports the problem
            return
        owner, _, generation = message.stream.rpartition("#")
        # By the name that the link has proved, so that no process can refer to the calls of another.
        name = CallName(f"{link.peer.partition('#')[0]} {owner}", int(generation or 0), message.sequence)
        call = OnceIncoming(served, way, link, message, received, name)
        with served.lock:
            standing = served.once.arrive(name, message.acked, message.also_acked)
            if standing is CallStanding.NEW:
                served.once_running[name] = call
            elif standing is CallStanding.RUNS:
                served.once_running[name].repeats.append((link, message, received))
        if isinstance(standing, Done):
            self._answer_again(link, message, standing)
        elif standing is CallStanding.OLD:
            send(link, Gone(message.number, f"{served.label} has answered this call before"))
        elif standing is CallStanding.NEW:
            self._calls[link][message.number] = call
            self._take(way, call)

    def _answer_again(self, link: Link, message: OnceCall, done: Done) -> None:
        """Answer a call that was done before it arrived again."""
        with contextlib.suppress(LinkClosed):  # the loop notices by itself
            if done.failure:
                link.send(Raised(message.number, done.failure))
            else:
                link.send(Answer(message.number, ()), done.parts)

    def _go_on_with(self, repeats: Sequence[tuple[Link, OnceCall, Received]]) -> None:
        for link, message, received in repeats:
            if link in self._calls:  # else this caller is gone, too
                self._call_once(link, message, received)

    def _call_free(self, served: Served, way: CallPolicy, link: Link, message: Call, received: Received) -> None:
        """Run a method that takes no turns, in this very thread."""
        call = self._calls[link][message.number] = Incoming(served, way, link, message, received)
        if call.deadline is not None:
            call.since = time.monotonic()
        loop = self._loop
        entered = loop.enter()
        for reply in call.run():
            self._turns.finish(*reply)
        if not loop.leave(entered):
            way.lasts = True
            link.flush()  # the turn of the loop in which its answer was held is over

    def _cancel(self, link: Link, number: int, why: str) -> None:
        call = self._calls.get(link, {}).pop(number, None)
        if call is None:
            self._forget_repeat(link, number)
            return
        call.cancelled = why
        self._tell_watchers(call)
        if isinstance(call, ServedGenerator):
            self._step(call)  # its next turn closes it
            return
        with call.served.lock:
            withdrawn = call.lane.withdraw(call) or bool(call.way.batch and call.way.batch.discard(call))
            if withdrawn and isinstance(call, OnceIncoming):
                self._turns.settle(call, None)

    def _forget_repeat(self, link: Link, number: int) -> None:
        """Drop a repeated call that arrived while the first one ran, and whose answer is no longer wanted."""
        for served in list(self._served.values()):
            with served.lock:
                for call in served.once_running.values():
                    call.repeats = [each for each in call.repeats if (each[0], each[1].number) != (link, number)]

    def _gone(self, link: Link) -> None:
        """A caller is gone: calls of it that have not begun do not run."""
        for number in list(self._calls.get(link, {})):
            self._cancel(link, number, "its caller is gone")
        self._calls.pop(link, None)
        for served in list(self._served.values()):
            for way in served.ways.values():
                if way.batch:
                    way.batch.gone(link)
        if self.waitless:
            self.waitless.gone(link)

    def _tell_watchers(self, call: Incoming) -> None:
        """A running call is over: user callbacks run in threads, and never block the loop."""
        for callback in watchers(call.key):
            self._turns.threads.run(callback)

    def _step(self, stream: ServedGenerator) -> None:
        """Give a stream its next turn, if it wants one."""
        if stream.wants_turn:
            stream.in_turn = True
            self._turns.begin(stream)

    def _end_streams(self, served: Served, waited: Sequence[Turn]) -> None:
        """End the streams of an object that is no longer served; `waited` were removed from their lanes."""
        under_way = [call for calls in self._calls.values() for call in list(calls.values())]
        for stream in dict.fromkeys((*waited, *under_way)):
            if isinstance(stream, ServedGenerator) and stream.served is served:
                self._turns.finish(stream, Gone(stream.number, served.closed))
                stream.cancelled = served.closed
                stream.in_turn = stream.in_turn and stream not in waited
                self._step(stream)

    def _stepped(self, stream: ServedGenerator) -> None:
        stream.in_turn = False
        self._step(stream)


__all__ = ["CallServer", "Served", "WaitlessHandler"]
