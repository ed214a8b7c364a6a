"""`Places`: where attempts of trials run. Workers of a pool, or threads of the launcher.

    search ── begin(task) ───▶ Places ─▶ worker: work_on(train, task)
           ◀─ next_event() ───          ◀─ records: reports; the task's result: the outcome
           ── request, kill ─▶          ─▶ a word of the task page; SIGKILL

Workers are the rule. Threads are for trials that start processes on several hosts: a `Trainer` or a `Program` in a
worker gets processes of that worker's host only.
"""

from __future__ import annotations

import queue
import re
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.errors import RopewalkError, SearchInvalid, WorkerLost
from ropewalk.pool.results import AsyncResult
from ropewalk.processes.notifier import Notifier
from ropewalk.processes.record_relay import RecordBatch
from ropewalk.search.fitting import fitted
from ropewalk.search.objective_notes import ObjectiveNotes
from ropewalk.search.space_text import distribution_of
from ropewalk.search.trial_pool import TrialPool, TrialWorkers
from ropewalk.search.trial_task import (
    SUGGESTED,
    Request,
    TrialOutcome,
    TrialTask,
    work_in_worker,
    work_on,
)
from ropewalk.tracking.records import AttemptBegan, EventHappened, Metrics, Record, RecordSink

_ENDING = re.compile(r"was killed by \w+|exited with code \d+|is gone, and nobody saw how it ended")
"""How a process ended, in words of `DeathRecord`."""
Train = Callable[..., Any]
"""`train(run, **hyperparameters)`: returns a number, a mapping of metrics, a `Program` to run, or None."""


@dataclass(frozen=True, slots=True)
class AttemptBegun:
    """A process works on an attempt; before that, it waits for one."""

    trial: int
    attempt: int
    host: str = ""
    """The host of that process."""


@dataclass(frozen=True, slots=True)
class AttemptReported:
    """An attempt has logged the objectives of the search."""

    trial: int
    attempt: int
    step: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AttemptSuggested:
    """The function of a trial has asked for hyperparameters."""

    trial: int
    attempt: int
    values: Mapping[str, Any]
    distributions: Mapping[str, Any]
    """As data."""


@dataclass(frozen=True, slots=True)
class AttemptReturned:
    """An attempt has ended in an orderly way, also with an exception."""

    trial: int
    attempt: int
    outcome: TrialOutcome


@dataclass(frozen=True, slots=True)
class AttemptDied:
    """The process of an attempt is gone, and what is known of its end."""

    trial: int
    attempt: int
    cause: str
    failure_class: str


AttemptEvent = AttemptBegun | AttemptReported | AttemptSuggested | AttemptReturned | AttemptDied


class Places(ABC):
    """Runs a limited number of attempts at a time.

    Attributes:
        num: number of attempts at a time.
    """

    num: int

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[AttemptEvent | BaseException] = queue.SimpleQueue()
        self._changed = Notifier()

    def _tell(self, event: AttemptEvent | BaseException) -> None:
        self._events.put(event)
        self._changed.ring()

    @abstractmethod
    def begin(self, task: TrialTask) -> None:
        """Have an attempt begin; returns at once."""

    @abstractmethod
    def request(self, task: TrialTask, request: Request) -> None:
        """Ask an attempt to pause or to stop at its next step."""

    @abstractmethod
    def kill(self, task: TrialTask) -> None:
        """End an attempt at once, where that is possible."""

    @abstractmethod
    def close(self) -> None:
        """End everything; may be called twice."""

    def hosts(self) -> Sequence[str]:
        """Return the host of each place that is ready; empty where attempts have no hosts of their own."""
        return ()

    def is_leaving(self, task: TrialTask) -> bool:
        """Return whether the host on which an attempt runs is about to be taken away."""
        return False

    def wait(self, timeout_s: float) -> None:
        """Wait for an event, at most this long (seconds). An interrupt loses none."""
        self._changed.wait_until(lambda: not self._events.empty(), timeout_s)

    def next_event(self) -> AttemptEvent | None:
        """Return the next event; None if there is none now.

        Raises:
            RopewalkError: no attempt can run any more, and why.
        """
        try:
            event = self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(event, BaseException):
            raise event
        return event


