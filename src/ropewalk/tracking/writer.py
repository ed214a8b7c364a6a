"""`StoreWriter`: gathers records of runs and writes them in batches, from a thread of its own.

    put (any thread) ─▶ list ─▶ after 50 ms ─▶ journal ─▶ target.apply(batch), one transaction
                                                              └─ fails: the batch stays in memory, one warning,
                                                                 another attempt every second

Training is never disturbed by a store: a caller only appends to a list. While a store cannot be written (disk full,
folder read-only, server gone), records wait in memory up to a bound; beyond it the oldest metrics are dropped, and the
run gets an event that says how many. All other records are kept.

After a fork the child has no writer: what it puts is ignored, with one warning, because the parent still writes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ropewalk.quantities import counted
from ropewalk.tracking.journal import RecordJournal
from ropewalk.tracking.metric_columns import gathered, num_numbers, num_records
from ropewalk.tracking.records import EventHappened, Record, RunRecord

_log = logging.getLogger(__name__)
GATHER_S = 0.05
"""Seconds for which records are gathered. After SIGKILL of this process, the records of this time are lost."""
_RETRY_S = 1.0
_MOST_NUMBERS = 2_000_000
"""Metrics that wait while the store cannot be written: about 200 MB."""
_END_S = 10.0
_MOST_APART_S = 4.0
_MOST_SHARE = 0.005
"""Share of a core that transactions may take, until they are `_MOST_APART_S` apart."""
_MOST_AT_ONCE = 5000
"""Records in one transaction, so that another launcher waits only briefly for the same store."""
_Item = TypeVar("_Item")
_REFUSED = (TypeError, ValueError, LookupError, AttributeError)
"""Errors by which a target refuses a record; others mean that it cannot be written at the moment."""


class BatchTarget(Protocol):
    """What records are written to: a `RunStore`, or a sink."""

    def apply(self, batch: Sequence[RunRecord]) -> None:
        """Write all records, or raise and write none. Called by one thread."""
        ...


class StoreWriter:
    """Writes the records of any number of runs to one target. It is a `RecordSink`.

    Args:
        target: what they are written to.
        name: words for it in messages, such as the path of the store.
        gather_s: seconds for which records are gathered.
        retry_s: seconds between attempts while the target cannot be written.
        most_numbers: number of metrics that wait in memory meanwhile.
        journal: keeps what is not in the target yet, so that transactions can be rarer than every 50 ms where they take
            long, and the target is a store, which takes columns of metrics; None: there is one every 50 ms.
    """

    def __init__(
        self,
        target: BatchTarget,
        name: str,
        *,
        gather_s: float = GATHER_S,
        retry_s: float = _RETRY_S,
        most_numbers: int = _MOST_NUMBERS,
        journal: RecordJournal | None = None,
    ) -> None:
        self._target, self._name = target, name
        self._gather_s, self._retry_s, self._most_numbers = gather_s, retry_s, most_numbers
        self._arrived: list[RunRecord] = []
        self._arrived_markers: list[_Marker] = []
        self._batch: list[RunRecord] = []  # taken from there, and not written yet
        self._markers: list[_Marker] = []
        self._dropped = Counter[str]()
        self._refused = Counter[tuple[str, type[Exception]]]()
        """Records that the target refused, by their kind and its error."""
        self._regular: list[_RegularCall] = []
        self._journal = journal
        self._apply_at = 0.0  # the time of the next transaction
        self._is_hurried = False
        self._is_failing = self._is_closed = self._is_of_child = self._has_warned_child = False
        self._has_taken = False
        self._is_asleep = False
        self._calls = queue.SimpleQueue[bool]()
        """Wakes the thread; True: it need not gather. To wait for an event takes 20 µs of CPU time more."""
        _remember(self)
        self._thread = threading.Thread(target=self._run, name="ropewalk-store-writer", daemon=True)
        self._thread.start()

    def put(self, run: str, record: Record) -> None:
        """Take a record, from any thread; takes a microsecond."""
        if self._is_of_child:
            self._warn_in_child()
            return
        self._arrived.append(RunRecord(run, record))
        if self._is_asleep:
            self._is_asleep = False
            self._calls.put(False)

    def every(self, interval_s: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function regularly in the writer's thread, between batches.

        Args:
            interval_s: seconds between calls.
            call: the function. If it raises, that is logged once, and it is called again at the next time.

        Returns:
            A function that ends the calls.
        """
        regular = _RegularCall(interval_s, call)
        self._regular = [*self._regular, regular]  # replaced and not changed: the thread may be reading it
        self._calls.put(False)

        def end() -> None:
            self._regular = [one for one in self._regular if one is not regular]

        return end

    def flush(self, timeout_s: float = _END_S) -> bool:
        """Write all records so far now, and wait until they are written.

        Args:
            timeout_s: seconds.

        Returns:
            Whether they are.
        """
        return self._reached(_Marker(), timeout_s)

    def settle(self, timeout_s: float = _END_S) -> bool:
        """Wait until all records so far are in the journal, or written: a transaction is not begun for it.

        While the target cannot be written, only that it is again will do, so that callers slow down.

        Args:
            timeout_s: seconds.

        Returns:
            Whether they are.
        """
        return self._reached(_Marker(in_journal=True), timeout_s)

    def _reached(self, marker: _Marker, timeout_s: float) -> bool:
        if self._is_of_child or threading.current_thread() is self._thread:
            return self._is_of_child
        self._arrived_markers.append(marker)
        self._calls.put(not marker.in_journal)
        return marker.reached.wait(timeout_s)

    def close(self, timeout_s: float = _END_S) -> bool:
        """Write what is there, and end the thread; may be called twice.

        Args:
            timeout_s: seconds within which the target must take the records.

        Returns:
            Whether all records were written. If not, a warning says how many were not.
        """
        if self._is_of_child or self._is_closed:
            return True
        self.flush(timeout_s)
        self._is_closed = True
        self._calls.put(True)
        self._thread.join(timeout_s)
        self._tell_refused()
        num = num_records(self._batch) + len(self._arrived)
        is_kept = self._journal is not None and self._journal.close(is_needed=num > 0)
        if num and is_kept:
            words = "%s of runs could not be written to %s, and wait on the disk for the next run of this store"
            _log.warning(words, counted(num, "record"), self._name)
        elif num:
            _log.warning("records are lost, because they could not be written to %s: %d", self._name, num)
        return not num

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_closed  # what arrived before it was closed is written
            self._sleep()
            self._take()
            self._write_if_due()
            for regular in self._regular:
                regular.call_if_due(time.monotonic())

    def _sleep(self) -> None:
        """Wait until records are due; while they keep coming, the caller of `put` need not wake this thread."""
        if not self._arrived and not self._has_taken and not self._is_closed:
            self._is_asleep = True
            if not self._arrived:
                now = time.monotonic()
                due_s = [one.due_in_s(now) for one in self._regular]
                if self._batch:
                    due_s.append(max(0.0, self._apply_at - now))
                self._wait(min(due_s, default=None))
            self._is_asleep = False
        if self._arrived or self._has_taken:
            self._gather()

    def _gather(self) -> None:
        until = time.monotonic() + self._gather_s
        while not (self._is_hurried or self._is_closed) and (left_s := until - time.monotonic()) > 0:
            self._wait(left_s)

    def _wait(self, timeout_s: float | None) -> None:
        with contextlib.suppress(queue.Empty):
            self._is_hurried |= self._calls.get(timeout=timeout_s)

    def _take(self) -> None:
        # First the markers: the records that were put before them are there already.
        self._markers += _taken(self._arrived_markers)
        taken = _taken(self._arrived)
        self._has_taken = bool(taken)
        if self._journal is not None:
            taken = gathered(taken)
            self._journal.append(taken)
        self._batch += taken
        if self._is_failing:
            self._keep_to_bound()
        elif self._journal is not None and self._journal.is_open:
            self._pass_markers(in_journal=True)

    def _write_if_due(self) -> None:
        now = time.monotonic()
        if self._is_hurried or now >= self._apply_at or self._is_closed:
            self._is_hurried = False
            begun = time.thread_time()
            self._write()
            if self._is_failing:
                self._apply_at = now + self._retry_s
            elif self._journal is not None and self._journal.is_open:
                took_s = time.thread_time() - begun
                self._apply_at = now + min(_MOST_APART_S, took_s / _MOST_SHARE)

    def _write(self) -> None:
        size = _MOST_AT_ONCE
        while self._batch:
            some = self._batch[:size]
            try:
                self._target.apply(some)
                size = min(_MOST_AT_ONCE, 2 * size)
            except _REFUSED as error:  # it must not keep back all others for ever: it is found by bisection
                if len(some) > 1:
                    size = len(some) // 2
                    continue
                self._note_refused(some[0], error)
            except Exception as error:
                self._warn_of_failure(error)
                return
            del self._batch[: len(some)]
        if self._journal is not None:
            self._journal.clear()
        if self._is_failing:
            self._recover()
        self._pass_markers()

    def _note_refused(self, one: RunRecord, error: Exception) -> None:
        kind = type(one.record).__name__
        self._refused[kind, type(error)] += 1
        if self._refused[kind, type(error)] == 1:  # a sink with a mistake refuses a million metrics
            _log.exception(
                "a record (%s) of run %s was refused by %s, and is lost; how many others are is told at the end",
                kind,
                one.run,
                self._name,
            )

    def _tell_refused(self) -> None:
        for (kind, error), number in self._refused.items():
            if number > 1:
                others = f"{counted(number - 1, 'other record')} ({kind})"
                _log.warning("%s were refused by %s with %s, and are lost", others, self._name, error.__name__)
        self._refused.clear()

    def _pass_markers(self, *, in_journal: bool = False) -> None:
        """Tell those who wait that the records before their markers are written, or only in the journal."""
        for marker in self._markers:
            if marker.in_journal or not in_journal:
                marker.reached.set()
        self._markers = [marker for marker in self._markers if not marker.reached.is_set()]

    def _warn_of_failure(self, error: Exception) -> None:
        if not self._is_failing:
            _log.warning(
                "runs cannot be written to %s at the moment (%s). Nothing is lost so far: up to %d metrics wait in "
                "memory and are written as soon as that succeeds; free space, or make the folder writable",
                self._name,
                _first_line(error),
                self._most_numbers,
            )
        self._is_failing = True

    def _recover(self) -> None:
        self._is_failing = False
        _log.warning("runs are written to %s again", self._name)
        for run, number in self._dropped.items():
            text = f"{counted(number, 'metric')} of a time in which the store could not be written were dropped"
            self.put(run, EventHappened("metrics dropped", text, time.time(), {"number": number}))
        self._dropped.clear()

    def _keep_to_bound(self) -> None:
        numbers = [num_numbers(one) for one in self._batch]
        excess = sum(numbers) - self._most_numbers
        if excess <= 0:
            return
        excess += self._most_numbers // 10  # so that this happens rarely
        gone = list(itertools.accumulate(numbers))
        first_kept = next((index for index, total in enumerate(gone) if total >= excess), len(gone) - 1) + 1
        for one, number in zip(self._batch[:first_kept], numbers, strict=False):
            if number:
                self._dropped[one.run] += number
        self._batch[:first_kept] = [one for one in self._batch[:first_kept] if not num_numbers(one)]
        if self._journal is not None:
            self._journal.replace(self._batch)

    # --- forks --------------------------------------------------------------------------------------------------------

    def become_childs(self) -> None:
        """In a child after a fork: the records and the thread are the parent's."""
        self._is_of_child = True
        if self._journal is not None:
            self._journal.leave_to_parent()
        self._arrived, self._batch, self._regular, self._journal = [], [], [], None

    def _warn_in_child(self) -> None:
        if not self._has_warned_child:
            self._has_warned_child = True
            _log.warning(
                "process %d was forked from one that writes a run, and does not write to it: what it logs is ignored. "
                "Return values to the parent and log them there, or use a pool of Ropewalk, whose processes can log",
                os.getpid(),
            )


