"""The results of `imap`, which are consumed one by one: the job, whose window bounds what waits, and the iterator.

feeder ── sent ──▶ ImapJob ◀── accept ── dispatcher
                      └── take ──▶ IMapIterator
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ropewalk.pool.result_batch import RaisedEntry, ResultBatch
from ropewalk.pool.results import PoolJob
from ropewalk.user_frames import user_frames_only

T = TypeVar("T")


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

    def __repr__(self) -> str:
        return f"<ImapJob {self._num_sent} sent, {self._num_arrived} arrived, {self._num_consumed} consumed>"

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
        try:
            return raw[0].take(raw[1])
        except KeyboardInterrupt:  # while it was unpickled: it is the next one
            self._put_back(raw)
            raise

    def _pop(self) -> tuple[ResultBatch, int] | None:
        if self._ordered:
            return self._by_index.pop(self._num_consumed, None)
        return self._by_arrival.popleft() if self._by_arrival else None

    def _put_back(self, raw: tuple[ResultBatch, int]) -> None:
        with self._lock:
            self._num_consumed -= 1
            self._waiting_bytes += raw[0].share_bytes
            if self._ordered:
                self._by_index[self._num_consumed] = raw
            else:
                self._by_arrival.appendleft(raw)


class IMapIterator(Generic[T]):
    """Iterator over the results of `imap` or `imap_unordered`; dropping it cancels the tasks that have not started."""

    def __init__(self, job: ImapJob, on_dropped: Callable[[], None]) -> None:
        self._job = job
        self._on_dropped = on_dropped

    def __repr__(self) -> str:
        return f"<IMapIterator of {self._job!r}>"

    def __iter__(self) -> IMapIterator[T]:
        return self

    @user_frames_only
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
        try:
            entry = self._job.take(timeout)
        except KeyboardInterrupt as error:
            self._job.note_interrupt(error)
            raise
        if type(entry) is RaisedEntry:
            raise entry.error
        return entry

    __next__ = next

    def __del__(self) -> None:
        self._on_dropped()


IMapUnorderedIterator = IMapIterator
"""The same class: the job decides which result comes next."""
