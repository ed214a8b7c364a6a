"""The ledger of a pool's tasks: which jobs wait for which tasks, and what each task that ends means for its job.

    submit ─▶ ledger ─▶ table (where each task is)
                │
    results, deaths, cancellations ─▶ table ─▶ which tasks have ended ─▶ job.accept or job.abandon
                                                                      └─▶ counted off: contents and constants freed

The table knows spans of items and nothing of results; the jobs know results and nothing of workers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ropewalk.pool import verdicts
from ropewalk.pool.constant_store import ConstantStore
from ropewalk.pool.history import WorkerDeath
from ropewalk.pool.messages import CallKind, TasksDone
from ropewalk.pool.remote_worker import RemoteWorker
from ropewalk.pool.result_batch import RaisedEntry, ResultBatch
from ropewalk.pool.results import PoolJob
from ropewalk.pool.task_content import Content
from ropewalk.pool.task_stream import TaskStream, parts_of_stream
from ropewalk.pool.task_table import Finished, GivenUp, TaskTable, TaskUnit
from ropewalk.pool.worker_options import WorkerOptions
from ropewalk.processes.deaths import record_of
from ropewalk.processes.messages import Exited
from ropewalk.processes.page import ERROR, IDLE, PageReport
from ropewalk.transport.blobs import open_parts
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Received


class TaskLedger:
    """The tasks of one pool with their jobs; the caller holds the pool's lock.

    Args:
        table: where every task is.
        constants: counts the tasks that need each constant.
        options: how often tasks may be repeated.
    """

    def __init__(self, table: TaskTable, constants: ConstantStore, options: WorkerOptions) -> None:
        self.stream: TaskStream | None = None
        """Records which worker runs what, while somebody looks."""
        self._table = table
        self._constants = constants
        self._options = options
        self._jobs: dict[PoolJob, int] = {}
        """The jobs that wait, with the number of tasks that they wait for."""

    @property
    def jobs(self) -> list[PoolJob]:
        """All jobs that wait for results."""
        return list(self._jobs)

    def submit(self, units: Sequence[TaskUnit]) -> None:
        """Add units; their job is told of the results."""
        for unit in units:
            self._jobs[unit.job] = self._jobs.get(unit.job, 0) + unit.count
            self._constants.use(unit.content.needs)
        self._table.submit(units)

    # Tasks that end without a result

    def cancel(self, job: PoolJob, error: BaseException | None = None) -> list[str] | None:
        """Forget the unstarted tasks of a job, and fail it with `error` if given.

        Returns:
            The workers that hold others of its tasks; None if the job waits for nothing.
        """
        if job not in self._jobs:
            return None
        holders = self._table.cancel(job)
        self.count_off_dropped()
        self._jobs.pop(job, None)
        if error:
            job.abandon(error)
        return holders

    def withdraw(self, job: PoolJob, error: BaseException) -> None:
        """Fail a job of one unit if no worker was given that, and forget it."""
        self._table.sweep(lambda of: of is job)
        self.count_off_dropped()
        if job not in self._jobs:
            job.abandon(error)

    def sweep(self) -> None:
        """Forget the unstarted tasks of withdrawn jobs."""
        self._table.sweep(lambda job: job.withdrawn)
        self.count_off_dropped()

    def abandon_all(self, error: BaseException) -> None:
        """Fail all jobs, and forget their tasks."""
        self._table.cancel_all()
        for job in list(self._jobs):
            self._jobs.pop(job, None)
            job.abandon(error)
        self.count_off_dropped()

    def count_off_dropped(self) -> None:
        """Count off the tasks that the table has dropped, as their jobs do not want them any more."""
        for unit, start, stop in self._table.dropped():
            self._count_off(unit, stop - start)

    # Results

    def done(self, worker: RemoteWorker, done: TasksDone, received: Received) -> None:
        """Pass the results in a message on to their jobs."""
        parts: Sequence[Part] = received.parts
        if done.shared:
            parts = open_parts(received.fds.take(), done.shared, writable=True)
        count = len(done.values)
        batch = ResultBatch(done.values, done.nested, parts, worker.where)
        worker.num_done += count
        finished = self._table.done(worker.id, done.first, count, done.elapsed_ns, time.monotonic())
        if self.stream is not None:
            errors = [at for at, kind in done.nested.items() if kind == ERROR]
            self._record(worker, finished, done.elapsed_ns / 1e9, 0.0, errors)
        self._accept(finished, batch)

    def done_by_page(self, worker: RemoteWorker, page: PageReport) -> None:
        """Pass the results on to their jobs that a worker has written into its task page."""
        if not page.codes:
            return
        finished = self._table.done(worker.id, page.base, len(page.codes), 0, time.monotonic())
        if finished:
            if self.stream is not None:
                errors = [at for at, kind in enumerate(page.codes) if kind == ERROR]
                self._record(worker, finished, 0.0, page.running_s, errors)
            self._accept(finished, ResultBatch.of_page(page, worker.where))

    def _record(
        self, worker: RemoteWorker, finished: list[Finished], elapsed_s: float, ago_s: float, errors: list[int]
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
            self._constants.let_go(unit.content.needs)
        left = self._jobs.get(unit.job)
        if left is not None:
            if left == count:
                del self._jobs[unit.job]
            else:
                self._jobs[unit.job] = left - count

    # Deaths

    def died(self, worker: RemoteWorker, exited: Exited) -> WorkerDeath:
        """Note the death of a worker: the task it was in is blamed, starts again or fails; the others start again.

        The results in its page are passed on before.
        """
        self.done_by_page(worker, exited.page)
        current = None if exited.page.current == IDLE else exited.page.current
        located = None if current is None else self._table.locate(worker.id, current)
        index = None if located is None else _index_in_map(*located)
        task_ran_s = None if located is None else exited.page.running_s
        record = record_of(exited, name=worker.name, host=worker.host, task_index=index, task_ran_s=task_ran_s)
        if located and self.stream is not None:
            self.stream.died(worker.name, located[0].content.function, exited.page.running_s, time.time())
        innocent = (bool(exited.ended_by) or worker.host_leaves) and not exited.timed_out
        given_up = self._table.died(worker.id, current, record.describe(), final=exited.timed_out, innocent=innocent)
        self._give_up(given_up, worker, exited)
        if located is None or located[0].cancelled:
            return WorkerDeath(record, "")
        return WorkerDeath(record, "" if given_up else located[0].content.described(index), is_told=bool(given_up))

    def vanished(self, worker: RemoteWorker, exited: Exited) -> None:
        """Note that a worker is gone with its host: its tasks start again without blame, or fail with at_most_once."""
        self._give_up(self._table.vanished(worker.id, exited.ended_by), worker, exited)

    def _give_up(self, given_up: list[GivenUp], worker: RemoteWorker, exited: Exited) -> None:
        for unit, item, deaths in given_up:
            error = verdicts.verdict(_index_in_map(unit, item), worker.name, deaths, exited, self._options)
            unit.job.accept(unit.first_index + item, 1, ResultBatch.of([RaisedEntry(error)]), 0)
            self._count_off(unit, 1)


def _index_in_map(unit: TaskUnit, item: int) -> int | None:
    """Return the index of a task in its map; None for a single call."""
    content: Content = unit.content
    return None if content.kind in CallKind.SINGLE else unit.first_index + item
