"""Evaluations on the pools of other libraries: `multiprocessing.Pool`, `concurrent.futures` and compatible ones.

They have the limits of these pools: the evaluator is sent with each chunk of candidates, a worker that dies loses its
chunk or breaks the pool, and the number of workers is fixed. Arguments are copied first, as the workers may be threads.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.evaluation import as_argument, as_constant, evaluate_numbered, seed_of_ask
from ropewalk.population.executors.executor import FinishedEvaluation
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket

_Result = list[Any]
"""What each evaluation of a chunk returned, a number or an `Outcome`, or the exception that it raised."""


class _ChunkExecutor:
    """Submits candidates in chunks, and returns results through a queue; subclasses define how a chunk is submitted."""

    shares_process = False

    def __init__(self, pool: Any, fitness: Fitness, seed: int) -> None:
        self._pool = pool
        self._fitness = fitness
        self._seed = seed
        self._arrived: queue.SimpleQueue[list[FinishedEvaluation]] = queue.SimpleQueue()

    @property
    def num_workers(self) -> int:
        for name in ("_processes", "_max_workers"):
            number = getattr(self._pool, name, None)
            if isinstance(number, int):
                return number
        return os.cpu_count() or 1

    def submit(
        self,
        ask: int,
        evaluator: Evaluator[Any],
        candidates: Sequence[Any],
        positions: Sequence[int] | None = None,
    ) -> None:
        is_test = evaluator.is_test
        one = partial(
            evaluate_numbered, as_constant(evaluator), self._fitness, seed_of_ask(self._seed, ask, is_test=is_test)
        )
        numbers = range(len(candidates)) if positions is None else positions
        numbered = list(zip(numbers, as_argument(candidates), strict=True))
        size = max(1, len(numbered) // (4 * self.num_workers))
        for at in range(0, len(numbered), size):
            chunk = numbered[at : at + size]
            tickets = [Ticket(ask, position) for position, _ in chunk]
            self._begin(partial(_evaluate_chunk, one, chunk), partial(self._file, tickets, is_test))

    def _begin(self, call: Callable[[], _Result], then: Callable[[_Result | BaseException], None]) -> None:
        raise NotImplementedError

    def _file(self, tickets: list[Ticket], is_test: bool, result: _Result | BaseException) -> None:
        """Store the result of a chunk; threads of the pool call this."""
        values: _Result = [result] * len(tickets) if isinstance(result, BaseException) else result
        outcomes = [value if isinstance(value, Outcome | BaseException) else Outcome(value) for value in values]
        pairs = zip(tickets, outcomes, strict=True)
        self._arrived.put([FinishedEvaluation(ticket, is_test, outcome) for ticket, outcome in pairs])

    def collect(self, timeout_s: float | None) -> list[FinishedEvaluation]:
        try:
            return self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return []

    def drop(self, tickets: Sequence[Ticket]) -> None:
        pass

    def map(self, function: Any, items: Sequence[Any], /) -> list[Any]:
        found: Iterable[Any] = self._pool.map(function, items)
        return list(found)

    def scale_to(self, num_workers: int) -> None:
        pass

    def close(self) -> None:
        pass


class MultiprocessingExecutor(_ChunkExecutor):
    """A pool with `apply_async` and callbacks. It cancels nothing, so it only gets two chunks per worker at a time."""

    def __init__(self, pool: Any, fitness: Fitness, seed: int) -> None:
        super().__init__(pool, fitness, seed)
        self._waiting: deque[tuple[Callable[[], _Result], Callable[[_Result | BaseException], None]]] = deque()
        self._num_in_pool = 0
        self._lock = threading.RLock()

    def _begin(self, call: Callable[[], _Result], then: Callable[[_Result | BaseException], None]) -> None:
        self._waiting.append((call, then))
        self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            while self._waiting and self._num_in_pool < 2 * self.num_workers:
                call, then = self._waiting.popleft()
                ended = partial(self._ended, then)
                try:
                    self._pool.apply_async(call, callback=ended, error_callback=ended)
                    self._num_in_pool += 1
                except Exception as error:  # the pool was closed meanwhile; its thread, which may be this one, goes on
                    then(error)

    def _ended(self, then: Callable[[_Result | BaseException], None], result: _Result | BaseException) -> None:
        then(result)
        with self._lock:
            self._num_in_pool -= 1
            self._hand_over()

    def close(self) -> None:
        with self._lock:
            self._waiting.clear()


class FuturesExecutor(_ChunkExecutor):
    """An executor of `concurrent.futures`."""

    def __init__(self, pool: Any, fitness: Fitness, seed: int) -> None:
        super().__init__(pool, fitness, seed)
        self._under_way: dict[int, Future[_Result]] = {}

    def _begin(self, call: Callable[[], _Result], then: Callable[[_Result | BaseException], None]) -> None:
        future: Future[_Result] = self._pool.submit(call)

        def ended(done: Future[_Result]) -> None:
            self._under_way.pop(id(future), None)
            if done.cancelled():
                then(RuntimeError("the executor was shut down before this evaluation began"))
            else:
                error = done.exception()
                then(done.result() if error is None else error)

        self._under_way[id(future)] = future
        future.add_done_callback(ended)

    def close(self) -> None:
        for future in list(self._under_way.values()):  # the executor has other work, which would wait for these
            future.cancel()


def _evaluate_chunk(one: Callable[[tuple[int, Any]], Any], chunk: Sequence[tuple[int, Any]]) -> _Result:
    results: _Result = []
    for numbered in chunk:
        try:
            results.append(one(numbered))
        except Exception as error:
            results.append(error)
    return results
