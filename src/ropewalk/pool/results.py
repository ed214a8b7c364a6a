"""Results on the caller's side: the objects that wait for tasks, and how they get the values.

    worker ─▶ dispatcher ─▶ ResultBatch (bytes) ─▶ job.accept ─▶ … caller's thread ─▶ ResultBatch.entries (values)

The loop's thread only stores the bytes. They are unpickled in the thread that asks
for the values: user code (`__setstate__`, `__reduce__`) never runs on the loop.

    PoolJob ─┬─ AsyncResult ── MapResult    one answer, when all results are in
             └─ ImapJob ◀── IMapIterator    one answer for each task, as they come or in order
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from ropewalk.errors import PoolClosed
from ropewalk.html_table import html_box, html_failure, html_headline
from ropewalk.processes.interrupts import interrupts_allowed, interrupts_deferred, may_serve
from ropewalk.processes.page import ERROR, PICKLED, PageReport, results_of
from ropewalk.quantities import counted
from ropewalk.transport.blobs import total_bytes
from ropewalk.transport.failures import FAILURE_DECODER, rebuild_error
from ropewalk.transport.frames import Part
from ropewalk.transport.loop import Loop
from ropewalk.transport.serialization import loads

T = TypeVar("T")


_NUMBER_BYTES = 32
"""Approximate bytes that a number and its place in a list take."""


class RaisedEntry:
    """An entry of a batch that is an exception instead of a value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class ResultBatch:
    """The results of some tasks as they arrived; unpickled once, by the first thread that asks for them."""

    __slots__ = ("_entries", "_lock", "_nested", "_parts", "all_values", "share_bytes", "where")

    def __init__(self, values: list[Any], nested: dict[int, int], parts: Sequence[Part], where: str) -> None:
        """Store results as they came in a message; all arguments but the last are the fields of `TasksDone`.

        Args:
            values: becomes the list of entries.
            nested: the positions in `values` that hold bytes, with their kind.
            parts: bytes and buffers of the last entry, if it is large.
            where: the worker that sent them, for notes on errors.
        """
        self._entries = values
        self._nested = nested
        self._parts: Sequence[Part] = parts
        self._lock = threading.Lock()
        self.all_values: bool = not nested
        """Whether no entry is a `RaisedEntry`; known once the entries are unpickled."""
        self.where: str = where
        size = _NUMBER_BYTES * len(values) + total_bytes(parts) + sum(len(values[at]) for at in nested)
        self.share_bytes: int = size // max(1, len(values))
        """Approximate bytes of memory that one entry takes."""

    @classmethod
    def of(cls, entries: list[Any]) -> ResultBatch:
        """Return a batch of entries that need no unpickling."""
        batch = cls(entries, {}, (), "")
        batch.all_values = not any(type(entry) is RaisedEntry for entry in entries)
        return batch

    @classmethod
    def of_page(cls, report: PageReport, where: str) -> ResultBatch:
        """Return a batch of the results that a worker had finished according to its task page."""
        results = results_of(report)
        nested = {at: kind for at, (kind, _) in enumerate(results) if kind in (PICKLED, ERROR)}
        return cls([value for _, value in results], nested, (), where)

    def entries(self) -> list[Any]:
        """Return the values, or `RaisedEntry`s, in the order of the tasks."""
        with self._lock:
            if self._nested:
                values = self._entries
                for at, kind in self._nested.items():
                    if self._parts and at == len(values) - 1:  # a large result, which was sent at once
                        data, *rest = self._parts
                        # Small frames arrive as bytes, and arrays in results must be writable.
                        buffers = [bytearray(part) if type(part) is bytes else part for part in rest]
                        values[at] = self._rebuild(kind, data, buffers)
                    else:
                        values[at] = self._rebuild(kind, values[at], ())
                self.all_values = not any(type(values[at]) is RaisedEntry for at in self._nested)
                self._nested, self._parts = {}, ()
            return self._entries

    def take(self, at: int) -> Any:
        """Return one entry and drop it here, so that a large value lives no longer than its consumer keeps it."""
        entries = self.entries()
        entry, entries[at] = entries[at], None
        return entry

    def _rebuild(self, kind: int, data: Part, buffers: Sequence[Part]) -> Any:
        if kind == ERROR:
            return RaisedEntry(rebuild_error(FAILURE_DECODER.decode(data), self.where))
        assert kind == PICKLED
        try:
            return loads(data, buffers)
        except (Exception, SystemExit) as error:  # `SystemExit` from unpickling would end a thread of the pool
            error.add_note(f"This was raised here, while a result from {self.where} was unpickled.")
            return RaisedEntry(error)


