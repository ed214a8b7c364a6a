"""Calls of a batched method gather until a batch is due, and then run as one.

Incoming ─▶ Gathering ──full, or waited long enough──▶ CallBatch ──turn──▶ one call, many replies
               ▲ └─ from inside a call that runs here: at once, alone            │
               └──────────────── the next batch may run ◀────────────────────────┘
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.calls.batch_queue import BatchQueue
from ropewalk.calls.call_context import current, forget_watchers
from ropewalk.calls.concatenating import Concatenating
from ropewalk.calls.incoming import CallPolicy, Incoming, Reply, Served, Turn
from ropewalk.calls.merging import Arguments
from ropewalk.calls.messages import Answer
from ropewalk.calls.stacking import Stacking
from ropewalk.calls.turns import check_depth
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop, Timer

_STACKING, _CONCATENATING = Stacking(), Concatenating()


class CallBatch(Turn):
    """Several calls merged into one; a call that it makes belongs to the chains of all of them."""

    __slots__ = ("_calls", "_depth", "_merging", "_way", "size_of_call")

    def __init__(self, way: CallPolicy, calls: Sequence[Incoming]) -> None:
        chain = {origin.key: origin for call in calls for origin in call.chain}
        deadlines = [call.deadline for call in calls]
        latest = None if None in deadlines else max(deadline for deadline in deadlines if deadline is not None)
        Turn.__init__(self, tuple(chain.values()), latest, way.label)
        self._calls = calls
        self._depth = max(call.depth for call in calls)
        self._merging = _CONCATENATING if way.facts.concatenates else _STACKING
        self.size_of_call = 1.0
        """Average share of one of its calls in the batch's size."""
        self._way = way
        self.served = calls[0].served
        self.lane = way.lane
        self.in_thread = way.in_thread
        self.since = 0.0
        self.when_over = None

    @property
    def depth(self) -> int:
        return self._depth

    @property
    def given_up(self) -> str:
        reasons = [call.cancelled for call in self._calls]
        return reasons[-1] if all(reasons) else ""

    @property
    def watched(self) -> tuple[int, ...]:
        return tuple(call.key for call in self._calls)

    @property
    def calls(self) -> Sequence[Incoming]:
        return self._calls

    def run(self) -> Sequence[Reply]:
        replies: list[Reply] = []
        calls: list[Incoming] = []
        arguments: list[Arguments] = []
        token = current.set(self)
        try:
            for call in self._calls:
                if call.cancelled:
                    replies.append((call, None, None))
                elif call.deadline is not None and self.since >= call.deadline:
                    replies.append((call, call.too_late(), None))
                else:
                    try:
                        arguments.append(_canonical(self._way.method, call.arguments()))
                        calls.append(call)
                    except BaseException as error:
                        replies.append((call, call.failed(error), None))
            if len({(len(args), frozenset(kwargs)) for args, kwargs in arguments}) > 1:
                arguments = [_with_defaults(self._way.method, each) for each in arguments]
            fitting, odd = self._merging.split_compatible(arguments)
            replies += [(calls[at], calls[at].failed(error), None) for at, error in odd.items()]
            self._run_merged([(calls[at], arguments[at], size) for at, size in fitting.items()], replies)
        finally:
            current.reset(token)
            forget_watchers(self)
        return replies

    def _run_merged(self, calls: Sequence[tuple[Incoming, Arguments, int]], replies: list[Reply]) -> None:
        """Run the method for calls that can be merged, each with its size: once, unless a batch cannot hold them."""
        merging = self._merging
        all_arguments, all_sizes = [arguments for _, arguments, _ in calls], [size for _, _, size in calls]
        groups = merging.groups(all_arguments, all_sizes, self._way.facts.batch_size)
        for group in ([calls[at] for at in each] for each in groups):
            try:
                sizes = [size for _, _, size in group]
                args, kwargs = merging.merge([arguments for _, arguments, _ in group])
                values = merging.divide(self._way.method(*args, **kwargs), sizes)
                replies += [call.reply(value, Answer) for (call, _, _), value in zip(group, values, strict=True)]
                self.size_of_call = sum(sizes) / len(sizes)
            except BaseException as error:
                replies += [(call, call.failed(error), None) for call, _, _ in group]


