"""How many workers an algorithm needs, ask by ask. Pure.

    ask ─▶ number of candidates ─▶ WorkerAutoscaler ─▶ number of workers ─▶ the pool grows, or gives workers back

Rounds of one algorithm differ in size (POET's transfers evaluate every agent in every environment, the rounds around
them do not), and starting a worker costs more than an evaluation: so growth is at once, and shrinking waits until
several asks in a row needed fewer.
"""

from __future__ import annotations

import math
from collections import deque


class WorkerAutoscaler:
    """Have as many workers as the candidates of the last few asks could keep busy.

    Example:
        >>> follow = WorkerAutoscaler(1, 8, evaluations_per_worker=10, patience=2)
        >>> [follow.workers_for(candidates) for candidates in (25, 60, 20, 20, 1000)]
        [3, 6, 6, 2, 8]

    Args:
        least: never fewer workers than these.
        most: never more than these.
        evaluations_per_worker: how many candidates of an ask a worker gets, if `most` allows it.
        patience: workers are given back after so many asks in a row that needed fewer.
    """

    def __init__(self, least: int, most: int, *, evaluations_per_worker: float = 4, patience: int = 3) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"workers must be at least 1 and least at most most, not {least} to {most}")
        if not evaluations_per_worker > 0:
            raise ValueError(f"evaluations_per_worker must be above 0, not {evaluations_per_worker}")
        if patience < 1:
            raise ValueError(f"patience must be at least 1 ask, not {patience}")
        self.least = least
        self.most = most
        self.evaluations_per_worker = evaluations_per_worker
        self._needed: deque[int] = deque(maxlen=patience)

    def workers_for(self, num_candidates: int) -> int:
        """The number of workers for the candidates that were just asked for; call it once for each ask."""
        needed = math.ceil(num_candidates / self.evaluations_per_worker)
        self._needed.append(min(max(needed, self.least), self.most))
        return max(self._needed)
