"""The interface of executors: evaluate candidates, and return their outcomes in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ropewalk.population.algorithm import Evaluator
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket


class FinishedEvaluation(NamedTuple):
    """The result of one evaluation."""

    ticket: Ticket
    is_test: bool
    outcome: Outcome | BaseException


class EvaluationExecutor(Protocol):
    """Runs evaluations. All methods are called by one thread."""

    @property
    def num_workers(self) -> int:
        """Number of evaluations that run concurrently."""
        ...

    @property
    def shares_process(self) -> bool:
        """Whether evaluations run in this process, and use its CPU time."""
        ...

    def submit(
        self,
        ask: int,
        evaluator: Evaluator[Any],
        candidates: Sequence[Any],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Submit evaluations, in this order.

        Args:
            ask: the number of their ask; their seeds follow from it and from their positions.
            evaluator: the evaluator of that ask; if its `is_test` is true, these are tests, whose asks are numbered
                separately.
            candidates: some candidates of that ask.
            positions: their positions in the ask; None if these are all of its candidates.
        """
        ...

    def collect(self, timeout_s: float | None) -> list[FinishedEvaluation]:
        """Return the evaluations that have ended since the last call.

        Args:
            timeout_s: maximum time to wait for one, in seconds; None waits for ever.

        Raises:
            Exception: the error that broke the pool.
        """
        ...

    def drop(self, tickets: Sequence[Ticket]) -> None:
        """Cancel evaluations that have not begun; outcomes of running ones may still arrive, and are ignored."""
        ...

    def map(self, function: Any, items: Sequence[Any], /) -> list[Any]:
        """Return `[function(item) for item in items]`, computed by this executor."""
        ...

    def scale_to(self, num_workers: int) -> None:
        """Change the number of workers, if this executor can; otherwise do nothing."""
        ...

    def close(self) -> None:
        """Cancel evaluations that have not begun; the pool itself belongs to the caller. May be called twice."""
        ...