class PoolPlaces(Places):
    """Attempts as tasks of a pool, each in a worker that earlier attempts have warmed.

    Args:
        train: the function of the search.
        sink: takes the records of all trials.
        workers: which workers.
    """

    def __init__(self, train: Train, sink: RecordSink, workers: TrialWorkers) -> None:
        super().__init__()
        self.num = workers.num
        self._processes: dict[int, str] = {}
        """Process of each attempt that has begun, by the attempt's token."""
        self._results: dict[int, AsyncResult[TrialOutcome]] = {}
        """Results of attempts whose end was not told yet, by token."""
        self._wanted: dict[int, Request | None] = {}
        """What is asked of attempts whose process is not known yet; None kills it."""
        self._lock = threading.Lock()
        self._trials = TrialRecords(sink, workers.name, self._began, self._tell)
        # An attempt whose worker dies is the search's to repeat, from its checkpoint.
        self._workers = TrialPool(workers, self._trials, self._trials.runs_of, at_most_once=True)
        try:
            self._train = self._workers.pool.put(train)  # pickled once, and not for each attempt
        except BaseException:
            self._workers.close()
            raise

    def begin(self, task: TrialTask) -> None:
        self._trials.expect(task)

        def returned(outcome: TrialOutcome) -> None:
            self._forget(task)
            self._tell(AttemptReturned(task.trial, task.attempt, outcome))

        def failed(error: BaseException) -> None:
            self._forget(task)
            if isinstance(error, WorkerLost):
                self._tell(AttemptDied(task.trial, task.attempt, _cause_of(error), f"died: {_kind_of(error)}"))
            else:  # the function cannot be loaded there, the pool is broken, or the session has ended
                self._tell(error)

        try:
            result = self._workers.pool.apply_async(
                work_in_worker,
                (self._train, task),
                callback=returned,
                error_callback=failed,
                avoids=task.excluded_hosts,
            )
        except RopewalkError as error:
            self._tell(error)
            return
        with self._lock:
            self._results[task.token] = result
            if result.ready():  # it was forgotten before it was noted
                del self._results[task.token]

    def request(self, task: TrialTask, request: Request) -> None:
        process = self._process(task, request)
        if process is not None:
            self._send(process, task.token, request)

    def kill(self, task: TrialTask) -> None:
        process = self._process(task, None)
        if process is not None:
            self._kill(process, task.token)

    def hosts(self) -> Sequence[str]:
        workers = self._workers.pool.status().workers
        return [worker.host for worker in workers if worker.state in ("idle", "running")]

    def is_leaving(self, task: TrialTask) -> bool:
        process = self._processes.get(task.token)
        return process is not None and self._workers.session.processes.is_leaving(process)

    def close(self) -> None:
        self._workers.close()

    def _began(self, task: TrialTask, process: str) -> None:
        """Note which process works on an attempt; from the loop's thread."""
        with self._lock:
            # The end of the attempt before it may not have been told yet: a kill of that one would hit this one.
            self._processes = {token: other for token, other in self._processes.items() if other != process}
            self._processes[task.token] = process
            asked = self._wanted.pop(task.token, Request.NOTHING)
        self._tell(AttemptBegun(task.trial, task.attempt, self._workers.session.processes.host_of(process)))
        if asked is None:
            self._kill(process, task.token)
        elif asked is not Request.NOTHING:
            self._send(process, task.token, asked)

    def _process(self, task: TrialTask, request: Request | None) -> str | None:
        with self._lock:
            process = self._processes.get(task.token)
            if process is None and self._wanted.get(task.token, Request.NOTHING) is not None:  # else it is killed
                self._wanted[task.token] = request
            return process

    def _kill(self, process: str, token: int) -> None:
        def kill() -> None:
            with self._lock:
                result = self._results.get(token)
                # Its end is told by the pool's callbacks, and its worker has the next attempt by then.
                is_under_way = token in self._processes and not (result and result.has_arrived)
            if is_under_way:  # else the process may work on another trial by now
                self._workers.session.processes.signal(process, signal.SIGKILL)

        self._workers.session.loop.call_soon(kill)

    def _send(self, process: str, token: int, request: Request) -> None:
        self._workers.session.processes.request(process, request.word(token))

    def _forget(self, task: TrialTask) -> None:
        with self._lock:
            self._processes.pop(task.token, None)
            self._results.pop(task.token, None)
            self._wanted.pop(task.token, None)


