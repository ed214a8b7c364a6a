"""The workers of a pool on the launcher's side: starts as many as are wanted, replaces the dead, ends surplus ones.

    wanted ─▶ Scaling ─┬─ missing ─▶ start ─▶ ready ─┬─ drain ─▶ stop ─▶ exited
                       └─ surplus ───────────────────┘
    terminate, or a pool that is broken ─▶ ForcedEnd (SIGTERM, then SIGKILL); interrupt ─▶ the same for one

`Scaling` decides; this carries it out, with the processes of the session. The caller holds the pool's lock.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from ropewalk.errors import RopewalkError
from ropewalk.pool.remote_worker import RemoteWorker
from ropewalk.pool.scaling import Scaling, Seat, first_to_go
from ropewalk.pool.task_table import SpanAssignment, TaskTable
from ropewalk.pool.worker_identity import next_identity
from ropewalk.pool.worker_options import WorkerOptions
from ropewalk.processes.owner import Owner
from ropewalk.processes.session import Session
from ropewalk.supervision.restart import GiveUp, StartAgain
from ropewalk.supervision.shutdown import Graces, Instruction, Rung, Shutdown, Terminate


class RemoteWorkers:
    """The workers of one pool.

    Args:
        session: starts their processes.
        owner: is told by the session what becomes of them.
        options: how they are made.
        table: the tasks that they hold.
        num_workers: how many are wanted at the start.
        lock: the pool's lock, for what happens later on the loop.
    """

    def __init__(
        self,
        session: Session,
        owner: Owner,
        options: WorkerOptions,
        table: TaskTable,
        num_workers: int,
        lock: threading.Lock,
    ) -> None:
        self.by_id: dict[str, RemoteWorker] = {}
        self.scaling = Scaling(num_workers)
        self.finishing = False
        """Whether the pool takes no more work, so that workers end when there are no tasks."""
        self._session = session
        self._owner = owner
        self._options = options
        self._table = table
        self._lock = lock
        self._end: ForcedEnd | None = None
        self._interrupted: dict[str, ForcedEnd] = {}

    @property
    def are_ending(self) -> bool:
        """Whether all of them are being ended at once."""
        return self._end is not None

    @property
    def take_no_more(self) -> bool:
        """Whether no further worker is to start."""
        return self._end is not None or (self.finishing and self._table.idle)

    @property
    def are_all_ready(self) -> bool:
        """Whether as many workers as are wanted take tasks."""
        return sum(worker.ready for worker in self.by_id.values()) >= self.scaling.wanted

    def run(self, assignments: Iterable[SpanAssignment]) -> None:
        """Send tasks to the workers that they are assigned to, in one message for each worker."""
        by_worker: dict[str, list[SpanAssignment]] = {}
        for assignment in assignments:
            by_worker.setdefault(assignment.worker, []).append(assignment)
        for id, those in by_worker.items():
            self.by_id[id].run(those)

    # As many as are wanted

    def fill_up(self) -> None:
        """Start the workers that are missing."""
        if self.take_no_more:
            return
        if not (ranks := self.scaling.missing()):
            return
        with self._session.processes.asking():
            for rank in ranks:
                output = f"{self._options.output}.{rank}"
                spec = msgspec.structs.replace(self._options.process, rank=rank, output=output)
                id = self._session.processes.start(spec, self._owner)
                self.by_id[id] = RemoteWorker(id, rank, spec.name, output, next_identity(), self._session.blobs)

    def resize(self, num_workers: int) -> None:
        """Change the number wanted: missing workers start, and surplus ones end after the task they are in."""
        self.scaling.wanted = num_workers
        self.fill_up()
        staying = {worker.rank: worker for worker in self.by_id.values() if not worker.stopping}
        seats = [
            Seat(w.rank, self._session.processes.agent_of(w.id), self._table.num_items(w.id)) for w in staying.values()
        ]
        for rank in self.scaling.surplus(first_to_go(seats)):
            worker = staying[rank]
            self.drain(worker)
            self._session.processes.withdraw(worker.id)

    def is_ready(self, worker: RemoteWorker) -> None:
        """Note that a worker takes tasks."""
        now = time.monotonic()
        worker.ready = True
        self.scaling.ready(worker.rank, now)
        if not worker.stopping:  # it became surplus before it was ready, and will end
            way_s = self._session.processes.round_trip_of(worker.id)
            self._table.worker_up(worker.id, now, self._options.units_per_worker, way_s=way_s, host=worker.host)

    def replace(self, worker: RemoteWorker, cause: str, failure: type[RopewalkError]) -> RopewalkError | None:
        """Count a worker as dead; another one starts after the delay that the restart budget asks for.

        Returns:
            An error of the type `failure` if no other one starts, as too many have died; else None.
        """
        match self.scaling.died(worker.rank, time.monotonic(), cause):
            case StartAgain(delay_s) if delay_s:
                loop = self._session.loop
                loop.call_soon(lambda: loop.call_later(delay_s, self._delay_over))
            case GiveUp(reason, deaths):
                first = f" The first: {deaths[0]}" if deaths else ""
                message = f"the workers of {self._options.name} do not stay up: {reason}.{first}"
                return failure(message, deaths=deaths)
            case _:
                pass
        return None

    def _delay_over(self) -> None:
        with self._lock:
            self.scaling.delay_over()
            self.fill_up()

    # The end of one

    def drain(self, worker: RemoteWorker) -> None:
        """Let a worker end after the task it is in."""
        self._session.processes.leaves(worker.id)
        self._table.drain(worker.id)
        if self._table.num_items(worker.id) > 1:
            self._session.processes.recall(worker.id, self._table.next_seq(worker.id), everything=True)
        if not self._table.num_items(worker.id):
            self.stop(worker)

    def leave_host(self, worker: RemoteWorker) -> None:
        """Replace a worker whose host will be taken away; the tasks that it runs may finish."""
        worker.host_leaves = True
        if not worker.stopping:
            self.scaling.leaving(worker.rank)
            self.drain(worker)
            self.fill_up()

    def stop(self, worker: RemoteWorker) -> None:
        """Let a worker that holds no tasks end by itself."""
        self._take_out(worker, self._ask_to_end)

    def interrupt(self, worker: RemoteWorker) -> None:
        """End a worker in the middle of tasks that nobody waits for any more; another one takes its place."""
        self._take_out(worker, self._force_to_end)

    def _take_out(self, worker: RemoteWorker, end: Callable[[RemoteWorker], object]) -> None:
        if worker.stopping:
            return
        worker.stopping = True
        self._session.processes.leaves(worker.id)
        self._table.drain(worker.id)
        end(worker)
        self.scaling.leaving(worker.rank)
        self.fill_up()

    def _ask_to_end(self, worker: RemoteWorker) -> None:
        worker.stop()
        if self._options.initializer is None or self._session.passport:
            # Otherwise it starts to run its initializer, as in multiprocessing.
            self._session.processes.withdraw(worker.id)

    def _force_to_end(self, worker: RemoteWorker) -> None:
        self._interrupted[worker.id] = ForcedEnd(self._session, [worker.id], self._lock, None)

    # The end of all

    def stop_if_finished(self) -> None:
        """Let all workers end by themselves if the pool takes no more work and no task is left."""
        if self.finishing and self._table.idle:
            for worker in list(self.by_id.values()):
                self.stop(worker)

    def end_all(self, grace_s: float | None = None) -> None:
        """Send SIGTERM, so that exit handlers run, then SIGKILL; workers that are still starting are ended at once."""
        if self._end:
            return
        for worker in self.by_id.values():
            worker.stopping = True
            self._session.processes.leaves(worker.id)  # the next pool may begin before this one has ended
            if not worker.link:
                self._session.processes.signal(worker.id, signal.SIGKILL)
        self._end = ForcedEnd(self._session, self.by_id, self._lock, grace_s)

    def exited(self, id: str) -> RemoteWorker | None:
        """Forget a worker that has ended, and return it; None if it is not known any more."""
        worker = self.by_id.pop(id, None)
        for end in (self._end, self._interrupted.pop(id, None)):
            if worker and end:
                end.exited(id)
        return worker


_TERMINATE_S = 1.0
"""Seconds from SIGTERM to SIGKILL for a worker, if nothing else was said."""


class ForcedEnd:
    """Sends SIGTERM to processes, and SIGKILL to those that have not ended after a time.

    Args:
        session: the session of the processes.
        ids: the ids of the processes.
        lock: held by the caller, and taken again on the loop, when the time is over.
        grace_s: seconds from SIGTERM to SIGKILL; None: 1 second.
    """

    def __init__(self, session: Session, ids: Collection[str], lock: threading.Lock, grace_s: float | None) -> None:
        self._session = session
        self._lock = lock
        self._shutdown = Shutdown(ids, Graces(terminate_s=_TERMINATE_S if grace_s is None else grace_s))
        self._carry_out(self._shutdown.begin(time.monotonic(), at=Rung.TERMINATE))

    def exited(self, id: str) -> None:
        """Note that a process has ended."""
        self._shutdown.exited(id)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            number = signal.SIGTERM if isinstance(instruction, Terminate) else signal.SIGKILL
            for id in instruction.names:
                self._session.processes.signal(id, number)
        if self._shutdown.next_due is not None:
            loop, delay_s = self._session.loop, max(0.0, self._shutdown.next_due - time.monotonic())
            loop.call_soon(lambda: loop.call_later(delay_s, self._go_on))

    def _go_on(self) -> None:
        with self._lock:
            self._carry_out(self._shutdown.tick(time.monotonic()))
