"""The dispatcher: the one door to a pool's tasks and workers, under one lock.

    caller's thread ── submit ──┐                       ┌─▶ RemoteWorkers ─▶ tasks to workers, starts, ends
                                ├─▶ table, scaling ─────┤
    loop's thread ── messages ──┘   (decide)            └─▶ TaskLedger ─▶ jobs: accept, abandon

It is called by the user's threads, which may wait, and by the session's loop, which may not; it runs no user code in
either. Each part of the state has a class, whose methods are called with the lock held:

    TaskLedger      which jobs wait for which tasks          RemoteWorkers   the workers, as many as are wanted
    ConstantStore   functions and values, here and there     PoolGrowth      the size of an elastic pool
    TaskWatch       tasks and results that wait too long     PoolHistory     deaths and events
    StandstillWatch no task ends, and none can begin
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from ropewalk.control.view import EventView
from ropewalk.errors import CrashLoop, PoolClosed, ProcessLimit, RopewalkError, StartFailed
from ropewalk.pool.constant_store import ConstantStore
from ropewalk.pool.constants import Constant
from ropewalk.pool.growth import PoolGrowth
from ropewalk.pool.history import PoolHistory
from ropewalk.pool.messages import SetupFailed, Skipped, TasksDone, WorkerReady
from ropewalk.pool.remote_worker import RemoteWorker, first_message
from ropewalk.pool.remote_workers import RemoteWorkers
from ropewalk.pool.results import PoolJob
from ropewalk.pool.scaling import Elasticity
from ropewalk.pool.snapshot import pool_status, tasks_in_words, worker_loads, worker_status
from ropewalk.pool.standstill_watch import StandstillWatch
from ropewalk.pool.status import PoolStatus
from ropewalk.pool.task_ledger import TaskLedger
from ropewalk.pool.task_stream import TaskStream
from ropewalk.pool.task_table import TaskTable, TaskUnit
from ropewalk.pool.task_watch import TaskWatch
from ropewalk.pool.verdicts import initializer_failed
from ropewalk.pool.worker_options import WorkerOptions
from ropewalk.processes.death_warnings import DeathWarnings
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.messages import Exited, NotStarted, TaskReport
from ropewalk.processes.output_marks import mark_end
from ropewalk.processes.session import Session
from ropewalk.transport.link import Link, Received

logger = logging.getLogger(__name__)

_UNWANTED_S = 1.0
"""Seconds that a task may go on after the call that waited for it was interrupted."""
_RECALL_S = 0.02
"""Seconds in which the tasks behind it are usually taken back."""
_MOST_RECALLS = 50
"""Attempts at that; not every kernel has the barrier that a recall needs."""


class Dispatcher:
    """The workers and tasks of one pool; an `Owner` of processes.

    Args:
        session: the session that the workers belong to.
        options: how they are made, and how often they may repeat a task.
        num_workers: their number at the start.
        elasticity: changes that number with the work; None if only `resize` does.
    """

    def __init__(
        self, session: Session, options: WorkerOptions, num_workers: int, elasticity: Elasticity | None = None
    ) -> None:
        self._lock = lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._session = session
        self._options = options
        self._broken: BaseException | None = None
        self._broken_at: TracebackType | None = None
        """Where the error was raised before the pool got it: if that is still all, nobody has raised it to the user."""
        self._untold: BaseException | None = None
        self._when_failed: Callable[[], object] | None = None
        self._begin = first_message()
        self._table = table = TaskTable(
            max_deaths=options.max_deaths, at_most_once=options.at_most_once, begins=lambda job: job.begin()
        )
        self.history = PoolHistory()
        self.workers = RemoteWorkers(session, self, options, table, num_workers, lock)
        self.constants = ConstantStore(session.blobs, self, self.workers.by_id, table.pace)
        self.constants.hold_to_the_end(options.initializer, options.arguments)
        self.tasks = TaskLedger(table, self.constants, options)
        self._watch = TaskWatch(session, table, lock)
        self._describe = weakref.WeakMethod(self.in_words)
        self._standstill = StandstillWatch(options.name, session, table, self.workers.by_id, self.history, lock)
        self._warnings = DeathWarnings(logger, session.loop, lambda call: session.output.when_shown(call))
        self._growth = PoolGrowth(session, elasticity, self.workers, table, options, self.history, lock)
        with lock:
            try:
                self.workers.fill_up()
            except BaseException:
                self.constants.close()
                raise
            self._growth.look_soon()

    # Tasks, called by the user's threads

    def submit(self, units: Sequence[TaskUnit], let_go: Sequence[Constant] = ()) -> None:
        """Run units; their job is told of the results.

        Args:
            units: of one job.
            let_go: constants that the caller has held for these units, and holds no longer, whatever comes of them.

        Raises:
            PoolClosed: the pool takes no more work.
            Exception: what broke the pool.
        """
        with interrupts_deferred, self._lock:
            try:
                self._submit(units)
            finally:
                self.constants.let_go(let_go)

    def cancel(self, job: PoolJob, error: BaseException | None = None, *, running: bool = False) -> None:
        """Forget the unstarted tasks of a job, and fail it with `error` if given.

        Args:
            job: the job.
            error: how it fails.
            running: end the workers that are still in a task of the job a second later; others take their places.
        """
        with interrupts_deferred, self._lock:
            holders = self.tasks.cancel(job, error)
            if holders is None:
                return
            for holder in holders:
                self._watch.recall_all(holder)
            if running and holders:
                self._end_later(holders, _UNWANTED_S, _MOST_RECALLS)
            self._assign()
            self._changed.notify_all()

    def withdraw(self, job: PoolJob, error: BaseException) -> None:
        """Fail a job, and forget its tasks, if none of them was given to a worker yet; otherwise change nothing.

        Args:
            job: a job with one unit.
            error: how it fails.
        """
        with interrupts_deferred, self._lock:
            self.tasks.withdraw(job, error)
            self.workers.stop_if_finished()
            self._changed.notify_all()

    def sweep(self) -> None:
        """Forget the tasks of withdrawn jobs that no worker has been given."""
        with interrupts_deferred, self._lock:
            self.tasks.sweep()
            self.workers.stop_if_finished()
            self._changed.notify_all()

    def jobs(self) -> list[PoolJob]:
        """Return all jobs that wait for results."""
        with interrupts_deferred, self._lock:
            return self.tasks.jobs

    def limit_ahead(self, num_units: int) -> None:
        """Give a worker at most this number of units at a time; by default as many as are expected to be short."""
        with self._lock:
            self._table.most_ahead = num_units

    # Constants, called by the user's threads

    def hold(self, constant: Constant) -> Constant:
        """Keep a constant until `let_go`; return the one of the same content that is here already, if there is one."""
        with interrupts_deferred, self._lock:
            return self.constants.hold(constant)

    def hold_known(self, id: str) -> Constant | None:
        """Keep the constant with this hash until `let_go`, and return it; None if it is not here."""
        with interrupts_deferred, self._lock:
            return self.constants.hold_known(id)

    def let_go(self, *constants: Constant) -> None:
        """Undo one `hold` of each constant."""
        with interrupts_deferred, self._lock:
            self.constants.let_go(constants)

    def tell_the_rest(self) -> None:
        """Tell of the deaths that were not told one by one, and of what broke the pool if no call has raised it.

        Call it after all workers are gone; may be called twice.
        """
        self._warnings.close()
        self._tell_unraised()

    def close(self) -> None:
        """Free the memory of all constants, after all workers are gone."""
        self.tell_the_rest()
        with interrupts_deferred, self._lock:
            self.constants.close()

    # Workers, called by the user's threads

    def resize(self, num_workers: int) -> None:
        """Change the number of workers; surplus ones finish the task they are in."""
        with interrupts_deferred, self._lock:
            self.workers.resize(num_workers)
            self._growth.look_soon()

    def finish(self) -> None:
        """Take no more work; the workers end when all tasks are done."""
        with interrupts_deferred, self._lock:
            self.workers.finishing = True
            self.workers.stop_if_finished()

    def terminate(self, error: BaseException, grace_s: float | None = None) -> None:
        """Take no more work, fail all jobs, and end the workers; see `Pool.terminate`."""
        with interrupts_deferred, self._lock:
            self.workers.finishing = True
            self.tasks.abandon_all(error)
            self.workers.end_all(grace_s)

    def wait_until_ready(self, timeout_s: float | None) -> bool:
        """Wait until all workers that are wanted take tasks; returns False if they do not within `timeout_s` seconds.

        Raises:
            BaseException: what broke the pool.
        """
        with self._lock:  # not `with changed`: an interrupt could come while that enters, and leave it locked
            ready = self._changed.wait_for(lambda: self._broken or self.workers.are_all_ready, timeout_s)
            self.raise_if_broken()
        return bool(ready)

    def wait_until_finished(self) -> None:
        """Wait until every worker is gone, after `finish` or `terminate`."""
        with self._lock:
            self._changed.wait_for(lambda: self.finished)

    # What it is like, for any thread

    @property
    def broken(self) -> BaseException | None:
        """The error that broke the pool, if there is one."""
        return self._broken

    def raise_if_broken(self) -> None:
        """Raise the error that broke the pool, if there is one."""
        if self._broken:
            raise self._broken

    @property
    def finished(self) -> bool:
        """Whether every worker is gone after `finish` or `terminate`."""
        return self.workers.finishing and not self.workers.by_id and not self._table.num_pending

    @property
    def state(self) -> str:
        """The state of the pool, as in `View`."""
        if self._broken and not isinstance(self._broken, PoolClosed):
            return "failed"
        if self._broken or self.finished:
            return "closed"
        if self.workers.finishing:
            return "stopping"
        return "running" if any(worker.ready for worker in self.present()) else "starting"

    @property
    def num_wanted(self) -> int:
        """The number of workers that the pool wants now."""
        return self.workers.scaling.wanted

    @property
    def most_workers(self) -> int:
        """The number of workers that the pool wants, or the largest number if it is elastic."""
        return self.bounds[1] if self.bounds else self.num_wanted

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The fewest and the most workers of an elastic pool; None for another one."""
        return self._growth.bounds

    def present(self, *, ending: bool = True) -> list[RemoteWorker]:
        """Return the workers; with `ending=False` without those that only end."""
        return [worker for worker in list(self.workers.by_id.values()) if ending or not worker.stopping]

    def status(self, name: str, state: str) -> PoolStatus:
        """A snapshot of the pool, under its name and in its state."""
        with self._lock:
            loads = worker_loads(self.workers.by_id.values(), self._table)
            status = pool_status(name, state, self._table, self.history)
        processes, pace = self._session.processes, self._table.pace
        statuses = tuple(worker_status(load, processes, pace) for load in loads)
        return replace(status, workers=statuses, ways=tuple(map(str, self._session.ways())))

    def in_words(self) -> str:
        """Return in a sentence which tasks there are, for a caller that waits for them."""
        return tasks_in_words(self.status(self._options.name, self.state))

    def events(self) -> tuple[EventView, ...]:
        """Return what has happened to its workers and hosts, oldest first."""
        return self.history.views()

    def stream_since(self, cursor: int) -> dict[str, Any]:
        """Return the rows of the task stream after a cursor, and record it from now on for a while."""
        with self._lock:
            if self.tasks.stream is None:
                self.tasks.stream = TaskStream()
            return self.tasks.stream.since(cursor, time.time())

    def when_failed(self, call: Callable[[], object] | None) -> None:
        """Have a call made, on the loop, when the session gives no more processes; None: no longer."""
        self._when_failed = call

    # Called by the session's loop, as an `Owner`

    def on_link(self, id: str, link: Link) -> None:
        with self._lock:
            worker = self.workers.by_id[id]
            worker.link, worker.connected = link, time.monotonic()
            worker.host = self._session.processes.host_of(id) or worker.host
            if not (worker.stopping and self.workers.are_ending):  # else all ended before it had started
                worker.set_up(self._begin, self._options.initializer, self._options.arguments)
            if worker.stopping:  # no tasks are left for it, but its initializer runs, as in multiprocessing
                worker.stop()

    def on_message(self, id: str, received: Received) -> None:
        with self._lock:
            worker = self.workers.by_id.get(id)
            if worker is None:
                return
            match received.message:
                case TasksDone() as done:
                    self.tasks.done(worker, done, received)
                case Skipped(first, count):
                    self._table.taken_back(id, first, first + count, time.monotonic())
                case WorkerReady():
                    self.workers.is_ready(worker)
                    self._changed.notify_all()
                case SetupFailed(failure):
                    worker.stopping = True
                    self._break(initializer_failed(failure, worker.name, worker.where))
                case _:
                    raise RuntimeError(f"a pool cannot do anything with {received.message!r}")
            self._after_news(worker)

    def on_report(self, id: str, report: TaskReport) -> None:
        with self._lock:
            worker = self.workers.by_id.get(id)
            if worker is None:
                return
            self.tasks.done_by_page(worker, report.page)
            if report.recalled_until:
                self._table.taken_back(id, report.recalled_from, report.recalled_until, time.monotonic())
            self._after_news(worker)

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        with self._lock:
            worker = self.workers.exited(id)
            if worker is None:
                return
            if host_lost:
                self.tasks.vanished(worker, exited)
                self.workers.scaling.gone(worker.rank)
            else:
                self._died(worker, exited)
            self.tasks.count_off_dropped()
            self.workers.fill_up()
            self._assign()
            self.workers.stop_if_finished()
            self._changed.notify_all()

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        with self._lock:
            worker = self.workers.by_id.pop(id, None)
            if worker is None:
                return
            if failure.limit or failure.by_engine:
                self.workers.scaling.gone(worker.rank)
                if not self._growth.accepts_refusal(failure.reason):
                    self._break((ProcessLimit if failure.limit else StartFailed)(failure.reason))
            else:
                self._replace(worker, failure.reason, StartFailed)
            self._changed.notify_all()

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        with self._lock:
            worker = self.workers.by_id.get(id)
            if worker is not None:
                self.workers.leave_host(worker)

    def on_event(self, text: str, kind: str = "") -> None:
        self.history.note(text, kind)

    def on_failed(self, error: Exception) -> None:
        if self._when_failed:
            self._when_failed()
        with self._lock:
            if self.finished:
                return
            ids = list(self.workers.by_id)
            self.workers.by_id.clear()
            if not self.workers.are_ending:
                self._break(error)
            for id in ids:
                self._table.vanished(id, str(error))
            self.tasks.count_off_dropped()
            self._changed.notify_all()

    # Tasks that nobody waits for any more

    def _end_later(self, ids: list[str], delay_s: float, recalls: int) -> None:
        """Give workers a while for tasks of cancelled jobs: most end by themselves, and the worker stays."""
        loop = self._session.loop
        loop.call_soon(lambda: loop.call_later(delay_s, lambda: self._end_unwanted(ids, recalls)))

    def _end_unwanted(self, ids: list[str], recalls: int) -> None:
        with self._lock:
            left = [id for id in ids if self._table.is_in_cancelled(id)]
            for id in left:
                if self._table.holds_only_cancelled(id) or not recalls:
                    self.workers.interrupt(self.workers.by_id[id])
                else:  # the tasks behind are of others, who wait: they are taken back first
                    self._table.drain(id)
                    self._watch.recall_all(id)
            left = [id for id in left if not self.workers.by_id[id].stopping]
            if left:
                self._end_later(left, _RECALL_S, recalls - 1)

    # What follows from these, under the lock

    def _submit(self, units: Sequence[TaskUnit]) -> None:
        """As `submit`."""
        if self._broken or self.workers.finishing or any(unit.job.dropped for unit in units):
            for unit in units:
                unit.content.close()
            self.raise_if_broken()
            if self.workers.finishing:
                raise PoolClosed("this pool is closed and takes no more tasks")
            return
        for unit in units:
            unit.job.describe = self._describe
        self.tasks.submit(units)
        self._assign()
        self._growth.look_soon()
        self._standstill.begin()

    def _assign(self) -> None:
        """Send the tasks that the table assigns now."""
        if assignments := self._table.assign(time.monotonic()):
            self.workers.run(assignments)
        self.tasks.count_off_dropped()
        self._watch.begin()

    def _after_news(self, worker: RemoteWorker) -> None:
        """After a worker's message: assign tasks, stop the worker if it is finished, end if all is done."""
        self.tasks.count_off_dropped()
        self._assign()
        if self._table.exhausted(worker.id):
            if self._table.is_used_up(worker.id) and not (worker.stopping or self.workers.take_no_more):
                self.history.replaced(worker.name, self._options.units_per_worker or 0)
            self.workers.stop(worker)
        elif not self._table.num_items(worker.id):
            self._watch.recall()
        if self._table.idle:
            self.workers.stop_if_finished()
            self._changed.notify_all()

    def _died(self, worker: RemoteWorker, exited: Exited) -> None:
        death = self.tasks.died(worker, exited)
        if worker.stopping or worker.host_leaves:  # as planned
            self.workers.scaling.gone(worker.rank)
            if not self.workers.take_no_more:
                mark_end(self._session.output_file(worker.output), f"{worker.name} ended as planned")
        else:
            self.history.died(worker.name, death)
            cause = death.record.describe()
            mark_end(self._session.output_file(worker.output), cause)
            self._replace(worker, cause, CrashLoop)
            if not death.is_told and self._broken is None:
                follows = f"{death.retried} starts again" if death.retried else "another worker takes its place"
                self._warnings.warn(self._options.name, f"{cause}; {follows}")

    def _replace(self, worker: RemoteWorker, cause: str, failure: type[RopewalkError]) -> None:
        if error := self.workers.replace(worker, cause, failure):
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if self._broken is not None:
            return
        self._broken, self._broken_at = error, error.__traceback__
        self._untold = error
        atexit.register(self._tell_unraised)  # for a script that ends with its pool open
        self.tasks.abandon_all(error)
        self.workers.end_all()
        self._changed.notify_all()

    def _tell_unraised(self) -> None:
        """Log what broke the pool, once, unless it was raised: calls whose results nobody gets would hide it.

        A script that ends with its pool open is not a failure.
        """
        error, self._untold = self._untold, None
        if error is None:
            return
        atexit.unregister(self._tell_unraised)
        if error.__traceback__ is self._broken_at and not isinstance(error, PoolClosed):
            logger.error("%s is broken: %s", self._options.name, error)
