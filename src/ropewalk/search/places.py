"""`Places`: where attempts of trials run. Workers of a pool, or threads of the launcher.

    search ── begin(task) ─▶ Places ─▶ worker: work_on(train, task)
           ◀─ next_event() ─          ◀─ reports as records, the outcome as the task's result

Workers are the rule. Threads are for trials that start processes of their own on several hosts: a `Trainer` or a
`Program` inside of a pool's worker gets processes of that worker's host only.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ropewalk.engines.resources import Resources
from ropewalk.errors import PoolClosed, RopewalkError, TaskCancelled, WorkerLost
from ropewalk.pool.pool import Pool
from ropewalk.processes.session import Session
from ropewalk.search.trial_task import Request, TrialOutcome, TrialTask, work_on

Train = Callable[..., Any]
"""`train(run, **hyperparameters)`: returns a number, a mapping of metrics, a `Program` to run, or None."""


@dataclass(frozen=True, slots=True)
class AttemptReported:
    """An attempt has logged the metrics of the search."""

    trial: int
    attempt: int
    step: float
    values: tuple[float, ...]


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


AttemptEvent = AttemptReported | AttemptReturned | AttemptDied


class Places(ABC):
    """Runs a limited number of attempts at a time.

    Attributes:
        num: how many.
    """

    num: int

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[AttemptEvent | BaseException] = queue.SimpleQueue()

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
        """End everything."""

    def next_event(self, timeout_s: float) -> AttemptEvent | None:
        """Return the next event; None if there is none within `timeout_s` seconds.

        Raises:
            RopewalkError: no attempt can run any more, and why.
        """
        try:
            event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, BaseException):
            raise event
        return event


class PoolPlaces(Places):
    """Attempts as tasks of a pool, each in a worker that earlier attempts have warmed."""

    def __init__(
        self,
        train: Train,
        num: int,
        *,
        engine: str | None,
        session: Session | None,
        resources: Resources | None,
        preload: tuple[str, ...],
        name: str,
    ) -> None:
        super().__init__()
        self.num = num
        self._work = partial(work_on, train)
        self._process_of: dict[tuple[str, int], str] = {}
        """Process id of each attempt that has begun, by the trial's run and the attempt's number."""
        self._wanted: dict[tuple[str, int], Request | None] = {}
        """What is asked of attempts whose process is not known yet; None kills it."""
        self._lock = threading.Lock()
        self.pool = Pool(
            num, engine=engine, session=session, resources=resources, preload=preload, at_most_once=True, name=name
        )

    def begin(self, task: TrialTask) -> None:
        def returned(outcome: TrialOutcome) -> None:
            self.events.put(AttemptReturned(task.trial, task.attempt, outcome))

        def failed(error: BaseException) -> None:
            if isinstance(error, WorkerLost):
                self.events.put(AttemptDied(task.trial, task.attempt, str(error), f"died: {_kind_of(error)}"))
            elif isinstance(error, PoolClosed | TaskCancelled):
                self.events.put(error)
            else:  # the function cannot be loaded there, or its outcome cannot be sent
                self.events.put(AttemptReturned(task.trial, task.attempt, TrialOutcome.of_error(error)))

        try:
            self.pool.apply_async(self._work, (task,), callback=returned, error_callback=failed)
        except RopewalkError as error:
            self.events.put(error)

    def began(self, run: str, attempt: int, process: str) -> None:
        """Note which process works on an attempt; from the loop's thread."""
        with self._lock:
            self._process_of[run, attempt] = process
            asked = self._wanted.pop((run, attempt), Request.NOTHING)
        if asked is None:
            self.pool.session.processes.kill(process)
        elif asked is not Request.NOTHING:
            self._send(process, attempt, asked)

    def request(self, task: TrialTask, request: Request) -> None:
        process = self._process(task, request)
        if process is not None:
            self._send(process, task.attempt, request)

    def kill(self, task: TrialTask) -> None:
        process = self._process(task, None)
        if process is not None:
            self.pool.session.loop.call_soon(lambda: self.pool.session.processes.kill(process))

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()

    def _process(self, task: TrialTask, request: Request | None) -> str | None:
        with self._lock:
            process = self._process_of.get((task.run, task.attempt))
            if process is None:
                self._wanted[task.run, task.attempt] = request
            return process

    def _send(self, process: str, attempt: int, request: Request) -> None:
        session = self.pool.session
        session.loop.call_soon(lambda: session.processes.request(process, request.word(attempt)))


class ThreadPlaces(Places):
    """Attempts as threads of the launcher, for trials that start processes of their own."""

    def __init__(self, train: Train, num: int, make_task: Callable[[TrialTask], TrialTask]) -> None:
        super().__init__()
        self.num = num
        self._train, self._make_task = train, make_task
        self._requests: dict[tuple[str, int], Request] = {}

    def begin(self, task: TrialTask) -> None:
        key = task.run, task.attempt

        def work() -> None:
            try:
                outcome = work_on(self._train, task, requests=lambda: self._requests.get(key, Request.NOTHING))
            except BaseException as error:  # also an exit: the thread's end would not be noticed
                outcome = TrialOutcome.of_error(error)
            self.events.put(AttemptReturned(task.trial, task.attempt, outcome))

        threading.Thread(target=work, name=f"trial-{task.trial}", daemon=True).start()

    def request(self, task: TrialTask, request: Request) -> None:
        self._requests[task.run, task.attempt] = request

    def kill(self, task: TrialTask) -> None:
        self.request(task, Request.STOP)

    def close(self) -> None:
        pass


def _kind_of(error: WorkerLost) -> str:
    """Return how a worker ended, without what differs each time: "SIGKILL", "out of memory", "exit code 1"."""
    first = (error.cause or str(error)).split("\n", 1)[0]
    return "".join(character for character in first if not character.isdigit())[:80]
