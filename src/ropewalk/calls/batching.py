"""Calls of a batched method gather until they are enough, and then run as one.

Incoming ─▶ Gathering ──full, or waited long enough──▶ Batch ──turn──▶ one call, many replies
               ▲ └─ from inside a call that runs here: at once, alone        │
               └───────────────── the next may go ◀──────────────────────────┘
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.calls.batches import Arguments, BatchQueue, split_compatible, stack, unstack
from ropewalk.calls.frame import Frame, current
from ropewalk.calls.incoming import Incoming, Reply, Served, Turn, Way
from ropewalk.calls.messages import Answer
from ropewalk.calls.turns import check_depth
from ropewalk.transport.loop import Loop, Timer


class Batch(Turn):
    """Calls that were merged into one; a call out of it belongs to the chains of them all."""

    __slots__ = ("_calls", "_depth", "_way")

    def __init__(self, way: Way, calls: Sequence[Incoming]) -> None:
        chain = {origin.key: origin for call in calls for origin in call.chain}
        deadlines = [call.deadline for call in calls]
        latest = None if None in deadlines else max(deadline for deadline in deadlines if deadline is not None)
        Frame.__init__(self, tuple(chain.values()), latest, way.label)
        self._calls = calls
        self._depth = max(call.depth for call in calls)
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
            fitting, odd = split_compatible(arguments)
            replies += [(calls[at], calls[at].failed(error), None) for at, error in odd.items()]
            calls = [calls[at] for at in fitting]
            if calls:
                args, kwargs = stack([arguments[at] for at in fitting])
                values = unstack(self._way.method(*args, **kwargs), len(calls))
                replies += [call.reply(value, Answer) for call, value in zip(calls, values, strict=True)]
        except BaseException as error:
            replies += [(call, call.failed(error), None) for call in calls]
        finally:
            current.reset(token)
        return replies


class Gathering:
    """The calls of one batched method that wait for others; from the loop's thread, but for `take`."""

    def __init__(self, served: Served, way: Way, loop: Loop, begin: Callable[[Batch], None]) -> None:
        self._served = served
        self._way = way
        self._loop = loop
        self._begin = begin
        self._queue: BatchQueue[Incoming] = BatchQueue(way.facts.batch_size, way.facts.batch_wait_s)
        self._timer: Timer | None = None

    def add(self, call: Incoming) -> None:
        """A call has come.

        Raises:
            CallCycle: its chain goes round in circles.
        """
        check_depth(call)
        with self._served.lock:
            alone = call.lane.holds_caller_of(call)
            batch = [] if alone else self._queue.add(call, time.monotonic())
        if alone:
            # What runs here waits for it, and it would gather for a batch that waits for what runs here.
            self._begin(Batch(self._way, [call]))
        else:
            self._go_on(batch)

    def discard(self, call: Incoming) -> bool:
        """A call was given up; False if it does not wait here."""
        return self._queue.discard(call)

    def take(self) -> list[Incoming]:
        """Everything that waits, for the end of the service."""
        return self._queue.take()

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return True  # as of the queue

    def _go_on(self, calls: list[Incoming]) -> None:
        """Begin the batch that the queue gave, or look again when the next one is due."""
        if calls:
            batch = Batch(self._way, calls)
            batch.when_over = self._over
            self._begin(batch)
        elif self._timer is None and (due := self._queue.next_due) is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._look)

    def _look(self) -> None:
        # The call for which the timer was set may have been cancelled, or gone with a full batch: then nothing is due.
        self._timer = None
        with self._served.lock:
            calls = self._queue.due(time.monotonic())
        self._go_on(calls)

    def _over(self) -> None:
        with self._served.lock:
            calls = self._queue.done(time.monotonic())
        self._go_on(calls)


def _canonical(method: Callable[..., Any], arguments: Arguments) -> Arguments:
    """`f(x=1)` as `f(1)`, so that both fit into one batch."""
    args, kwargs = arguments
    if not kwargs:
        return arguments
    bound = inspect.signature(method).bind(*args, **kwargs)
    return bound.args, bound.kwargs


__all__ = ["Batch", "Gathering"]
