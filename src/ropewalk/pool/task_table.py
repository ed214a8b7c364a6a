"""The task table: where every task is, and what happens to it next. Pure.

    submit ─▶ pending ──assign──▶ outstanding at one worker ──done──▶ finished, once
                 ▲                        │
                 ├──── taken back ◀───────┤  recalled, or skipped after a fence
                 └──── died ◀─────────────┘  the task it was in: one death more, alone next time;
                                             its neighbours: again, without blame

A task is an item of a unit (items that were pickled together). Spans of items move between the places above; an item is
in exactly one of them, which is why a result that comes twice, late, or from a worker that lost the task finds nothing
to finish. Items are numbered at each worker by `seq`, which counts up over the worker's life. The guarantees are in
docs/theory.md, "Exactly-once accounting" and "Blame".

The table opens no socket and reads no clock. If a task must end without a result, it returns `GivenUp`, and the caller
makes the error.

The cost of one message does not grow with the number of workers: if each message led to a search through thousands of
workers, the search would take most of the launcher's time. The table therefore notes the workers whose load has changed
(`_lighter`) and those that hold several tasks (`_deep`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import msgspec

from ropewalk.pool.chunking import Pace

_FEW_WORKERS = 32
"""If more workers than this hold several tasks, each search for tasks to recall is followed by a pause..."""
_LOOK_S = 10e-6
"""...of this many seconds for each of those workers."""


class TaskUnit(msgspec.Struct, eq=False):
    """Items that are sent together."""

    job: Any
    """The job that gets the results; the table only compares it."""
    first_index: int
    """Position in the map of the first item."""
    count: int
    code: str
    """The code that is called; tasks of one code are expected to take about the same time."""
    size_bytes: int = 0
    content: Any = None
    """The content to send; the table does not look at it."""
    patient: bool = False
    """Whether its worker reports no results before the whole unit has ended."""
    avoids: Collection[str] = ()
    """Hosts whose workers do not get it."""
    deaths: dict[int, list[str]] = msgspec.field(default_factory=dict[int, list[str]])
    """Causes of the deaths of workers, by item."""
    cancelled: bool = False
    num_ended: int = 0
    """Number of items that have ended, with or without a result; the caller counts them."""


class ItemSpan(NamedTuple):
    """The items `start` to `stop` of a unit."""

    unit: TaskUnit
    start: int
    stop: int


class SpanAssignment(NamedTuple):
    """An instruction to send a span to a worker; its first item has number `seq` there."""

    worker: str
    seq: int
    span: ItemSpan


class Finished(NamedTuple):
    """Items that have their results: the entries of the message from `offset` on."""

    span: ItemSpan
    offset: int


class GivenUp(NamedTuple):
    """An item that ends without a result."""

    unit: TaskUnit
    item: int
    deaths: tuple[str, ...]
    """Causes of the deaths it is blamed for, oldest first."""


class _Worker(msgspec.Struct, eq=False):
    id: str
    units_left: int | None
    host: str = ""
    way_ns: float = 0.0
    """Nanoseconds of a round trip to the worker."""
    next_seq: int = 0
    outstanding: deque[tuple[int, ItemSpan]] = msgspec.field(default_factory=deque[tuple[int, ItemSpan]])
    num_items: int = 0
    load_ns: float = 0.0
    draining: bool = False
    heard: float = 0.0
    peeked: bool = False
    recalling: bool = False


class TaskTable:
    """All tasks of a pool.

    Args:
        max_deaths: the number of workers that a task may kill before it is given up.
        at_most_once: never start a task again that was started.
        begins: called with the job of a span before the span is given to a worker; the span is dropped if it returns
            False.
    """

    def __init__(
        self, *, max_deaths: int = 3, at_most_once: bool = False, begins: Callable[[Any], bool] = lambda job: True
    ) -> None:
        self.max_deaths = max_deaths
        self.at_most_once = at_most_once
        self._begins = begins
        self.most_ahead: int | None = None
        """The largest number of units that a worker may hold, however short their tasks are; None sets no limit."""
        self.pace = Pace()
        self.num_pending = 0
        self.num_running = 0
        self.num_done = 0
        self.num_failed = 0
        self.num_retried = 0
        self.num_dropped = 0
        self._pending: deque[ItemSpan] = deque()
        self._choosy: deque[ItemSpan] = deque()
        """Pending spans that wait for an idle worker on a host that they do not avoid."""
        self._workers: dict[str, _Worker] = {}
        self._idle: dict[_Worker, None] = {}
        self._deep: dict[_Worker, None] = {}
        """Workers that hold more than one task."""
        self._lighter: dict[_Worker, None] = {}
        """Workers that may want more tasks: their load has changed since they were last considered."""
        self._head = ""
        """The code of the task that was next at that time."""
        self._has_cancelled = False
        """Whether workers may hold tasks of cancelled jobs."""
        self._look_again = 0.0
        """Monotonic time before which workers to recall from are not searched for."""
        self._dropped: list[ItemSpan] = []

    # Events

    def submit(self, units: Iterable[TaskUnit]) -> None:
        """Add units after those that are there."""
        for unit in units:
            self._queue_of(unit).append(ItemSpan(unit, 0, unit.count))
            self.num_pending += unit.count
        self._head = ""  # the fair share of a worker is larger now

    def worker_up(
        self, id: str, now: float, units_left: int | None = None, *, way_s: float = 0.0, host: str = ""
    ) -> None:
        """Note that a worker is ready.

        Args:
            id: the worker.
            now: monotonic time in seconds.
            units_left: the largest number of units that it takes; None sets no limit.
            way_s: seconds of a round trip to its host, which its credit has to cover.
            host: its host.
        """
        self._workers[id] = worker = _Worker(id, units_left, host, way_s * 1e9, heard=now)
        self._idle[worker] = None

    def drain(self, id: str) -> None:
        """Give this worker no more tasks."""
        worker = self._workers.get(id)
        if worker:
            worker.draining = True
            self._idle.pop(worker, None)

    def done(self, id: str, first: int, count: int, elapsed_ns: int, now: float) -> list[Finished]:
        """Note a worker's results of `count` items from number `first` on; items that it does not hold are ignored."""
        worker = self._workers.get(id)
        if worker is None:
            return []
        worker.heard = now
        worker.peeked = worker.recalling = False
        finished: list[Finished] = []
        for seq, span in self._take(worker, first, first + count):
            finished.append(Finished(span, seq - first))
            self.num_done += span.stop - span.start
        if finished:
            code = finished[-1].span.unit.code
            self.pace.ended(code, now)
            if count and elapsed_ns:
                self.pace.observe(code, elapsed_ns / count)
        return finished

    def taken_back(self, id: str, first: int, until: int, now: float) -> None:
        """Put items back to the front that did not start and will not: they were recalled, or skipped."""
        worker = self._workers.get(id)
        if worker is None:
            return
        worker.recalling = False
        for _, span in reversed(self._take(worker, first, until)):
            self._again(span)

    def died(
        self, id: str, current: int | None, cause: str, *, final: bool = False, innocent: bool = False
    ) -> list[GivenUp]:
        """Note the death of a worker. The results in its page must have been passed to `done` before.

        Args:
            id: the worker.
            current: the number of the item it was in, which gets the blame; None between items.
            cause: why it died, in words.
            final: the item ends now, whatever its number of deaths (it exceeded its timeout).
            innocent: the worker was ended from outside, so the item gets no blame.

        Returns:
            The items that end without a result.
        """
        given_up: list[GivenUp] = []
        for seq, span in self._remove(id):
            if current is None or not seq <= current < seq + span.stop - span.start:
                self._again(span)
                continue
            unit, item = span.unit, span.start + current - seq
            self._again(ItemSpan(unit, item + 1, span.stop))
            if final or not innocent or self.at_most_once:
                unit.deaths.setdefault(item, []).append(cause)
            if final or self.at_most_once or len(unit.deaths.get(item, ())) >= self.max_deaths:
                given_up += self._give_up(unit, item)
            else:
                self.num_retried += not innocent and not unit.cancelled
                self._again(ItemSpan(unit, item, item + 1))
            self._again(ItemSpan(unit, span.start, item))
        return given_up

    def vanished(self, id: str, cause: str) -> list[GivenUp]:
        """Note that a worker is gone with its host, and that it is not known which items it had begun.

        No item is to blame, so all of them start again, unless tasks run at most once.

        Returns:
            The items that end without a result.
        """
        given_up: list[GivenUp] = []
        for _, span in self._remove(id):
            if not self.at_most_once:
                self._again(span)
                continue
            for item in range(span.start, span.stop):
                span.unit.deaths.setdefault(item, []).append(cause)
                given_up += self._give_up(span.unit, item)
        return given_up

    def cancel(self, job: Any) -> list[str]:
        """Forget the unsent tasks of a job; return the workers that hold others of it."""
        return self._cancel(lambda of: of is job)

    def cancel_all(self) -> None:
        """Forget the unsent tasks of all jobs, in one pass over them; what workers hold counts as cancelled."""
        self._cancel(lambda _: True)

    def _cancel(self, is_gone: Callable[[Any], bool]) -> list[str]:
        self._drop_pending(is_gone)
        holders: list[str] = []
        for worker in self._workers.values():
            held = [span.unit for _, span in worker.outstanding if is_gone(span.unit.job)]
            for unit in held:
                unit.cancelled = True
            if held:
                holders.append(worker.id)
                self._has_cancelled = True
        return holders

    def holds_only_cancelled(self, id: str) -> bool:
        """Return whether all tasks that a worker holds are of cancelled jobs."""
        return self.is_in_cancelled(id) and all(span.unit.cancelled for _, span in self._workers[id].outstanding)

    def is_in_cancelled(self, id: str) -> bool:
        """Return whether the oldest task that a worker holds is of a cancelled job."""
        current = self.current_task(id)
        return current is not None and current[0].cancelled

    def cancelled_behind(self) -> list[str]:
        """Return workers that hold tasks of cancelled jobs after the one they are in, for a recall.

        A worker that has not begun any task it holds when a recall comes gives nothing back, and is returned once more.
        """
        if not self._has_cancelled:
            return []
        found: list[str] = []
        for worker in self._deep:
            _, first = worker.outstanding[0]
            behind = [span.unit for _, span in itertools.islice(worker.outstanding, 1, None)]
            if any(unit.cancelled for unit in behind) or (first.unit.cancelled and first.stop - first.start > 1):
                found.append(worker.id)
        self._has_cancelled = bool(found)
        return found

    def sweep(self, is_withdrawn: Callable[[Any], bool]) -> None:
        """Forget the unsent tasks of all jobs for which `is_withdrawn` returns True."""
        self._drop_pending(is_withdrawn)

    def dropped(self) -> list[ItemSpan]:
        """Return tasks of cancelled jobs that end here without a result; each is returned once."""
        dropped, self._dropped = self._dropped, []
        self.num_dropped += sum(span.stop - span.start for span in dropped)
        return dropped

    # Decisions

    def assign(self, now: float) -> list[SpanAssignment]:
        """Decide which worker gets which spans now."""
        assignments: list[SpanAssignment] = []
        # Idle workers first, one unit each...
        for span in list(self._choosy):
            worker = next((each for each in self._idle if each.host not in span.unit.avoids), None)
            if worker is not None:
                self._choosy.remove(span)
                self._pending.appendleft(span)
                self._feed_idle(worker, assignments, now)
        while self._pending and self._idle:
            self._feed_idle(next(reversed(self._idle)), assignments, now)
        # ...then, if these tasks are short, the workers that will be idle soonest.
        if self._pending:
            code = self._pending[0].unit.code
            pace_ns = self.pace.expected_ns(code)
            if pace_ns is not None:
                candidates = self._lighter if code is self._head else self._workers.values()
                hungry = [worker for worker in candidates if self._wants(worker, pace_ns)]
                hungry.sort(key=_load)
                self._lighter.clear()
                for worker in hungry:
                    if self._feed(worker, assignments, first=False):  # else it waits until it holds less
                        self._lighter[worker] = None
                self._head = code
        return assignments

    def recallable(self, now: float) -> list[tuple[str, int]]:
        """Return workers from which half of the tasks should be recalled for idle ones, as (worker, until)."""
        num_idle = len(self._idle)
        if self._pending or not num_idle or self.num_running < 2:
            return []
        if now < self._look_again:
            return []
        if len(self._deep) > _FEW_WORKERS:
            self._look_again = now + _LOOK_S * len(self._deep)
        left_ns = {worker: self._left_ns(worker, now) for worker in self._deep if not worker.recalling}
        victims = [worker for worker in left_ns if self._is_worth_recalling(worker, left_ns[worker], now)]
        victims.sort(key=left_ns.__getitem__, reverse=True)
        for worker in victims[:num_idle]:
            worker.recalling = True
        return [(worker.id, worker.next_seq) for worker in victims[:num_idle]]

    def silent(self, now: float) -> list[str]:
        """Return workers that hold several tasks and have been silent for a while: their pages should be read.

        A finished result may wait in a worker that is busy with the next task. Each silence is returned once. The
        silence of a worker in a patient unit is expected, and not returned.
        """
        found: list[str] = []
        for worker in self._deep:
            if worker.peeked or worker.outstanding[0][1].unit.patient:
                continue
            patience_s = self.pace.silence_s + worker.way_ns / 1e9
            if now - worker.heard > patience_s:
                worker.peeked = True
                found.append(worker.id)
        return found

    @property
    def watchful(self) -> bool:
        """Whether `recallable` or `silent` may return workers later."""
        return bool(self._deep)

    @property
    def num_deep(self) -> int:
        """Number of workers that hold more than one task, which `recallable` and `silent` have to look at."""
        return len(self._deep)

    @property
    def idle(self) -> bool:
        """Whether no task is pending or outstanding."""
        return not self.num_pending and not self.num_running

    @property
    def num_busy(self) -> int:
        """Number of workers that are in a task or about to begin one."""
        return sum(worker.num_items > 0 for worker in self._workers.values())

    @property
    def num_parallel(self) -> int:
        """Number of workers that could be at work: the busy ones, and one for each span that waits."""
        return len(self._pending) + len(self._choosy) + self.num_busy

    def next_seq(self, id: str) -> int:
        """Return the number that the next item sent to a worker will have."""
        worker = self._workers.get(id)
        return worker.next_seq if worker else 0

    def num_items(self, id: str) -> int:
        """Return the number of items that a worker holds."""
        worker = self._workers.get(id)
        return worker.num_items if worker else 0

    def exhausted(self, id: str) -> bool:
        """Return whether a worker holds no tasks and will be given none."""
        worker = self._workers.get(id)
        return worker is not None and not worker.num_items and (worker.draining or worker.units_left == 0)

    def is_used_up(self, id: str) -> bool:
        """Return whether a worker was given as many units as one may run."""
        worker = self._workers.get(id)
        return worker is not None and worker.units_left == 0

    def current_task(self, id: str) -> tuple[TaskUnit, int] | None:
        """Return the oldest item that a worker holds, which by the messages so far is the one it is in."""
        worker = self._workers.get(id)
        if worker is None or not worker.outstanding:
            return None
        span = worker.outstanding[0][1]
        return span.unit, span.start

    def since(self, id: str) -> float:
        """Return the monotonic time from which on a worker is in that item, by the messages so far; 0 if it is gone."""
        worker = self._workers.get(id)
        return worker.heard if worker else 0.0

    def locate(self, id: str, seq: int) -> tuple[TaskUnit, int] | None:
        """Return the item of a unit with this number at a worker, if the worker holds it."""
        worker = self._workers.get(id)
        for first, span in worker.outstanding if worker else ():
            if first <= seq < first + span.stop - span.start:
                return span.unit, span.start + seq - first
        return None

    # Private

    def _queue_of(self, unit: TaskUnit) -> deque[ItemSpan]:
        return self._choosy if unit.avoids else self._pending

    def _drop_pending(self, is_gone: Callable[[Any], bool]) -> None:
        """Forget the unsent tasks of jobs."""
        for queue in (self._pending, self._choosy):
            spans = list(queue)
            queue.clear()
            for span in spans:
                if is_gone(span.unit.job):
                    self.num_pending -= span.stop - span.start
                    self._dropped.append(span)
                else:
                    queue.append(span)

    def _feed_idle(self, worker: _Worker, assignments: list[SpanAssignment], now: float) -> None:
        """Give an idle worker the unit at the front."""
        del self._idle[worker]
        worker.heard, worker.peeked = now, False  # its silence is counted from here
        self._feed(worker, assignments, first=True)
        if not worker.num_items:  # no task that waited was to begin any more
            self._idle[worker] = None
        self._lighter[worker] = None

    def _wants(self, worker: _Worker, pace_ns: float) -> bool:
        if worker.draining or worker.units_left == 0:
            return False
        return worker.load_ns < self.pace.too_little_ns(pace_ns, worker.way_ns)

    def _left_ns(self, worker: _Worker, now: float) -> float:
        """Return the nanoseconds that the tasks a worker holds are expected to last from now."""
        unit = worker.outstanding[0][1].unit
        if not unit.patient:
            return worker.load_ns  # it reports each task
        expected_ns = (self.pace.expected_ns(unit.code) or 0.0) * worker.num_items
        return self.pace.left_ns(expected_ns, now - worker.heard)

    def _is_worth_recalling(self, worker: _Worker, left_ns: float, now: float) -> bool:
        unit = worker.outstanding[0][1].unit
        expected_ns = self.pace.expected_ns(unit.code)
        if unit.patient and expected_ns is not None:  # the task that it is in is not recalled
            return left_ns > max(self.pace.worth_ns, expected_ns)
        return self.pace.worth_recalling(left_ns, now - worker.heard)

    def _feed(self, worker: _Worker, assignments: list[SpanAssignment], *, first: bool) -> int:
        """Give an idle worker one unit, or fill a worker up to its credit; return the number of items it got."""
        fair = max(1, self.num_pending // (2 * len(self._workers)))
        num_items = size_bytes = 0
        code, pace_ns, enough_ns = "", None, 0.0
        while self._pending and worker.units_left != 0:
            span = self._pending[0]
            count = span.stop - span.start
            if span.unit.code is not code:
                code = span.unit.code
                pace_ns = self.pace.expected_ns(code)
                enough_ns = self.pace.enough_ns(pace_ns or 0.0, worker.way_ns)
            if not first:
                if self.most_ahead is not None and len(worker.outstanding) >= self.most_ahead:
                    break
                if pace_ns is None or worker.load_ns + pace_ns * count > enough_ns:
                    break
                if num_items + count > fair or num_items >= self.pace.most_items:
                    break
                if size_bytes + span.unit.size_bytes > self.pace.most_bytes:
                    break
            self._pending.popleft()
            self.num_pending -= count
            if not self._begins(span.unit.job):
                self._dropped.append(span)
                continue
            if worker.units_left is not None:
                worker.units_left -= 1
            assignments.append(SpanAssignment(worker.id, worker.next_seq, span))
            worker.outstanding.append((worker.next_seq, span))
            worker.next_seq += count
            worker.num_items += count
            worker.load_ns += (pace_ns or 0.0) * count
            self.num_running += count
            num_items += count
            size_bytes += span.unit.size_bytes
            if first:
                break
        if worker.num_items > 1:
            self._deep[worker] = None
        return num_items

    def _remove(self, id: str) -> list[tuple[int, ItemSpan]]:
        """Remove a worker; return the items that it held with their numbers, the newest first, none if it was gone."""
        worker = self._workers.pop(id, None)
        if worker is None:
            return []
        self._idle.pop(worker, None)
        self._lighter.pop(worker, None)
        return self._take(worker, 0, worker.next_seq)[::-1]

    def _take(self, worker: _Worker, first: int, until: int) -> list[tuple[int, ItemSpan]]:
        """Remove the items numbered `first` to `until` from a worker; return them with their numbers."""
        outstanding = worker.outstanding
        taken: list[tuple[int, ItemSpan]] = []
        kept: list[tuple[int, ItemSpan]] = []
        while outstanding and outstanding[0][0] < until:
            seq, span = outstanding.popleft()
            end = seq + span.stop - span.start
            low, high = max(seq, first), min(end, until)
            if low >= high:
                kept.append((seq, span))
                continue
            unit, start, stop = span
            if seq < low:
                kept.append((seq, ItemSpan(unit, start, start + low - seq)))
            taken.append((low, ItemSpan(unit, start + low - seq, start + high - seq)))
            if high < end:  # what is left begins at `until`
                outstanding.appendleft((high, ItemSpan(unit, start + high - seq, stop)))
        outstanding.extendleft(reversed(kept))
        count = 0
        for _, span in taken:
            count += span.stop - span.start
        worker.num_items -= count
        self.num_running -= count
        if worker.num_items <= 1:
            self._deep.pop(worker, None)
        self._weigh(worker)
        if worker.id in self._workers:
            self._lighter[worker] = None
        if not worker.num_items and not worker.draining and worker.units_left != 0 and worker.id in self._workers:
            self._idle[worker] = None
        return taken

    def _weigh(self, worker: _Worker) -> None:
        """Expect of all that a worker holds what its first task takes."""
        expected_ns = self.pace.expected_ns(worker.outstanding[0][1].unit.code) if worker.outstanding else None
        worker.load_ns = (expected_ns or 0.0) * worker.num_items

    def _again(self, span: ItemSpan) -> None:
        if span.start == span.stop:
            return
        if span.unit.cancelled:
            self._dropped.append(span)
        else:
            self._queue_of(span.unit).appendleft(span)
            self.num_pending += span.stop - span.start

    def _give_up(self, unit: TaskUnit, item: int) -> list[GivenUp]:
        if unit.cancelled:
            self._dropped.append(ItemSpan(unit, item, item + 1))
            return []
        self.num_failed += 1
        return [GivenUp(unit, item, tuple(unit.deaths[item]))]


def _load(worker: _Worker) -> float:
    return worker.load_ns