def _taken(arrived: list[_Item]) -> list[_Item]:
    """Take what other threads have appended; they may go on."""
    taken = arrived[:]
    del arrived[: len(taken)]
    return taken


class _Marker:
    """Set when all records before it are written, or in the journal if that will do."""

    def __init__(self, *, in_journal: bool = False) -> None:
        self.in_journal = in_journal
        self.reached = threading.Event()


class _RegularCall:
    def __init__(self, interval_s: float, call: Callable[[], None]) -> None:
        self._interval_s, self._call = interval_s, call
        self._due = time.monotonic() + interval_s
        self._has_failed = False

    def due_in_s(self, now: float) -> float:
        return max(0.0, self._due - now)

    def call_if_due(self, now: float) -> None:
        if now < self._due:
            return
        self._due = now + self._interval_s
        try:
            self._call()
        except Exception:  # a store that cannot be read now may be readable later; the writer must go on
            if not self._has_failed:
                _log.exception("%s failed; it is tried again every %g s", self._call, self._interval_s)
            self._has_failed = True


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


_writers: weakref.WeakSet[StoreWriter] = weakref.WeakSet()
_has_registered = False


def _remember(writer: StoreWriter) -> None:
    global _has_registered
    _writers.add(writer)
    if not _has_registered:
        _has_registered = True
        os.register_at_fork(after_in_child=_become_childs)


def _become_childs() -> None:
    for writer in list(_writers):
        writer.become_childs()


__all__ = ["GATHER_S", "BatchTarget", "StoreWriter"]
