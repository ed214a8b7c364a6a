"""An event: a flag that threads and processes wait for."""

from __future__ import annotations

from typing import Any, ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, Waiter, Waiters


class EventState:
    """The state of a `multiprocessing.Event`."""

    METHODS: ClassVar = frozenset({"is_set", "set", "clear", "wait"})
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Waiter] = []

    def is_set(self, waiter: Waiter) -> list[CallOutcome]:
        """Return whether the flag is set."""
        return [CallOutcome(waiter, self._is_set)]

    def set(self, waiter: Waiter) -> list[CallOutcome]:
        """Set the flag, and end all waits, even if it is cleared immediately afterwards."""
        self._is_set = True
        outcomes = [CallOutcome(waiter), *(CallOutcome(sleeper, True) for sleeper in self._waiters)]
        self._waiters.clear()
        return outcomes

    def clear(self, waiter: Waiter) -> list[CallOutcome]:
        """Clear the flag."""
        self._is_set = False
        return [CallOutcome(waiter)]

    def wait(self, waiter: Waiter) -> list[CallOutcome]:
        """Wait until the flag is set: True, or False on a timeout."""
        if self._is_set:
            return [CallOutcome(waiter, True)]
        self._waiters.append(waiter)
        return []

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a wait without the flag."""
        if waiter not in self._waiters:
            return []
        self._waiters.remove(waiter)
        return [CallOutcome(waiter, False)] if timed_out else []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Do nothing: nothing is ever lent here."""
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the calls of this process."""
        self._waiters = [waiter for waiter in self._waiters if waiter.party.process != process]
        return []

    def is_waiting(self, call: Waiter) -> bool:
        """Return whether a call waits."""
        return call in self._waiters

    # The plain form; see `recorded.py`

    @property
    def resting(self) -> tuple[int, int, int] | None:
        """Whether it is set; None while calls wait."""
        return None if self._waiters else (int(self._is_set), 0, 0)

    def rest(self, is_set: int, _thread: int, _depth: int, waiters: Waiters) -> None:
        """Take the state from its plain form at rest."""
        self._is_set = bool(is_set)

    def plain(self) -> tuple[Any, ...]:
        """Return everything that is to be kept, as plain values."""
        return self._is_set, [waiter.key for waiter in self._waiters]

    def restore(self, plain: tuple[Any, ...], waiters: Waiters) -> None:
        """Take the state from its plain form."""
        self._is_set, waiting = plain
        self._waiters = list(map(waiters.waiter, waiting))
