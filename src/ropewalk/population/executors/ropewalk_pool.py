"""Evaluations on a pool of Ropewalk: one task per candidate, with minimal data per task.

fitness ────── once per run and host ──────────┐
evaluator ──── once per evaluator and host ────┼─▶ worker: evaluate_as_task(evaluator, fitness, candidate)
candidates ─── a few bytes each ───────────────┘        │
arrivals ◀──── numbers, in batches ◀────────────────────┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from ropewalk.pool.messages import CallKind
from ropewalk.pool.pool import Pool
from ropewalk.pool.result_batch import RaisedEntry, ResultBatch
from ropewalk.pool.results import PoolJob
from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.evaluation import evaluate_as_task, evaluate_numbered, seed_of_ask
from ropewalk.population.executors.executor import FinishedEvaluation
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket
from ropewalk.processes.notifier import Notifier


class _AskJob(PoolJob):
    """The evaluations of one ask; stores arriving results, on the loop's thread."""

    def __init__(self, ask: int, positions: Sequence[int] | None, *, is_test: bool, executor: RopewalkPool) -> None:
        super().__init__()
        self.patient = executor.in_bulk
        self.ask = ask
        self.positions = positions
        self.is_test = is_test
        self.num_left = 0
        self._executor = executor

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        self._executor.filed.append((self, first, count, batch, offset))
        self._executor.notifier.ring()

    def abandon(self, error: BaseException) -> None:
        self._executor.broken = error
        self._executor.notifier.ring()


class RopewalkPool:
    """An executor on a pool of Ropewalk.

    Args:
        pool: any pool; it belongs to the caller.
        fitness: the function that workers call.
        seed: seed of the run.
        in_bulk: whether outcomes are needed only when all evaluations of an ask have ended: then a worker sends all of
            its results at once (they are kept in its task page until then), and evaluations that a busy worker has not
            begun are moved to another one.
    """

    shares_process = False

    def __init__(self, pool: Pool, fitness: Fitness, seed: int, *, in_bulk: bool = False) -> None:
        self._pool = pool
        self.in_bulk = in_bulk
        self._fitness: Any = pool.put(fitness)
        self._name = str(getattr(fitness, "__name__", type(fitness).__name__))
        self._seed = seed
        self._evaluator: tuple[Evaluator[Any] | None, Any] = (None, None)
        self._jobs: dict[_AskJob, None] = {}
        self.filed: deque[tuple[_AskJob, int, int, ResultBatch, int]] = deque()
        self.notifier = Notifier()
        self.broken: BaseException | None = None

    @property
    def num_workers(self) -> int:
        return self._pool.num_workers

    def submit(
        self,
        ask: int,
        evaluator: Evaluator[Any],
        candidates: Sequence[Any],
        positions: Sequence[int] | None = None,
    ) -> None:
        is_test = evaluator.is_test
        sent: Any = evaluator
        if (
            not self.in_bulk and not is_test
        ):  # the evaluator of the previous ask: the pool has to be told only that it is the same
            if self._evaluator[0] is not evaluator:
                self._evaluator = evaluator, self._pool.put(evaluator)
            sent = self._evaluator[1]
        seed = seed_of_ask(self._seed, ask, is_test=is_test)
        job = _AskJob(ask, positions, is_test=is_test, executor=self)
        job.num_left = len(candidates)
        self._jobs[job] = None
        items: Sequence[Any]
        if positions is None:
            items, code = candidates, partial(evaluate_as_task, sent, self._fitness)
        else:
            items = list(zip(positions, candidates, strict=True))
            code = partial(evaluate_numbered, sent, self._fitness, seed)
        vars(code)["__name__"] = self._name  # what a worker is said to do
        self._pool.start_job(job, code, self._cut(items), CallKind.ONE, seed)

    def collect(self, timeout_s: float | None) -> list[FinishedEvaluation]:
        self.notifier.wait_until(lambda: self.filed or self.broken, timeout_s)
        arrivals: list[FinishedEvaluation] = []
        while self.filed:
            job, first, count, batch, offset = self.filed.popleft()
            job.num_left -= count
            if not job.num_left:
                self._jobs.pop(job, None)
            entries = batch.entries()
            for at in range(count):
                position = first + at if job.positions is None else job.positions[first + at]
                entry: Any = entries[offset + at]
                if type(entry) is float:
                    entry = Outcome(entry)
                arrivals.append(
                    FinishedEvaluation(
                        Ticket(job.ask, position), job.is_test, entry.error if type(entry) is RaisedEntry else entry
                    )
                )
        if self.broken and not arrivals:
            raise self.broken
        return arrivals

    def drop(self, tickets: Sequence[Ticket]) -> None:
        asks = {ticket.ask for ticket in tickets}
        for job in [job for job in self._jobs if job.ask in asks and not job.is_test]:
            self._pool.cancel_soon(job)
            del self._jobs[job]

    def map(self, function: Any, items: Sequence[Any], /) -> list[Any]:
        return self._pool.map(function, items, chunksize=1)

    def scale_to(self, num_workers: int) -> None:
        self._pool.scale_to(num_workers)

    def _cut(self, items: Sequence[Any]) -> list[Sequence[Any]]:
        """Split items into units for the pool: one per worker, or one per candidate."""
        size = -(-len(items) // self.num_workers) if self.in_bulk else 1
        return [items[at : at + size] for at in range(0, len(items), size)]

    def close(self) -> None:
        for job in list(self._jobs):
            self._pool.cancel_soon(job)
        self._jobs.clear()
