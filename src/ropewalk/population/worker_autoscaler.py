"""The number of workers that an algorithm needs, ask by ask. Pure.

    ask ─▶ number of candidates ─▶ WorkerAutoscaler ─▶ number of workers ─▶ the pool grows or shrinks

Asks of one algorithm differ in size (POET's transfers evaluate every agent in every environment, its other rounds do
not), and starting a worker takes longer than an evaluation. Therefore the pool grows immediately, and shrinks only
after several consecutive asks that needed fewer workers.
"""

from __future__ import annotations

import math
from collections import deque
from numbers import Integral

from ropewalk.argument_kinds import check_number


class WorkerAutoscaler:
    """Chooses as many workers as the candidates of the last few asks could keep busy.

    Example:
        >>> follow = WorkerAutoscaler(1, 8, evaluations_per_worker=10, patience=2)
        >>> [follow.workers_for(candidates) for candidates in (25, 60, 20, 20, 1000)]
        [3, 6, 6, 2, 8]

    Args:
        least: minimum number of workers.
        most: maximum number of workers.
        evaluations_per_worker: number of candidates of an ask per worker, if `most` allows it.
        patience: number of consecutive asks that needed fewer workers after which the pool shrinks.
    """

    def __init__(self, least: int, most: int, *, evaluations_per_worker: float = 4, patience: int = 3) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"workers must be at least 1 and least at most most, not {least} to {most}")
        if not evaluations_per_worker > 0:
            raise ValueError(f"evaluations_per_worker must be above 0, not {evaluations_per_worker}")
        check_number("patience", patience, Integral, "a whole number", least=1, required=True)
        self.least = least
        self.most = most
        self.evaluations_per_worker = evaluations_per_worker
        self._needed: deque[int] = deque(maxlen=patience)

    def __repr__(self) -> str:
        rest = f"evaluations_per_worker={self.evaluations_per_worker}, patience={self._needed.maxlen}"
        return f"WorkerAutoscaler({self.least}, {self.most}, {rest})"

    def workers_for(self, num_candidates: int) -> int:
        """Return the number of workers for the candidates of the latest ask; call it once per ask."""
        needed = math.ceil(num_candidates / self.evaluations_per_worker)
        self._needed.append(min(max(needed, self.least), self.most))
        return max(self._needed)
