"""How many workers a pool should have, and which to start or to drain. Pure.

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
    """Compares the workers of one pool with the number wanted."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._budget = RestartBudget()
        self._members: set[int] = set()
        self._ready: set[int] = set()
        self._leaving: set[int] = set()
        self._delayed = 0

    def missing(self) -> list[int]:
        """Return the ranks of workers to start now: the lowest free numbers."""
        ranks: list[int] = []
        rank = 0
        while len(self._members) + self._delayed < self.wanted:
            while rank in self._members or rank in self._leaving:
                rank += 1
            self._members.add(rank)
            ranks.append(rank)
        return ranks

    def surplus(self, idle_first: Iterable[int]) -> list[int]:
        """Return the ranks of workers to drain, taken in the given order; they no longer count."""
        surplus: list[int] = []
        for rank in idle_first:
            if len(self._members) + self._delayed <= self.wanted:
                break
            if rank in self._members:
                surplus.append(rank)
                self.leaving(rank)
        return surplus

    def ready(self, rank: int, now: float) -> None:
        """Note that a worker takes tasks."""
        if rank in self._members:
            self._ready.add(rank)
            self._budget.ready(now)

    def leaving(self, rank: int) -> None:
        """Note that a worker will end as planned: another may start now, and take over its rank once it is gone."""
        if rank in self._members:
            self.gone(rank)
            self._leaving.add(rank)

    def died(self, rank: int, now: float, cause: str) -> StartAgain | GiveUp | None:
        """Note a death and decide what follows; None if the worker was leaving. After a delay, call `delay_over`."""
        was_member, was_ready = rank in self._members, rank in self._ready
        self.gone(rank)
        if not was_member:
            return None
        decision = self._budget.died(now, healthy=was_ready, cause=cause)
        if isinstance(decision, StartAgain) and decision.delay_s:
            self._delayed += 1
        return decision

    def gone(self, rank: int) -> None:
        """Note that a worker is gone, as planned or with its host; this does not count as a failed start."""
        for ranks in (self._members, self._ready, self._leaving):
            ranks.discard(rank)

    def delay_over(self) -> None:
        """Note that the wait after a failed start is over."""
        self._delayed -= 1


class Elasticity:
    """Decides how many workers an elastic pool wants as its work changes.

    The pool grows to the number that could be at work, once its present workers have not kept up for `PATIENCE_S`. It
    shrinks to the largest number that were at work at once, once that has been below its size for `idle_s`.

    Args:
        least: the smallest number of workers.
        most: the largest number of workers.
        idle_s: seconds before the pool shrinks.
    """

    PATIENCE_S = 0.2
    """Seconds before the pool grows: shorter bursts, in which new workers could not start, are left to existing ones.
    """

    def __init__(self, least: int, most: int, idle_s: float) -> None:
        self.least = least
        self.most = most
        self._idle_s = idle_s
        self._short_since: float | None = None
        self._idle_since: float | None = None
        self._peak = 0

    def look(self, now: float, wanted: int, needed: int, per_agent: int) -> int:
        """Decide how many workers there shall be now.

        Args:
            now: monotonic time in seconds.
            wanted: the number of workers wanted so far.
            needed: the number that could be at work: the busy ones, and one for each unit that waits.
            per_agent: the number of workers that come and go together, with their agent.

        Returns:
            The number of workers wanted from now on.
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
        """Return whether nothing will change until there is more work."""
        return wanted <= self.least and needed <= wanted


class Seat(NamedTuple):
    """The facts about a worker that decide how early it leaves."""

    rank: int
    agent: str
    """The agent of its host; empty while the worker waits for one."""
    num_items: int
    """Number of tasks that it holds."""


def first_to_go(seats: Sequence[Seat]) -> list[int]:
    """Return the ranks in the order in which workers shall leave, such that whole agents become free.

    Workers without a host come first, then those of the agent that has the fewest; within an agent, the idle ones come
    before the busy ones.
    """
    sizes = Counter(seat.agent for seat in seats)
    ordered = sorted(seats, key=lambda seat: (seat.agent != "", sizes[seat.agent], seat.agent, seat.num_items))
    return [seat.rank for seat in ordered]
