"""The dispatcher: carries out what the task table and the scaling decide.

    caller's thread ── submit ──┐                        ┌─▶ Tasks to workers
                                ├─▶ table, scaling ──────┤
    loop's thread ── messages ──┘   (under one lock)     └─▶ jobs: accept, abandon

The dispatcher holds the pool's lock, the links of its workers and the list of constants that each worker has. It is
called by the user's threads, which may wait, and by the session's loop, which may not; it runs no user code in either.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ropewalk.control.event_log import EventLog
from ropewalk.engines.resources import Resources
from ropewalk.errors import (
    CrashLoop,
    InitializerFailed,
    LinkClosed,
    PoolClosed,
    ProcessLimit,
    RopewalkError,
    StartFailed,
)
from ropewalk.pool import verdicts
from ropewalk.pool.constants import Constant
from ropewalk.pool.kept_constants import KeptConstants
from ropewalk.pool.messages import (
    POOL,
    BeginWorker,
    CallKind,
    Forget,
    Setup,
    SetupFailed,
    Skipped,
    StopWorker,
    Tasks,
    TasksDone,
    UnitHeader,
    WorkerReady,
)
from ropewalk.pool.messages import ConstantMessage as ConstantHere
from ropewalk.pool.results import PoolJob, RaisedEntry, ResultBatch, rebuild_error
from ropewalk.pool.scaling import Elasticity, Scaling, Seat, first_to_go
from ropewalk.pool.status import PoolStatus, WorkerStatus
from ropewalk.pool.task_stream import TaskStream, parts_of_stream
from ropewalk.pool.task_table import Finished, GivenUp, SpanAssignment, TaskTable, TaskUnit
from ropewalk.pool.worker_identity import next_identity
from ropewalk.processes.deaths import record_of
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.messages import Exited, NotStarted, TaskReport
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.page import ERROR, IDLE, PageReport
from ropewalk.processes.session import Session
from ropewalk.supervision.failure import DeathRecord
from ropewalk.supervision.restart import GiveUp, StartAgain
from ropewalk.supervision.shutdown import Graces, Instruction, Rung, Shutdown, Terminate
from ropewalk.transport.blobs import open_parts
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.main_namespace import main_facts

logger = logging.getLogger(__name__)

_WATCH_S = 0.005
_WATCH_WORKERS = 256
"""With more workers than this that hold several tasks, each one is checked less often."""
_LOOK_S = 0.05
"""Seconds between two checks of whether an elastic pool has as many workers as it needs."""
_TERMINATE_S = 1.0
"""Seconds from SIGTERM to SIGKILL for a worker."""
_MOST_HELD = 16
"""The largest number of messages that are held back, at an idle worker, to be sent together."""
_MAX_FDS = 32
"""File descriptors in one message; the kernel takes at most 253."""
_KEPT_DEATHS = 1000


@dataclass(slots=True, eq=False)
class Content:
    """The content of a unit's tasks, ready to send."""

    kind: int
    seed: int
    needs: Sequence[Constant]
    """Constants that the worker must have first; the last one is the one to call."""
    parts: list[Part]
    shared: tuple[int, ...] = ()
    fd: int = -1
    span: tuple[int, int, int] | None = None
    """Start, stop and step of the items if they are those of a range; they need no parts."""

    @property
    def function(self) -> str:
        """The name of what is called."""
        return self.needs[-1].label if self.needs else ""

    def described(self, index: int | None) -> str:
        """Return what a task is for users: the function, with the index of the task in a map."""
        return self.function if index is None or self.kind in CallKind.SINGLE else f"{self.function} {index}"

    def close(self) -> None:
        """Free the memory; may be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.parts = []


@dataclass(slots=True, eq=False)
class PoolWorkerRecord:
    """The dispatcher's record of one worker."""

    id: str
    rank: int
    name: str
    identity: tuple[int, ...]
    """Its identity in multiprocessing."""
    link: Link | None = None
    ready: bool = False
    stopping: bool = False
    known: dict[str, int] = field(default_factory=dict[str, int])
    """Ids of the constants that it has, with their numbers on its link."""
    next_number: int = 0
    num_done: int = 0
    connected: float = 0.0
    """Monotonic time at which its link was up; 0 before."""
    host: str = "this host"
    host_leaves: bool = False
    """Whether its host is being taken away: its end is then neither its own fault nor that of its task."""

    @property
    def state(self) -> str:
        """Its state without regard to tasks: "starting", "idle" or "stopping"."""
        return "stopping" if self.stopping else "idle" if self.ready else "starting"

    @property
    def where(self) -> str:
        """Name and host of the worker, for notes on errors."""
        return f"{self.name} on {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a pool's workers are made."""

    name: str
    resources: Resources
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    initializer: Constant | None
    arguments: Constant | None
    units_per_worker: int | None
    task_timeout_s: float | None
    max_deaths: int
    at_most_once: bool