class PoolJob:
    """The receiver of the results of some tasks. The dispatcher calls `accept` and `abandon`, one at a time."""

    dropped = False
    """Whether the job wants nothing more: units that are submitted from then on do not run."""
    withdrawn = False
    """Whether tasks that have not begun shall not begin any more; `Dispatcher.sweep` forgets them."""
    patient = False
    """Whether single results are not needed early. A worker then sends the results of a unit together when the unit has
    ended: one message instead of one for each task that takes some milliseconds. Until then the results lie in the
    worker's task page, so that none is lost when the worker dies. Tasks that it has not begun can be recalled for
    idle workers, and a recall makes the worker send at once what it has finished. So a unit may be as large as a
    worker's fair share of the whole. Read when tasks are submitted; not for jobs in which some tasks wait for the
    results of others."""
    avoids: frozenset[str] = frozenset()
    """Hosts whose workers do not get its tasks. Read when tasks are submitted."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Raise `PoolClosed` in a forked child, where no result will ever arrive."""
        if self._pid != os.getpid():
            raise PoolClosed(
                f"this result belongs to a pool of process {self._pid}, from which this one ({os.getpid()}) was "
                "forked; it arrives there"
            )

    def begin(self) -> bool:
        """Return whether tasks of this job that are about to be given to a worker, perhaps again, shall run."""
        return True

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        """Take the results of tasks `first` to `first + count`: the entries of `batch` from `offset` on."""
        raise NotImplementedError

    def abandon(self, error: BaseException) -> None:
        """Fail the job: no more results will come."""
        raise NotImplementedError


