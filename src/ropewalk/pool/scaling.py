"""How many workers a pool should have, and what to do about it. Pure.

work ─▶ Elasticity ─▶ wanted ─▶ starting ─▶ ready ─▶ draining ─▶ gone
                                   └────────────┴── died ──▶ another one, as the restart budget allows
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ropewalk.supervision.restart import GiveUp, RestartBudget, StartAgain


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

    def died(self, rank: int, now: float, cause: str) -> StartAgain | GiveUp | None:
        """A worker is gone; None if it was leaving anyway. After a delayed `StartAgain`, call `delay_over`."""
        was_member, was_ready = rank in self._members, rank in self._ready
        self.gone(rank)
        if not was_member:
            return None
        decision = self._budget.died(now, healthy=was_ready, cause=cause)
        if isinstance(decision, StartAgain) and decision.delay_s:
            self._delayed += 1
        return decision

    def gone(self, rank: int) -> None:
        """A worker is gone, as planned or with its host: nothing of its own doing, and no start that failed."""
        for ranks in (self._members, self._ready, self._leaving):
            ranks.discard(rank)

    def delay_over(self) -> None:
        """The wait after a failed start is over."""
        self._delayed -= 1


class Elasticity:
    """How many workers a pool wants that grows and shrinks with its work.

    It grows to as many as could be at work, after `PATIENCE_S` in which the ones that it had did not keep up; and
    shrinks to as many as were at work at once, after `idle_s` in which that was fewer than it had.

    Args:
        least: never fewer than these.
        most: never more than these.
        idle_s: seconds.
    """

    #: Bursts that are over sooner than new workers could be there are left to the old ones.
    PATIENCE_S = 0.2

    def __init__(self, least: int, most: int, idle_s: float) -> None:
        self.least = least
        self.most = most
        self._idle_s = idle_s
        self._short_since: float | None = None
        self._idle_since: float | None = None
        self._peak = 0

    def look(self, now: float, wanted: int, needed: int, per_agent: int) -> int:
        """Decide how many there shall be now.

        Args:
            now: monotonic time in seconds.
            wanted: how many there are to be so far.
            needed: how many could be at work: those that are, and one for each piece of work that waits.
            per_agent: how many come and go together.
        """
        if needed > wanted:
            self._idle_since = None
            if self._short_since is None:
                self._short_since = now
            if wanted and now - self._short_since < self.PATIENCE_S:
                return wanted
            self._short_since = None
            agents = math.ceil((min(needed, self.most) - wanted) / per_agent)
            return max(wanted, min(self.most, wanted + agents * per_agent))
        self._short_since = None
        if needed == wanted:
            self._idle_since = None
            return wanted
        if self._idle_since is None:
            self._idle_since, self._peak = now, 0
        self._peak = max(self._peak, needed)
        if now - self._idle_since < self._idle_s:
            return wanted
        self._idle_since = None
        return min(wanted, max(self.least, self._peak))

    def rests(self, wanted: int, needed: int) -> bool:
        """Whether nothing will change before there is more to do."""
        return wanted <= self.least and needed <= wanted


class Seat(NamedTuple):
    """A worker, as far as it matters for who goes first."""

    rank: int
    agent: str
    """Its host; empty while it waits for one."""
    num_items: int
    """Tasks that it holds."""


def first_to_go(seats: Sequence[Seat]) -> list[int]:
    """The ranks in the order in which workers shall leave, such that whole agents become free.

    Those without a host first, then those of the agent with the fewest, the idle ones of an agent before the busy ones.
    """
    sizes = Counter(seat.agent for seat in seats)
    ordered = sorted(seats, key=lambda seat: (seat.agent != "", sizes[seat.agent], seat.agent, seat.num_items))
    return [seat.rank for seat in ordered]
