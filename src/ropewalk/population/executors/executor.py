"""What every ground does: it evaluates candidates and hands back what became of them, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ropewalk.population.algorithm import Evaluator
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ticket


class FinishedEvaluation(NamedTuple):
    """What became of one evaluation."""

    ticket: Ticket
    is_test: bool
    outcome: Outcome | BaseException


class EvaluationExecutor(Protocol):
    """Where evaluations run. Called by one thread."""

    @property
    def num_workers(self) -> int:
        """How many evaluations run side by side."""
        ...

    @property
    def shares_process(self) -> bool:
        """Whether evaluations take the time of this process."""
        ...

    def submit(
        self,
        ask: int,
        evaluator: Evaluator[Any],
        candidates: Sequence[Any],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Begin with these, in this order.

        Args:
            ask: the number of their ask; their seeds follow from it and from their positions.
            evaluator: of that ask; `is_test` says that these are tests, whose asks are numbered apart.
            candidates: some of its candidates.
            positions: theirs; None if these are all of them.
        """
        ...

    def collect(self, timeout_s: float | None) -> list[FinishedEvaluation]:
        """What has ended since this was last called; waits for something, at most so long.

        Raises:
            Exception: what broke the pool.
        """
        ...

    def drop(self, tickets: Sequence[Ticket]) -> None:
        """Nobody wants to know about these any more; outcomes of those that run may still arrive."""
        ...

    def map(self, function: Any, items: Sequence[Any], /) -> list[Any]:
        """`[function(item) for item in items]`, here."""
        ...

    def scale_to(self, num_workers: int) -> None:
        """Have so many workers from now on, if this ground can; else nothing."""
        ...

    def close(self) -> None:
        """Give up what has not begun; the pool itself is the caller's. May be called twice."""
        ...