class Gathering:
    """The waiting calls of one batched method; used from the loop's thread, except for `take`."""

    def __init__(self, served: Served, way: CallPolicy, loop: Loop, begin: Callable[[CallBatch], None]) -> None:
        self._served = served
        self._way = way
        self._loop = loop
        self._begin = begin
        self._queue: BatchQueue[Incoming] = BatchQueue(way.facts.batch_size, way.facts.batch_wait_s)
        self._timer: Timer | None = None
        self._looks = False
        """Whether it will look again soon, when all messages that arrived together are read."""

    def add(self, call: Incoming) -> None:
        """Add a call that has arrived.

        Raises:
            CallCycle: its chain contains a cycle.
        """
        check_depth(call)
        with self._served.lock:
            alone = call.lane.holds_caller_of(call)
            more = self._loop.is_reading(call.link)
            batch = [] if alone else self._queue.add(call, call.link, time.monotonic(), more=more)
        if alone:
            # The running call waits for this one, which would otherwise join a batch that waits for the running call.
            self._begin(CallBatch(self._way, [call]))
        elif batch or not more:
            self._go_on(batch)
        elif not self._looks:
            self._looks = True
            self._loop.call_soon(self._look)  # after the calls that arrived with it

    def gone(self, caller: Link) -> None:
        """Note that a caller has gone: no call of it is waited for."""
        with self._served.lock:
            batch = self._queue.gone(caller, time.monotonic())
        self._go_on(batch)

    @property
    def held_up(self) -> list[Incoming]:
        """Calls that wait for the running batch, and not only for further calls."""
        return self._queue.held_up

    def discard(self, call: Incoming) -> bool:
        """Remove a call that was given up; False if it does not wait here."""
        return self._queue.discard(call)

    def take(self) -> list[Incoming]:
        """Remove and return all waiting calls, at the end of the service."""
        return self._queue.take()

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return True  # as of the queue

    def _go_on(self, calls: list[Incoming]) -> None:
        """Start the batch that the queue returned, or look again when the next one is due."""
        if calls:
            batch = CallBatch(self._way, calls)
            batch.when_over = lambda: self._over(batch)
            self._begin(batch)
        elif self._timer is None and (due := self._queue.next_due) is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._look)

    def _look(self) -> None:
        # The call for which the timer was set may have been cancelled, or run in a full batch: then nothing is due.
        self._looks = False
        if self._timer:
            self._timer.cancel()
        self._timer = None
        with self._served.lock:
            calls = self._queue.due(time.monotonic())
        self._go_on(calls)

    def _over(self, batch: CallBatch) -> None:
        with self._served.lock:
            self._queue.sized(batch.size_of_call)
            calls = self._queue.done(time.monotonic())
        self._go_on(calls)


def _canonical(method: Callable[..., Any], arguments: Arguments) -> Arguments:
    """`f(x=1)` as `f(1)`, so that both can be merged."""
    args, kwargs = arguments
    if not kwargs:
        return arguments
    bound = inspect.signature(method).bind(*args, **kwargs)
    return bound.args, bound.kwargs


def _with_defaults(method: Callable[..., Any], arguments: Arguments) -> Arguments:
    """`f(1)` as `f(1, False)`, so that it can be merged with `f(2, True)`."""
    args, kwargs = arguments
    try:
        bound = inspect.signature(method).bind(*args, **kwargs)
    except TypeError:  # the call itself will report it
        return arguments
    bound.apply_defaults()
    return bound.args, bound.kwargs


__all__ = ["CallBatch", "Gathering"]
