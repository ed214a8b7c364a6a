"""Results on the caller's side: the objects that wait for tasks, and how they get the values.

    worker ─▶ dispatcher ─▶ ResultBatch (bytes) ─▶ job.accept ─▶ … caller's thread ─▶ ResultBatch.entries (values)

The loop's thread only stores the bytes. They are unpickled in the thread that asks
for the values: user code (`__setstate__`, `__reduce__`) never runs on the loop.

    PoolJob ─┬─ AsyncResult ── MapResult    one answer, when all results are in
             └─ ImapJob ◀── IMapIterator    one answer for each task, as they come or in order (`imap_results`)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from ropewalk.errors import PoolClosed, TaskCancelled
from ropewalk.html_table import html_box, html_failure, html_headline
from ropewalk.pool.result_batch import RaisedEntry, ResultBatch
from ropewalk.processes.interrupts import interrupts_allowed, interrupts_deferred, may_serve
from ropewalk.quantities import counted
from ropewalk.transport.loop_with_guests import LoopWithGuests
from ropewalk.user_frames import user_frames_only

T = TypeVar("T")


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
    describe: Callable[[], Callable[[], str] | None] | None = None
    """Refers to a function that says what the pool is doing; set when tasks are submitted."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Raise `PoolClosed` in a forked child, where no result will ever arrive."""
        if self._pid != os.getpid():
            raise PoolClosed(
                f"this result belongs to a pool of process {self._pid}, from which this one ({os.getpid()}) was "
                "forked; it arrives there"
            )

    def note_interrupt(self, error: KeyboardInterrupt) -> None:
        """Say at an interrupt of the wait for results what was waited for."""
        describe = self.describe and self.describe()
        if describe:
            error.add_note(describe())

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
    """The result of `apply_async`; in asyncio it can be awaited as well.

    When a coroutine that awaits it is cancelled, a call that was not given to a worker yet is cancelled too, and one
    that was goes on, as with a future of an executor and `asyncio.wrap_future`. Of a map no further task begins.
    `await asyncio.shield(result)` cancels nothing. `get` raises `TaskCancelled` then.
    """

    def __init__(
        self,
        callback: Callable[[T], Any] | None,
        error_callback: Callable[[BaseException], Any] | None,
        call_back: Callable[[Callable[[], None]], None],
        loop: LoopWithGuests | None = None,
        withdraw: Callable[[PoolJob, BaseException], object] | None = None,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._withdraw = withdraw
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

    def __reduce__(self) -> Any:
        raise TypeError(
            "the result of a task stays in the process that asked for it: give its value to the next task, "
            "`result.get()`, or let one task do both"
        )

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

    @property
    def has_arrived(self) -> bool:
        """Whether the outcome is here, though it is ready only when its callbacks have run."""
        return self._arrived

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
            # A thread that waits for one answer without a limit reads it from the link itself (see
            # `LoopWithGuests.serve_until`); a map, whose many answers come while more units are sent, is quicker with
            # both threads at work.
            if self._loop and timeout is None and may_serve():
                self._loop.serve_until(self.ready, interrupts_deferred, interrupts_allowed)
        if not self._done and self._there.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            self._there.release()

    @user_frames_only
    def get(self, timeout: float | None = None) -> T:
        """Return the value of the call, or raise its exception.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            multiprocessing.TimeoutError: the call has not ended within `timeout`.
            Exception: what the call raised, with the remote traceback as its cause.
        """
        try:
            self.wait(timeout)
        except KeyboardInterrupt as error:
            self.note_interrupt(error)
            raise
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
        try:
            yield from future
        except asyncio.CancelledError:
            if self._withdraw and not self._arrived:
                self._withdraw(self, TaskCancelled("the coroutine that awaited this result was cancelled"))
            raise
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
