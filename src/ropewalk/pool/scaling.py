"""How many workers a pool should have, and what to do about it. Pure.

wanted ─▶ starting ─▶ ready ─▶ draining ─▶ gone
             └────────────┴── died ──▶ another one, as the restart budget allows
"""

from __future__ import annotations

from collections.abc import Iterable

from ropewalk.supervision.restart import GiveUp, Restart, RestartBudget


class Scaling:
    """Counts the workers of one pool against the number wanted."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._budget = RestartBudget()
        self._members: set[int] = set()
        self._ready: set[int] = set()
        self._delayed = 0

    def missing(self) -> list[int]:
        """The ranks of workers to start now: the lowest free numbers."""
        ranks: list[int] = []
        rank = 0
        while len(self._members) + self._delayed < self.wanted:
            while rank in self._members:
                rank += 1
            self._members.add(rank)
            ranks.append(rank)
        return ranks

    def surplus(self, idle_first: Iterable[int]) -> list[int]:
        """The ranks of workers to drain, taken from the given order; they no longer count."""
        surplus: list[int] = []
        for rank in idle_first:
            if len(self._members) + self._delayed <= self.wanted:
                break
            if rank in self._members:
                surplus.append(rank)
                self.leaving(rank)
        return surplus

    def ready(self, rank: int, now: float) -> None:
        """A worker takes tasks."""
        if rank in self._members:
            self._ready.add(rank)
            self._budget.ready(now)

    def leaving(self, rank: int) -> None:
        """A worker will end as planned; its place is free."""
        self._members.discard(rank)
        self._ready.discard(rank)

    def died(self, rank: int, now: float, cause: str) -> Restart | GiveUp | None:
        """A worker is gone; None if it was leaving anyway. After a delayed `Restart`, call `delay_over`."""
        if rank not in self._members:
            return None
        decision = self._budget.died(now, healthy=rank in self._ready, cause=cause)
        self.leaving(rank)
        if isinstance(decision, Restart) and decision.delay_s:
            self._delayed += 1
        return decision

    def host_lost(self, rank: int) -> None:
        """A worker went with its host: nothing of its own doing, and no start that failed."""
        self.leaving(rank)

    def delay_over(self) -> None:
        """The wait after a failed start is over."""
        self._delayed -= 1
