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
        self._leaving: set[int] = set()
        self._delayed = 0

    def missing(self) -> list[int]:
        """The ranks of workers to start now: the lowest free numbers."""
        ranks: list[int] = []
        rank = 0
        while len(self._members) + self._delayed < self.wanted:
            while rank in self._members or rank in self._leaving:
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
        """A worker will end as planned: another may take its place now, and its rank when it is gone."""
        if rank in self._members:
            self.gone(rank)
            self._leaving.add(rank)

    def died(self, rank: int, now: float, cause: str) -> Restart | GiveUp | None:
        """A worker is gone; None if it was leaving anyway. After a delayed `Restart`, call `delay_over`."""
        was_member, was_ready = rank in self._members, rank in self._ready
        self.gone(rank)
        if not was_member:
            return None
        decision = self._budget.died(now, healthy=was_ready, cause=cause)
        if isinstance(decision, Restart) and decision.delay_s:
            self._delayed += 1
        return decision

    def gone(self, rank: int) -> None:
        """A worker is gone, as planned or with its host: nothing of its own doing, and no start that failed."""
        for ranks in (self._members, self._ready, self._leaving):
            ranks.discard(rank)

    def delay_over(self) -> None:
        """The wait after a failed start is over."""
        self._delayed -= 1
