"""A box: one value, put in once, which any number of processes copy."""

from __future__ import annotations

from typing import ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, SizedItem, Waiter


class BoxState:
    """Keeps one opaque item."""

    METHODS: ClassVar = frozenset({"put", "get"})
    SEALED: ClassVar = frozenset({"put"})

    def __init__(self) -> None:
        self._item: SizedItem | None = None

    def put(self, waiter: Waiter, item: SizedItem) -> list[CallOutcome]:
        """Put in the value; ValueError if there is one already."""
        if self._item is not None:
            return [CallOutcome(waiter, error=ValueError("there is a value in this box already; make another box"))]
        self._item = item
        return [CallOutcome(waiter)]

    def get(self, waiter: Waiter) -> list[CallOutcome]:
        """Return the value, which stays in the box; ValueError if there is none."""
        if self._item is None:
            return [CallOutcome(waiter, error=ValueError("there is no value in this box; put one in first"))]
        return [CallOutcome(waiter, self._item)]

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """Do nothing: no call waits here."""
        return []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Do nothing: nothing is lent here."""
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Do nothing: the value outlives the process that put it in."""
        return []
