"""A semaphore: a counter that never goes below zero.

The count that a process acquired is not returned when it dies. Semaphores are signals as often as permits (one side
acquires, another releases), so only the program knows whether the count has to be returned.
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, Waiter, Waiters


class SemaphoreState:
    """The state of a `multiprocessing.Semaphore` or `BoundedSemaphore`.

    Args:
        value: the initial count, at least 0.
        bound: the upper limit of the count; None for no limit.

    Raises:
        ValueError: the value is negative or above the bound.
    """

    METHODS: ClassVar = frozenset({"acquire", "release", "get_value"})
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, value: int = 1, bound: int | None = None) -> None:
        if value < 0:
            raise ValueError(f"semaphore initial value must be >= 0, not {value}")
        if bound is not None and value > bound:
            raise ValueError(f"semaphore initial value must be at most its bound {bound}, not {value}")
        self._value = value
        self._bound = bound
        self._waiters: deque[Waiter] = deque()
        self._lent: set[Waiter] = set()  # Calls whose permit has not arrived yet.

    def acquire(self, waiter: Waiter) -> list[CallOutcome]:
        """Decrement the count, when it is positive: True, or False on a timeout."""
        self._waiters.append(waiter)
        return self._settle()

    def release(self, waiter: Waiter, n: int = 1) -> list[CallOutcome]:
        """Add n to the count; ValueError, without adding, if it would exceed the bound."""
        if n < 1:
            return [CallOutcome(waiter, error=ValueError("n must be one or more"))]
        if self._bound is not None and self._value + n > self._bound:
            return [CallOutcome(waiter, error=ValueError("semaphore or lock released too many times"))]
        self._value += n
        return [CallOutcome(waiter), *self._settle()]

    def get_value(self, waiter: Waiter) -> list[CallOutcome]:
        """Return the count."""
        return [CallOutcome(waiter, self._value)]

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End an acquire without the permit, or take back a permit that has not arrived."""
        if waiter in self._lent:
            self._lent.remove(waiter)
            self._value += 1
            return self._settle()
        if waiter not in self._waiters:
            return []
        self._waiters.remove(waiter)
        return [CallOutcome(waiter, False)] if timed_out else []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Record that this call's permit has arrived."""
        self._lent.discard(waiter)
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the calls of this process; its permits stay acquired, except those that have not arrived."""
        self._waiters = deque(waiter for waiter in self._waiters if waiter.party.process != process)
        unheard = {waiter for waiter in self._lent if waiter.party.process == process}
        self._lent -= unheard
        self._value += len(unheard)
        return self._settle()

    # The plain form; see `recorded.py`

    @property
    def resting(self) -> tuple[int, int, int] | None:
        """Its count; None while calls wait, or permits have not arrived."""
        return None if self._waiters or self._lent else (self._value, 0, 0)

    def rest(self, value: int, _thread: int, _depth: int, waiters: Waiters) -> None:
        """Take the state from its plain form at rest."""
        self._value = value

    def plain(self) -> tuple[Any, ...]:
        """Return everything that is to be kept, as plain values."""
        return self._value, [waiter.key for waiter in self._waiters], sorted(waiter.key for waiter in self._lent)

    def restore(self, plain: tuple[Any, ...], waiters: Waiters) -> None:
        """Take the state from its plain form."""
        self._value, waiting, lent = plain
        self._waiters = deque(map(waiters.waiter, waiting))
        self._lent = set(map(waiters.waiter, lent))

    def _settle(self) -> list[CallOutcome]:
        outcomes: list[CallOutcome] = []
        while self._value > 0 and self._waiters:
            self._value -= 1
            waiter = self._waiters.popleft()
            self._lent.add(waiter)
            outcomes.append(CallOutcome(waiter, True, lent=True))
        return outcomes