class TrialRecords:
    """The records of trials on their way to the store: notes from them what the search must know at once.

    Args:
        sink: takes the records.
        group: name of the pool whose workers may write.
        began: called with each attempt that begins, and the id of its process.
        put: called with each report.
    """

    def __init__(
        self,
        sink: RecordSink,
        group: str,
        began: Callable[[TrialTask, str], None],
        put: Callable[[AttemptEvent], object],
    ) -> None:
        self._sink, self._group, self._tell_began, self._put_event = sink, group, began, put
        self._tasks: dict[str, TrialTask] = {}
        """The newest attempt of each run."""
        self._notes: dict[str, ObjectiveNotes] = {}
        self._process = ""
        """The process whose batch is handled now; batches are handled one after the other, on one thread."""

    def expect(self, task: TrialTask) -> None:
        """An attempt is about to begin."""

        def reported(step: float, values: tuple[float, ...]) -> None:
            self._put_event(AttemptReported(task.trial, task.attempt, step, values))

        self._notes[task.run] = ObjectiveNotes(self._sink, task.metrics, reported)
        self._tasks[task.run] = task

    def runs_of(self, batch: RecordBatch) -> Collection[str] | None:
        """Return the runs to which the process of a batch may write; None if it is not a worker of this search."""
        self._process = batch.process
        return self._tasks if batch.spec is not None and batch.spec.group == self._group else None

    def put(self, run: str, record: Record) -> None:
        self._sink.put(run, record)
        if isinstance(record, AttemptBegan):
            task = self._tasks[run]
            if record.number == task.attempt:
                self._tell_began(task, self._process)
        elif isinstance(record, Metrics):
            self._notes[run].note(record)
        elif isinstance(record, EventHappened) and record.kind == SUGGESTED:
            task = self._tasks[run]
            match record.data:
                case {"values": dict(), "distributions": dict()} if _are_suggested(**record.data):
                    data = cast("dict[str, dict[str, Any]]", record.data)
                    event = AttemptSuggested(task.trial, task.attempt, data["values"], data["distributions"])
                    self._put_event(event)
                case _:  # an event of the user
                    pass

    def flush(self, timeout_s: float) -> bool:
        return self._sink.flush(timeout_s)

    def settle(self, timeout_s: float) -> bool:
        return self._sink.settle(timeout_s)


class ThreadPlaces(Places):
    """Attempts as threads of the launcher, for trials that start processes of their own.

    Args:
        train: the function of the search.
        num: number of attempts at a time.
        sink: takes the records of all trials.
    """

    def __init__(self, train: Train, num: int, sink: RecordSink) -> None:
        super().__init__()
        self.num = num
        self._train, self._sink = train, sink
        self._requests: dict[int, Request] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def begin(self, task: TrialTask) -> None:
        def work() -> None:
            def reported(step: float, values: tuple[float, ...]) -> None:
                self._tell(AttemptReported(task.trial, task.attempt, step, values))

            self._tell(AttemptBegun(task.trial, task.attempt))
            try:
                outcome = work_on(
                    self._train,
                    task,
                    self._sink,
                    lambda: Request.STOP if self._is_closed else self._requests.get(task.token, Request.NOTHING),
                    reported,
                )
                self._tell(AttemptReturned(task.trial, task.attempt, outcome))
            except BaseException as error:  # an exit of a thread would not be noticed
                self._tell(AttemptDied(task.trial, task.attempt, f"{type(error).__name__}: {error}", "exit"))

        thread = threading.Thread(target=work, name=f"ropewalk-trial-{task.trial}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def request(self, task: TrialTask, request: Request) -> None:
        self._requests[task.token] = request

    def kill(self, task: TrialTask) -> None:
        """Ask it to stop: a thread cannot be killed."""
        self.request(task, Request.STOP)

    def close(self) -> None:
        self._is_closed = True
        for thread in self._threads:
            thread.join()


def _are_suggested(values: dict[str, Any], distributions: dict[str, Any], **others: object) -> bool:
    """Return whether these are hyperparameters with their distributions.

    They come from the process of a trial, which may be broken, or from an event of the user; the book of the search
    keeps them, and neither it nor a sampler could go on with others.
    """
    try:
        for name, value in values.items():
            if fitted(distribution_of(distributions[name], name), value) != value or not all(name.split(".")):
                return False
    except (SearchInvalid, ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def _cause_of(error: WorkerLost) -> str:
    return f"{error.cause}\n{error.last_output}" if error.last_output else error.cause or str(error)


def _kind_of(error: WorkerLost) -> str:
    """Return how a worker ended, without what differs each time: "was killed by SIGKILL", "exited with code 1"."""
    words = _ENDING.search(error.cause or str(error))
    return words[0] if words else "ended"