class Dispatcher:
    """The workers and tasks of one pool; an `Owner` of processes."""

    def __init__(
        self, session: Session, options: WorkerOptions, num_workers: int, elasticity: Elasticity | None = None
    ) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.table = TaskTable(
            max_deaths=options.max_deaths, at_most_once=options.at_most_once, begins=lambda job: job.begin()
        )
        self.scaling = Scaling(num_workers)
        self.elasticity = elasticity
        self._looking = False
        self.workers: dict[str, PoolWorkerRecord] = {}
        self.deaths: deque[DeathRecord] = deque(maxlen=_KEPT_DEATHS)
        self.num_deaths = 0
        self.events: deque[str] = deque(maxlen=100)
        self.log = EventLog()
        """The same, with their times, and with deaths and tasks that start again."""
        self.when_failed: Callable[[], object] = _nothing
        """Called, on the loop, when the session gives no more processes."""
        self.stream: TaskStream | None = None
        """Records which worker runs what, while somebody looks."""
        self.broken: BaseException | None = None
        self.constants = KeptConstants()
        self._session = session
        self._options = options
        self._jobs: dict[PoolJob, int] = {}
        parent = multiprocessing.current_process()
        main = msgspec.msgpack.encode(main_facts())
        self._begin = BeginWorker(main, bytes(parent.authkey), (), parent.name, os.getpid())
        self._setup = Setup(
            options.initializer.id if options.initializer else "",
            options.arguments.id if options.arguments else "",
        )
        self._finishing = False
        self._shutdown: Shutdown | None = None
        self._watching = False
        with self.lock:
            self._fill_up()
            self._look_soon()

    # Called by the user's threads

    def submit(self, units: Sequence[TaskUnit]) -> None:
        """Run units; their job is told of the results.

        Raises:
            PoolClosed: the pool takes no more work.
            Exception: what broke the pool.
        """
        with interrupts_deferred, self.lock:
            if self.broken or self._finishing or any(unit.job.dropped for unit in units):
                for unit in units:
                    unit.content.close()
                self.raise_if_broken()
                if self._finishing:
                    raise PoolClosed("this pool is closed and takes no more tasks")
                return
            for unit in units:
                self._jobs[unit.job] = self._jobs.get(unit.job, 0) + unit.count
                for constant in unit.content.needs:
                    self.constants.use(constant)
            self.table.submit(units)
            self._assign()
            self._look_soon()

    def raise_if_broken(self) -> None:
        """Raise the error that broke the pool, if there is one."""
        if self.broken:
            raise self.broken

    def resize(self, num_workers: int) -> None:
        """Change the number of workers; surplus ones finish the task they are in."""
        with interrupts_deferred, self.lock:
            self._resize(num_workers)
            self._look_soon()

    def cancel(self, job: PoolJob, error: BaseException | None = None) -> None:
        """Forget the unstarted tasks of a job, and fail it with `error` if given."""
        with interrupts_deferred, self.lock:
            if job not in self._jobs:
                return
            for holder in self.table.cancel(job):
                self._session.processes.recall(holder, self.table.next_seq(holder), everything=True)
            self._count_off_dropped()
            self._jobs.pop(job, None)
            if error:
                job.abandon(error)
            self._assign()
            self.changed.notify_all()

    def sweep(self) -> None:
        """Forget the tasks of withdrawn jobs that no worker has been given."""
        with interrupts_deferred, self.lock:
            self.table.sweep(lambda job: job.withdrawn)
            self._count_off_dropped()
            self._stop_if_finished()
            self.changed.notify_all()

    def jobs(self) -> list[PoolJob]:
        """Return all jobs that wait for results."""
        with interrupts_deferred, self.lock:
            return list(self._jobs)

    def finish(self) -> None:
        """Take no more work; the workers end when all tasks are done."""
        with interrupts_deferred, self.lock:
            self._finishing = True
            self._stop_if_finished()

    def terminate(self, error: BaseException, grace_s: float | None = None) -> None:
        """Take no more work, fail all jobs, and end the workers; see `Pool.terminate`."""
        with interrupts_deferred, self.lock:
            self._finishing = True
            self._abandon_all(error)
            self._end_workers(grace_s)

    def hold(self, constant: Constant) -> Constant:
        """Keep a constant until `let_go`; return the one of the same content that is here already, if there is one."""
        with interrupts_deferred, self.lock:
            known = self.constants.get(constant.id)
            if known is not None and known is not constant:
                constant.close()
                constant = known
            self.constants.use(constant)
            self._forget_crowded_out()
            return constant

    def hold_known(self, id: str) -> Constant | None:
        """Keep the constant with this hash until `let_go`, and return it; None if it is not here."""
        with interrupts_deferred, self.lock:
            constant = self.constants.get(id)
            if constant:
                self.constants.use(constant)
            return constant

    def let_go(self, *constants: Constant) -> None:
        """Undo one `hold` of each constant."""
        with interrupts_deferred, self.lock:
            for constant in constants:
                self.constants.unuse(constant)
            self._forget_crowded_out()

    def close(self) -> None:
        """Free the memory of all constants, after all workers are gone."""
        with interrupts_deferred, self.lock:
            for constant in self.constants:
                self._session.blobs.drop(constant.id, self)
                constant.close()
            self.constants = KeptConstants()

    def limit_ahead(self, num_units: int) -> None:
        """Give a worker at most this number of units at a time; by default as many as are expected to be short."""
        with self.lock:
            self.table.most_ahead = num_units

    def wait_until_ready(self, timeout_s: float | None) -> bool:
        """Wait until all workers that are wanted take tasks; returns False if they do not within `timeout_s` seconds.

        Raises:
            BaseException: what broke the pool.
        """
        with self.lock:  # not `with changed`: an interrupt could come while that enters, and leave it locked
            ready = self.changed.wait_for(
                lambda: self.broken or sum(one.ready for one in self.workers.values()) >= self.scaling.wanted, timeout_s
            )
            self.raise_if_broken()
        return bool(ready)

    def wait_until_finished(self) -> None:
        """Wait until every worker is gone, after `finish` or `terminate`."""
        with self.lock:
            self.changed.wait_for(lambda: self.finished)

    def worker_ids(self, *, ending: bool = True) -> list[str]:
        """The ids of the workers; with `ending=False` without those that only end."""
        return [id for id, worker in list(self.workers.items()) if ending or not worker.stopping]

    def status(self, name: str, state: str) -> PoolStatus:
        """A snapshot of the pool, under its name and in its state."""
        table = self.table
        with self.lock:
            workers = sorted(self.workers.values(), key=lambda worker: worker.rank)
            tasks = [(table.current_task(w.id), table.since(w.id), table.num_items(w.id)) for w in workers]
            status = PoolStatus(
                name=name,
                state=state,
                workers=(),
                queued=table.num_pending,
                running=table.num_running,
                done=table.num_done,
                failed=table.num_failed,
                retried=table.num_retried,
                num_deaths=self.num_deaths,
                deaths=tuple(self.deaths),
                events=tuple(self.events),
            )
        statuses = [self._worker_status(worker, *task) for worker, task in zip(workers, tasks, strict=True)]
        return replace(status, workers=tuple(statuses), ways=tuple(map(str, self._session.ways())))

    def _worker_status(
        self, worker: PoolWorkerRecord, current: tuple[TaskUnit, int] | None, since: float, num_items: int
    ) -> WorkerStatus:
        processes, now = self._session.processes, time.monotonic()
        sample = processes.sample_of(worker.id)
        index = current[0].first_index + current[1] if current else None
        content: Content | None = current[0].content if current else None
        expected_ns = self.table.pace.expected_ns(current[0].code) if current else None
        return WorkerStatus(
            name=worker.name,
            pid=processes.pid_of(worker.id),
            host=processes.host_of(worker.id),
            state=worker.state if worker.state != "idle" or current is None else "running",
            task=index,
            num_done=worker.num_done,
            memory_bytes=sample.memory_bytes if sample else 0,
            cpu_s=sample.cpu_s if sample else 0.0,
            doing="" if content is None else content.described(index),
            doing_s=now - since if current else 0.0,
            expected_s=None if expected_ns is None else expected_ns / 1e9,
            num_waiting=max(0, num_items - 1),
            uptime_s=now - worker.connected if worker.connected else 0.0,
            silent_s=processes.silence_of(worker.id),
        )

    @property
    def state(self) -> str:
        """The state of the pool, as in `View`."""
        if self.broken and not isinstance(self.broken, PoolClosed):
            return "failed"
        if self.broken or self.finished:
            return "closed"
        if self._finishing:
            return "stopping"
        return "running" if any(worker.ready for worker in list(self.workers.values())) else "starting"

    def stream_since(self, cursor: int) -> dict[str, Any]:
        """Return the rows of the task stream after a cursor, and record it from now on for a while."""
        with self.lock:
            if self.stream is None:
                self.stream = TaskStream()
            return self.stream.since(cursor, time.time())

    @property
    def most_workers(self) -> int:
        """The number of workers that the pool wants, or the largest number if it is elastic."""
        return self.elasticity.most if self.elasticity else self.scaling.wanted

    @property
    def finished(self) -> bool:
        """Whether every worker is gone after `finish` or `terminate`."""
        return self._finishing and not self.workers and not self.table.num_pending

    # Called by the session's loop, as an `Owner`

    def on_link(self, id: str, link: Link) -> None:
        with self.lock:
            worker = self.workers[id]
            worker.link, worker.connected = link, time.monotonic()
            worker.host = self._session.processes.host_of(id) or worker.host
            if worker.stopping and self._shutdown:  # it became surplus before it had started
                self._send(worker, StopWorker())
                return
            self._send(worker, msgspec.structs.replace(self._begin, identity=worker.identity))
            for constant in (self._options.initializer, self._options.arguments):
                if constant:
                    self._provide(worker, constant, writable=constant is self._options.arguments)
            self._send(worker, self._setup)
            for constant in (self._options.initializer, self._options.arguments):
                if constant:  # the worker forgets both when the initializer has returned; a task may need them again
                    worker.known.pop(constant.id, None)
            if worker.stopping:  # no tasks are left for it, but its initializer runs, as in multiprocessing
                self._send(worker, StopWorker())

    def on_message(self, id: str, received: Received) -> None:
        with self.lock:
            worker = self.workers.get(id)
            if worker is None:
                return
            match received.message:
                case TasksDone() as done:
                    self._done(worker, done, received)
                case Skipped(first, count):
                    self.table.taken_back(id, first, first + count, time.monotonic())
                case WorkerReady():
                    self._ready(worker)
                case SetupFailed(failure):
                    error = InitializerFailed(
                        f"the pool's initializer raised {failure.type_name}: {failure.message} (in {worker.name}); "
                        "no worker can start"
                    )
                    error.__cause__ = rebuild_error(failure, worker.where)
                    worker.stopping = True
                    self._break(error)
                case _:
                    raise RuntimeError(f"a pool cannot do anything with {received.message!r}")
            self._after_news(worker)

    def on_report(self, id: str, report: TaskReport) -> None:
        with self.lock:
            worker = self.workers.get(id)
            if worker is None:
                return
            self._accept_page(worker, report.page)
            if report.recalled_until:
                self.table.taken_back(id, report.recalled_from, report.recalled_until, time.monotonic())
            self._after_news(worker)

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        with self.lock:
            worker = self.workers.pop(id, None)
            if worker is None:
                return
            if self._shutdown:
                self._shutdown.exited(id)
            if host_lost:
                self._give_up(self.table.vanished(id, exited.ended_by), worker, exited)
                self.scaling.gone(worker.rank)
            else:
                self._accept_page(worker, exited.page)
                self._died(worker, exited)
            self._count_off_dropped()
            self._fill_up()
            self._assign()
            self._stop_if_finished()
            self.changed.notify_all()

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        with self.lock:
            worker = self.workers.pop(id, None)
            if worker is None:
                return
            if failure.limit:
                self.scaling.gone(worker.rank)
                if self.elasticity and self.scaling.wanted > self.elasticity.least:
                    self._grow_no_further(failure.reason)
                else:
                    self._break(ProcessLimit(failure.reason))
            else:
                self._replace(worker, failure.reason, StartFailed)
            self.changed.notify_all()

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        with self.lock:
            worker = self.workers.get(id)
            if worker is None:
                return
            worker.host_leaves = True
            if not worker.stopping:  # it is replaced on another host; the tasks that it runs may finish
                self.scaling.leaving(worker.rank)
                self._drain(worker)
                self._fill_up()

    def on_event(self, text: str, kind: str = "") -> None:
        self.events.append(text)
        self.log.add(text, kind)

    def on_failed(self, error: Exception) -> None:
        self.when_failed()
        with self.lock:
            if self.finished:
                return
            ids = list(self.workers)
            self.workers.clear()
            if not self._shutdown:
                self._break(error)
            for id in ids:
                self.table.vanished(id, str(error))
            self._count_off_dropped()
            self.changed.notify_all()

    # Tasks

    def _assign(self) -> None:
        assignments = self.table.assign(time.monotonic())
        if assignments:
            by_worker: dict[str, list[SpanAssignment]] = {}
            for assignment in assignments:
                by_worker.setdefault(assignment.worker, []).append(assignment)
            for id, those in by_worker.items():
                self._send_tasks(self.workers[id], those)
        self._count_off_dropped()
        if not self._watching and self.table.watchful:
            self._watching = True
            self._session.loop.call_soon(self._watch_later)

    def _send_tasks(self, worker: PoolWorkerRecord, assignments: list[SpanAssignment]) -> None:
        headers: list[UnitHeader] = []
        parts: list[Part] = []
        fds: list[int] = []
        for _, seq, (unit, start, stop) in assignments:
            content: Content = unit.content
            for constant in content.needs:
                if constant.id not in worker.known:
                    self._provide(worker, constant)
            headers.append(
                UnitHeader(
                    seq,
                    worker.known[unit.code],
                    content.kind,
                    start,
                    stop,
                    unit.first_index,
                    content.seed,
                    content.span,
                    len(content.parts),
                    content.shared,
                    unit.patient,
                )
            )
            if content.shared:
                fds.append(content.fd)
            else:
                parts += content.parts
            if len(fds) == _MAX_FDS:
                self._send(worker, Tasks(headers), parts, fds)
                headers, parts, fds = [], [], []
        if headers:
            self._send(worker, Tasks(headers), parts, fds)

    def _provide(self, worker: PoolWorkerRecord, constant: Constant, *, writable: bool = False) -> None:
        worker.known[constant.id] = number = worker.next_number
        worker.next_number += 1
        fds: Sequence[int] = ()
        if constant.blob:
            if worker.link and worker.link.stream.carries_fds:
                fds = [constant.fd]  # the memory file is on this host, so the worker need not ask its agent for it
            else:
                self._session.blobs.provide(worker.id, constant.blob, constant.fd)
        self._hold(worker, ConstantHere(number, constant.id, constant.blob, writable), constant.parts, fds)

    def _hold(
        self, worker: PoolWorkerRecord, message: msgspec.Struct, parts: Sequence[Part] = (), fds: Sequence[int] = ()
    ) -> None:
        """Send a message together with the next one: one system call, and the worker wakes up once."""
        if worker.link:
            with contextlib.suppress(LinkClosed):
                worker.link.hold(message, parts, fds)

    def _send(
        self, worker: PoolWorkerRecord, message: msgspec.Struct, parts: Sequence[Part] = (), fds: Sequence[int] = ()
    ) -> None:
        if worker.link:
            with contextlib.suppress(LinkClosed):  # its exit will be reported, which gives back the tasks it held
                worker.link.send(message, parts, fds)

    def _done(self, worker: PoolWorkerRecord, done: TasksDone, received: Received) -> None:
        parts: Sequence[Part] = received.parts
        if done.shared:
            parts = open_parts(received.fds.take(), done.shared, writable=True)
        count = len(done.values)
        batch = ResultBatch(done.values, done.nested, parts, worker.where)
        worker.num_done += count
        finished = self.table.done(worker.id, done.first, count, done.elapsed_ns, time.monotonic())
        if self.stream is not None:
            errors = [at for at, kind in done.nested.items() if kind == ERROR]
            self._record(worker, finished, done.elapsed_ns / 1e9, 0.0, errors)
        self._accept(finished, batch)

    def _accept_page(self, worker: PoolWorkerRecord, page: PageReport) -> None:
        if page.codes:
            finished = self.table.done(worker.id, page.base, len(page.codes), 0, time.monotonic())
            if finished:
                if self.stream is not None:
                    errors = [at for at, kind in enumerate(page.codes) if kind == ERROR]
                    self._record(worker, finished, 0.0, page.running_s, errors)
                self._accept(finished, ResultBatch.of_page(page, worker.where))

    def _record(
        self, worker: PoolWorkerRecord, finished: list[Finished], elapsed_s: float, ago_s: float, errors: list[int]
    ) -> None:
        """Record in the task stream what a worker has finished `ago_s` seconds ago, if somebody looks."""
        stream, now = self.stream, time.time()
        if stream is None or now > stream.until:
            self.stream = None
            return
        if finished:
            stream.finished(worker.name, parts_of_stream(finished, errors), elapsed_s, now - ago_s)

    def _accept(self, finished: list[Finished], batch: ResultBatch) -> None:
        for (unit, start, stop), offset in finished:
            if not unit.cancelled:
                unit.job.accept(unit.first_index + start, stop - start, batch, offset)
            self._count_off(unit, stop - start)

    def _count_off(self, unit: TaskUnit, count: int) -> None:
        unit.num_ended += count
        if unit.num_ended == unit.count:
            unit.content.close()
            for constant in unit.content.needs:
                self.constants.unuse(constant)
            self._forget_crowded_out()
        left = self._jobs.get(unit.job)
        if left is not None:
            if left == count:
                del self._jobs[unit.job]
            else:
                self._jobs[unit.job] = left - count

    def _count_off_dropped(self) -> None:
        for unit, start, stop in self.table.dropped():
            self._count_off(unit, stop - start)

    def _give_up(self, given_up: list[GivenUp], worker: PoolWorkerRecord, exited: Exited) -> None:
        for unit, item, deaths in given_up:
            index = None if unit.content.kind in CallKind.SINGLE else unit.first_index + item
            error = self._error_for(index, deaths, worker, exited)
            unit.job.accept(unit.first_index + item, 1, ResultBatch.of([RaisedEntry(error)]), 0)
            self._count_off(unit, 1)

    def _error_for(
        self, index: int | None, deaths: tuple[str, ...], worker: PoolWorkerRecord, exited: Exited
    ) -> Exception:
        options = self._options
        if exited.timed_out:
            return verdicts.timed_out(index, worker.name, options.task_timeout_s or 0.0, exited)
        if options.at_most_once:
            return verdicts.lost(index, worker.name, deaths[-1], exited)
        return verdicts.poisoned(index, worker.name, deaths, options.max_deaths, exited)

    def _after_news(self, worker: PoolWorkerRecord) -> None:
        """After a worker's message: assign tasks, stop the worker if it is finished, end if all is done."""
        self._count_off_dropped()
        self._assign()
        if self.table.exhausted(worker.id):
            self._stop(worker)
        elif not self.table.num_items(worker.id):
            self._recall()
        if self.table.idle:
            self._stop_if_finished()
            self.changed.notify_all()

    # Watching: tasks that wait behind a slow one, results that wait in a busy worker

    def _watch_later(self) -> None:
        self._session.loop.call_later(_WATCH_S * max(1.0, self.table.num_deep / _WATCH_WORKERS), self._watch)

    def _watch(self) -> None:
        with self.lock:
            self._recall()
            for id in self.table.silent(time.monotonic()):
                self._session.processes.peek(id)
            for id in self.table.cancelled_behind():
                self._session.processes.recall(id, self.table.next_seq(id), everything=True)
            if self.table.watchful:
                self._watch_later()
            else:
                self._watching = False

    def _recall(self) -> None:
        for id, until in self.table.recallable(time.monotonic()):
            self._session.processes.recall(id, until)

    # Elastic pools: as many workers as the work needs

    def _resize(self, num_workers: int) -> None:
        self.scaling.wanted = num_workers
        self._fill_up()
        staying = {worker.rank: worker for worker in self.workers.values() if not worker.stopping}
        seats = [
            Seat(w.rank, self._session.processes.agent_of(w.id), self.table.num_items(w.id)) for w in staying.values()
        ]
        for rank in self.scaling.surplus(first_to_go(seats)):
            worker = staying[rank]
            self._drain(worker)
            self._session.processes.withdraw(worker.id)

    def _grow_no_further(self, why: str) -> None:
        """Stop growing: there is no place for another worker of an elastic pool."""
        assert self.elasticity
        self.scaling.wanted -= 1
        self.elasticity.most = self.scaling.wanted
        self.on_event(f"{self._options.name} stays at {self.scaling.wanted} workers: {why}", "scale")

    def _look_soon(self) -> None:
        if self.elasticity and not self._looking:
            self._looking = True
            self._session.loop.call_soon(self._look_later)

    def _look_later(self) -> None:
        self._session.loop.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        """Check whether an elastic pool has too few workers for its work, or too many."""
        elasticity = self.elasticity
        assert elasticity
        with self.lock:
            self._looking = False
            if self.broken or self._shutdown or (self._finishing and self.table.idle):
                return
            wanted, needed = self.scaling.wanted, self.table.num_parallel
            per_agent = self._session.processes.per_agent(self._options.resources)
            size = elasticity.look(time.monotonic(), wanted, needed, per_agent)
            if size != wanted:
                self._resize(size)
                verb = "grows" if size > wanted else "shrinks"
                self.on_event(f"{self._options.name} {verb} from {wanted} to {size} workers", "scale")
            if not elasticity.rests(size, needed):
                self._looking = True
                self._look_later()

    # Workers

    def _fill_up(self) -> None:
        if self.broken or self._shutdown or (self._finishing and self.table.idle):
            return
        for rank in self.scaling.missing():
            spec = ProcessSpec(
                group=self._options.name,
                rank=rank,
                entry="ropewalk.pool.worker:main",
                codec=POOL,
                resources=self._options.resources,
                preload=self._options.preload,
                environment=self._options.environment,
                task_limit_s=self._options.task_timeout_s,
            )
            id = self._session.processes.start(spec, self)
            self.workers[id] = PoolWorkerRecord(id, rank, spec.name, next_identity())

    def _ready(self, worker: PoolWorkerRecord) -> None:
        now = time.monotonic()
        worker.ready = True
        self.scaling.ready(worker.rank, now)
        if not worker.stopping:  # it became surplus before it was ready, and will end
            way_s = self._session.processes.round_trip_of(worker.id)
            self.table.worker_up(worker.id, now, self._options.units_per_worker, way_s=way_s, host=worker.host)
        self.changed.notify_all()

    def _drain(self, worker: PoolWorkerRecord) -> None:
        self._session.processes.leaves(worker.id)
        self.table.drain(worker.id)
        if self.table.num_items(worker.id) > 1:
            self._session.processes.recall(worker.id, self.table.next_seq(worker.id), everything=True)
        if not self.table.num_items(worker.id):
            self._stop(worker)

    def _stop(self, worker: PoolWorkerRecord) -> None:
        """Let a worker that holds no tasks end by itself."""
        if worker.stopping:
            return
        worker.stopping = True
        self._session.processes.leaves(worker.id)
        self.table.drain(worker.id)
        self._send(worker, StopWorker())
        if self._options.initializer is None or self._session.passport:
            # Otherwise it starts to run its initializer, as in multiprocessing.
            self._session.processes.withdraw(worker.id)
        self.scaling.leaving(worker.rank)
        self._fill_up()

    def _stop_if_finished(self) -> None:
        if self._finishing and (self.table.idle or self.broken):
            for worker in list(self.workers.values()):
                self._stop(worker)

    def _end_workers(self, grace_s: float | None = None) -> None:
        """Send SIGTERM, so that exit handlers run, then SIGKILL; workers that are still starting are ended at once."""
        if self._shutdown:
            return
        for worker in self.workers.values():
            worker.stopping = True
            if not worker.link:
                self._session.processes.signal(worker.id, signal.SIGKILL)
        graces = Graces(terminate_s=_TERMINATE_S if grace_s is None else grace_s)
        self._shutdown = Shutdown(self.workers, graces)
        self._go_on_ending(self._shutdown.begin(time.monotonic(), at=Rung.TERMINATE))

    def _go_on_ending(self, instructions: Sequence[Instruction]) -> None:
        shutdown = self._shutdown
        assert shutdown
        for instruction in instructions:
            number = signal.SIGTERM if isinstance(instruction, Terminate) else signal.SIGKILL
            for id in instruction.names:
                self._session.processes.signal(id, number)
        if shutdown.next_due is not None:
            loop, delay_s = self._session.loop, max(0.0, shutdown.next_due - time.monotonic())
            loop.call_soon(lambda: loop.call_later(delay_s, self._still_ending))

    def _still_ending(self) -> None:
        with self.lock:
            if self._shutdown and self.workers:
                self._go_on_ending(self._shutdown.tick(time.monotonic()))

    def _died(self, worker: PoolWorkerRecord, exited: Exited) -> None:
        current = None if exited.page.current == IDLE else exited.page.current
        located = None if current is None else self.table.locate(worker.id, current)
        index = None
        if located and located[0].content.kind not in CallKind.SINGLE:
            index = located[0].first_index + located[1]
        record = record_of(exited, name=worker.name, host=worker.host, task_index=index)
        cause = f"{record.describe()} ({exited.ended_by})" if exited.ended_by else record.describe()
        if located and self.stream is not None:
            function = located[0].content.function
            self.stream.died(worker.name, function, exited.page.running_s, time.time())
        num_retried = self.table.num_retried
        innocent = (bool(exited.ended_by) or worker.host_leaves) and not exited.timed_out
        given_up = self.table.died(worker.id, current, cause, final=exited.timed_out, innocent=innocent)
        self._give_up(given_up, worker, exited)
        if worker.stopping or worker.host_leaves:
            self.scaling.gone(worker.rank)
        else:
            self.deaths.append(record)
            self.num_deaths += 1
            self.log.add(cause, "death", worker.name)
            if located and self.table.num_retried > num_retried:
                self.log.add(f"{located[0].content.described(index)} starts again", "retry", worker.name)
            self._replace(worker, cause, CrashLoop)

    def _replace(self, worker: PoolWorkerRecord, cause: str, failure: type[RopewalkError]) -> None:
        match self.scaling.died(worker.rank, time.monotonic(), cause):
            case StartAgain(delay_s) if delay_s:
                self._session.loop.call_soon(lambda: self._session.loop.call_later(delay_s, self._delay_over))
            case GiveUp(reason, deaths):
                first = f" The first: {deaths[0]}" if deaths else ""
                message = f"the workers of {self._options.name} do not stay up: {reason}.{first}"
                self._break(failure(message, deaths=deaths))
            case _:
                pass

    def _delay_over(self) -> None:
        with self.lock:
            self.scaling.delay_over()
            self._fill_up()

    def _break(self, error: BaseException) -> None:
        if self.broken is None:
            if not isinstance(error, PoolClosed):  # a script that ends with its pool open is no failure
                logger.error("%s is broken: %s", self._options.name, error)
            self.broken = error
            self._abandon_all(error)
            self._end_workers()
            self.changed.notify_all()

    def _abandon_all(self, error: BaseException) -> None:
        for job in list(self._jobs):
            self.table.cancel(job)
            self._jobs.pop(job, None)
            job.abandon(error)
        self._count_off_dropped()

    # Constants

    def _forget_crowded_out(self) -> None:
        removed = self.constants.crowded_out()
        if not removed:
            return
        for constant in removed:
            self.table.pace.forget(constant.id)
            if constant.blob:
                self._session.blobs.drop(constant.id, self)
            constant.close()
        for worker in self.workers.values():
            mine = [worker.known.pop(constant.id) for constant in removed if constant.id in worker.known]
            if mine and worker.link and worker.link.num_held < _MOST_HELD:
                self._hold(worker, Forget(mine))  # not urgent: sent with its next tasks
            elif mine:
                self._send(worker, Forget(mine))


def _nothing() -> None:
    pass
