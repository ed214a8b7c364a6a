"""Jobs of an executor: a future for each call of `submit`, an iterator for the calls of `map`.

    submit ─▶ TaskFuture ──▶ pool ═══▶ worker       begin    it is running, and can no longer be cancelled
                   ▲                      │
    callbacks ◀── end ◀── callbacks' thread ◀── result       user code never runs on the session's loop

Both are jobs of the pool, so an executor needs no thread other than the callback thread of the pool.
"""

# These classes access private parts of the pool: they are jobs of it, and only their interface belongs here.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

from ropewalk.compat.broken_executor import as_futures_name_it
from ropewalk.pool.pool import Pool
from ropewalk.pool.result_batch import RaisedEntry, ResultBatch
from ropewalk.pool.results import PoolJob
from ropewalk.user_frames import shortened

T = TypeVar("T")


class TaskFuture(Future[T], PoolJob):
    """The future of one call, which can be cancelled until the call is given to a worker."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        PoolJob.__init__(self)
        self._pool = pool

    # Called by the user

    def cancel(self) -> bool:
        """Cancel the call unless it was sent to a worker; returns whether it is cancelled."""
        if not super().cancel():
            return False
        with self._condition:
            first, self.withdrawn = not self.withdrawn, True
        if first:
            self.set_running_or_notify_cancel()  # notifies `wait` and `as_completed`
            self._pool._sweep_soon()
        return True

    def result(self, timeout: float | None = None) -> T:
        """Return the result of the call, or raise its exception, with the remote traceback as the cause."""
        if not self.done():
            self.check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception that the call raised, or None."""
        if not self.done():
            self.check_process()
        return super().exception(timeout)

    # Called by the dispatcher

    def begin(self) -> bool:
        with self._condition:  # the lock is reentrant
            if not (self.running() or self.done()):
                self.set_running_or_notify_cancel()
            return self.running()

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        self._pool._call_back(partial(self._unpickle, batch, offset))

    def abandon(self, error: BaseException) -> None:
        self._pool._call_back(partial(self.end, RaisedEntry(error)))

    def _unpickle(self, batch: ResultBatch, offset: int) -> None:
        try:
            outcome = batch.take(offset)
        except BaseException as error:  # any exception must reach the code that waits for this future
            outcome = RaisedEntry(error)
        self.end(outcome)

    def end(self, outcome: Any) -> None:
        """End the call with a value, or with an exception as a `RaisedEntry`."""
        with contextlib.suppress(InvalidStateError):  # it was cancelled, and then the pool was terminated
            if type(outcome) is RaisedEntry:
                self.set_exception(as_futures_name_it(outcome.error))
            else:
                self.set_result(outcome)


class MapJob(PoolJob):
    """The job of a `map`: yields results in the order of the calls, each as soon as it arrives."""

    def __init__(self, pool: Pool, num_calls: int) -> None:
        super().__init__()
        self._pool = pool
        self._num_calls = num_calls
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._arrived: dict[int, tuple[int, ResultBatch, int]] = {}
        """For each arrived batch, by the number of its first call: the number of results, the batch and the offset."""
        self._error: BaseException | None = None

    # Called by the user

    def results(self, deadline: float | None) -> Iterator[Any]:
        """Yield the values in order, until one is an exception or the deadline has passed."""
        at = 0
        try:
            while at < self._num_calls:
                count, batch, offset = self._wait_for(at, deadline)
                for each in range(offset, offset + count):
                    yield self._value(batch, each)  # no variable here may keep a reference to the value
                at += count
        except KeyboardInterrupt as error:
            shortened(error)
            raise
        finally:
            if at < self._num_calls:  # an error, or the caller has closed the iterator
                self._pool.cancel_soon(self)

    def cancel(self) -> None:
        """Cancel the calls, after `shutdown` with `cancel_futures`."""
        self._pool.cancel_soon(self, CancelledError())

    def _wait_for(self, at: int, deadline: float | None) -> tuple[int, ResultBatch, int]:
        self.check_process()
        with self._lock:  # not `with changed`, which an interrupt could leave locked
            while at not in self._arrived:
                if self._error:
                    raise as_futures_name_it(self._error)
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"{self._num_calls - at} of {self._num_calls} results did not arrive in time")
                self._changed.wait(left_s)
            return self._arrived.pop(at)

    @staticmethod
    def _value(batch: ResultBatch, at: int) -> Any:
        entry = batch.take(at)
        if type(entry) is RaisedEntry:
            raise as_futures_name_it(entry.error)
        return entry

    # Called by the dispatcher

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        with self._lock:
            self._arrived[first] = count, batch, offset
            self._changed.notify_all()

    def abandon(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
            self._changed.notify_all()