class AsyncResult(PoolJob, Generic[T]):
    """The result of `apply_async`; in asyncio it can be awaited as well."""

    def __init__(
        self,
        callback: Callable[[T], Any] | None,
        error_callback: Callable[[BaseException], Any] | None,
        call_back: Callable[[Callable[[], None]], None],
        loop: Loop | None = None,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._there = threading.Lock()
        self._there.acquire()
        self._arrived = False
        self._done = False
        self._success = False
        self._outcome: Any = None
        self._raw: tuple[ResultBatch, int] | None = None
        self._unpickling = threading.Lock()
        self._callback = callback
        self._error_callback = error_callback
        self._call_back = call_back
        self._hooks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "pending" if not self._done else "done"
        return f"<{type(self).__name__} {state}>"

    def _repr_html_(self) -> str:
        is_known = self._done and self._outcome is not None  # results are only unpickled for those that ask for them
        has_failed = is_known and not self._success
        state = "failed" if has_failed else "done" if self._done else "running"
        headline = html_headline(type(self).__name__, state, self._progress())
        return html_box(headline, html_failure(repr(self._outcome) if has_failed else ""))

    def _progress(self) -> list[tuple[str, str]]:
        return []

    def ready(self) -> bool:
        """Return whether the call has ended, with a value or an exception."""
        return self._done

    def successful(self) -> bool:
        """Return whether the call ended without an exception.

        Raises:
            ValueError: the call has not ended.
        """
        if not self._done:
            raise ValueError(f"{self!r} not ready")
        self._unpickle()
        return self._success

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call has ended.

        Args:
            timeout: seconds to wait; None waits for ever.
        """
        if not self._done:
            self.check_process()
            # A thread that waits for one answer without a limit reads it from the link itself (see `Loop.serve_until`);
            # a map, whose many answers come while more units are sent, is quicker with both threads at work.
            if self._loop and timeout is None and may_serve():
                self._loop.serve_until(self.ready, interrupts_deferred, interrupts_allowed)
        if not self._done and self._there.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            self._there.release()

    def get(self, timeout: float | None = None) -> T:
        """Return the value of the call, or raise its exception.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            multiprocessing.TimeoutError: the call has not ended within `timeout`.
            Exception: what the call raised, with the remote traceback as its cause.
        """
        self.wait(timeout)
        if not self._done:
            from multiprocessing import TimeoutError

            raise TimeoutError(f"no result within {timeout} s; the task goes on")
        self._unpickle()
        if self._success:
            return self._outcome
        raise self._outcome

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio  # imported already by the code that awaits

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            def settle() -> None:
                if not future.done():
                    future.set_result(None)

            with contextlib.suppress(RuntimeError):  # the event loop has ended: nothing waits
                loop.call_soon_threadsafe(settle)

        self._hooks.append(wake)
        if self._done:
            wake()
        yield from future
        return self.get()

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        self._raw = batch, offset
        self._finish()

    def abandon(self, error: BaseException) -> None:
        if not self._arrived:
            self._raw = ResultBatch.of([RaisedEntry(error)]), 0
            self._finish()

    def _finish(self) -> None:
        self._arrived = True
        if self._callback or self._error_callback:
            self._call_back(self._run_callbacks)
        else:
            self._release()

    def _release(self) -> None:
        self._done = True
        self._there.release()
        if self._loop:
            self._loop.nudge()
        for hook in self._hooks:
            hook()

    def _unpickle(self) -> None:
        with self._unpickling:
            if self._raw:
                batch, offset = self._raw
                self._settle(batch.entries()[offset])
                self._raw = None

    def _settle(self, entry: Any) -> None:
        self._success = type(entry) is not RaisedEntry
        self._outcome = entry if self._success else entry.error

    def _run_callbacks(self) -> None:
        """Run the callbacks before `get` returns, so that they have run once a caller has the value."""
        try:
            self._unpickle()
            if self._success and self._callback:
                self._callback(self._outcome)
            elif not self._success and self._error_callback:
                self._error_callback(self._outcome)
        finally:
            self._release()


ApplyResult = AsyncResult
"""The name of this class in `multiprocessing.pool`."""


class MapResult(AsyncResult[list[T]]):
    """The result of `map_async`: a list of values in the order of the arguments."""

    def __init__(self, num_tasks: int, *callbacks: Any) -> None:
        super().__init__(*callbacks)
        self._num_left = num_tasks
        self._num_tasks = num_tasks
        self._segments: list[tuple[int, int, ResultBatch, int]] = []
        if not num_tasks:
            self._finish()

    def _progress(self) -> list[tuple[str, str]]:
        return [("", f"{self._num_tasks - self._num_left:,} of {counted(self._num_tasks, 'task')}")]

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        if self._arrived:
            return
        self._segments.append((first, count, batch, offset))
        self._num_left -= count
        if self._num_left == 0:
            self._finish()

    def abandon(self, error: BaseException) -> None:
        if not self._arrived:
            self._segments = [(0, self._num_tasks, ResultBatch.of([RaisedEntry(error)] * self._num_tasks), 0)]
            self._finish()

    def _unpickle(self) -> None:
        with self._unpickling:
            if self._outcome is not None:
                return
            values: list[Any] = [None] * self._num_tasks
            failed = self._num_tasks
            for first, count, batch, offset in self._segments:
                entries = batch.entries()
                values[first : first + count] = entries[offset : offset + count]
                if not batch.all_values:
                    failed = min(failed, _first_raised(entries, offset, count) + first - offset)
            self._segments = []
            self._success = failed == self._num_tasks
            # As in multiprocessing, all tasks were run; of several exceptions, the one with the lowest index is raised.
            self._outcome = values if self._success else values[failed].error


def _first_raised(entries: list[Any], offset: int, count: int) -> int:
    for at in range(offset, offset + count):
        if type(entries[at]) is RaisedEntry:
            return at
    return sys.maxsize


class ImapJob(PoolJob):
    """The state that an `imap`'s feeder, the dispatcher and the iterator share: results that wait, and the window.

    Arguments are read from the iterable only while the results that wait to be consumed or are under way are fewer than
    the window allows, in items and in bytes.
    """

    _FIRST_ITEMS_PER_WORKER = 4
    """Items under way for each worker until the first result tells how large results are."""

    def __init__(self, num_workers: int, window_items: int, window_bytes: int, *, ordered: bool) -> None:
        super().__init__()
        # Entering a `Condition` takes several steps of Python, and an interrupt between them would leave it locked.
        self._lock = threading.Lock()
        self.changed: threading.Condition = threading.Condition(self._lock)
        self._ordered = ordered
        self._first_items = self._FIRST_ITEMS_PER_WORKER * num_workers
        self._window_items = window_items
        self._window_bytes = window_bytes
        self._num_sent = 0
        self._num_arrived = 0
        self._num_consumed = 0
        self._arrived_bytes = 0
        self._waiting_bytes = 0
        self._length: int | None = None
        self._end_error: BaseException | None = None
        self._unlimited = False
        self.dropped: bool = False
        self._by_index: dict[int, tuple[ResultBatch, int]] = {}
        self._by_arrival: deque[tuple[ResultBatch, int]] = deque()

    # The feeder's side

    def wait_for_room(self) -> bool:
        """Wait until another argument may be sent; return False when no more are wanted."""
        with self._lock:
            while not (self.dropped or self._unlimited or self._has_room()):
                self.changed.wait()
            return not self.dropped

    def sent(self, count: int) -> int:
        """Count `count` more arguments as under way; return the index of the first."""
        with self._lock:
            first, self._num_sent = self._num_sent, self._num_sent + count
            return first

    def end(self, error: BaseException | None) -> None:
        """Note that the iterable has ended or raised `error`, which comes after the results of earlier arguments."""
        with self._lock:
            if self._length is None:
                self._length, self._end_error = self._num_sent, error
            self.changed.notify_all()

    def lift_window(self) -> None:
        """Read the iterable to its end: all tasks shall run, even if no result is consumed any more."""
        with self._lock:
            self._unlimited = True
            self.changed.notify_all()

    def drop(self) -> None:
        """Stop reading: no more arguments are wanted."""
        with self._lock:
            self.dropped = True
            self.changed.notify_all()

    def _has_room(self) -> bool:
        if self._num_sent - self._num_consumed >= self._window_items:
            return False
        under_way = self._num_sent - self._num_arrived
        if not self._num_arrived:
            return under_way < self._first_items
        expected = under_way * (self._arrived_bytes / self._num_arrived)
        return self._waiting_bytes + expected <= self._window_bytes

    # The dispatcher's side

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        with self._lock:
            for at in range(count):
                if self._ordered:
                    self._by_index[first + at] = batch, offset + at
                else:
                    self._by_arrival.append((batch, offset + at))
            self._num_arrived += count
            self._arrived_bytes += batch.share_bytes * count
            self._waiting_bytes += batch.share_bytes * count
            self.changed.notify_all()

    def abandon(self, error: BaseException) -> None:
        with self._lock:
            self.dropped = True
            here = len(self._by_index) + len(self._by_arrival)
            if self._length is None or self._num_consumed + here < self._length:
                self._length, self._end_error = self._num_consumed, error
                self._by_index.clear()
                self._by_arrival.clear()
            self.changed.notify_all()

    # The consumer's side

    def take(self, timeout_s: float | None) -> Any:
        """Return the next entry; see `IMapIterator.next`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while (raw := self._pop()) is None:
                if self._length is not None and self._num_consumed >= self._length:
                    error, self._end_error = self._end_error, None
                    raise error or StopIteration
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    from multiprocessing import TimeoutError

                    raise TimeoutError(f"no further result within {timeout_s} s; the task goes on")
                self.changed.wait(left)
            self._num_consumed += 1
            self._waiting_bytes -= raw[0].share_bytes
            self.changed.notify_all()
        return raw[0].take(raw[1])

    def _pop(self) -> tuple[ResultBatch, int] | None:
        if self._ordered:
            return self._by_index.pop(self._num_consumed, None)
        return self._by_arrival.popleft() if self._by_arrival else None


class IMapIterator(Generic[T]):
    """Iterator over the results of `imap` or `imap_unordered`; dropping it cancels the tasks that have not started."""

    def __init__(self, job: ImapJob, on_dropped: Callable[[], None]) -> None:
        self._job = job
        self._on_dropped = on_dropped

    def __iter__(self) -> IMapIterator[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """Return the next result.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            StopIteration: there are no more results.
            multiprocessing.TimeoutError: the result did not arrive within `timeout`.
            Exception: what the task raised, or the iterable of the arguments; later results can still be asked for.
        """
        self._job.check_process()
        entry = self._job.take(timeout)
        if type(entry) is RaisedEntry:
            raise entry.error
        return entry

    def __del__(self) -> None:
        self._on_dropped()


IMapUnorderedIterator = IMapIterator
"""The same class: the job decides which result comes next."""
