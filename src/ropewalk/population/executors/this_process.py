"""Evaluations in this process, one after the other: for debugging, and as the reference for all other executors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ropewalk.population.algorithm import Evaluator, Fitness, serial_map
from ropewalk.population.evaluation import as_argument, as_constant, evaluate_one, seed_of_ask
from ropewalk.population.executors.executor import FinishedEvaluation
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket


class ThisProcess:
    """Evaluates candidates when results are requested."""

    num_workers = 1
    shares_process = True

    def __init__(self, fitness: Fitness, seed: int) -> None:
        self._fitness = fitness
        self._seed = seed
        self._sent: tuple[Any, Any] = (None, None)
        """An evaluator, and its copy as a pool would send it: functions may change the same objects everywhere."""
        self._waiting: deque[tuple[Ticket, Evaluator[Any], Any]] = deque()

    def submit(
        self,
        ask: int,
        evaluator: Evaluator[Any],
        candidates: Sequence[Any],
        positions: Sequence[int] | None = None,
    ) -> None:
        if self._sent[0] is not evaluator:
            self._sent = evaluator, as_constant(evaluator)
        places = range(len(candidates)) if positions is None else positions
        numbered = zip(places, as_argument(candidates), strict=True)
        self._waiting += [(Ticket(ask, at), self._sent[1], candidate) for at, candidate in numbered]

    def collect(self, timeout_s: float | None) -> list[FinishedEvaluation]:
        if not self._waiting:
            return []
        ticket, evaluator, candidate = self._waiting.popleft()
        is_test = evaluator.is_test
        seed = seed_of_ask(self._seed, ticket.ask, is_test=is_test)
        try:
            value = evaluate_one(evaluator, self._fitness, candidate, seed, ticket.position)
        except Exception as error:
            return [FinishedEvaluation(ticket, is_test, error)]
        return [FinishedEvaluation(ticket, is_test, value if isinstance(value, Outcome) else Outcome(value))]

    def drop(self, tickets: Sequence[Ticket]) -> None:
        unwanted = set(tickets)
        self._waiting = deque(each for each in self._waiting if each[1].is_test or each[0] not in unwanted)

    map = staticmethod(serial_map)

    def scale_to(self, num_workers: int) -> None:
        pass

    def close(self) -> None:
        self._waiting.clear()
