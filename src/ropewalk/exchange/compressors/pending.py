"""`PendingState`: what a round prepared, until it is settled one way or the other.

encode ─▶ prepare(next state) ─┬─ commit ─▶ take() ─▶ state
                               └─ abort ──▶ drop()
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class PendingState(Generic[T]):
    """Holds the next state of one encoder or decoder."""

    def __init__(self) -> None:
        self._prepared: list[T] = []

    def check(self) -> None:
        """A round may begin.

        Raises:
            RuntimeError: the round before has not been settled.
        """
        if self._prepared:
            raise RuntimeError("the round before was neither committed nor aborted; settle it before the next begins")

    def prepare(self, state: T) -> None:
        """Keep the next state; in the same round it replaces what was prepared before."""
        self._prepared[:] = [state]

    def take(self) -> T | None:
        """Give the next state out; None if no round has begun."""
        return self._prepared.pop() if self._prepared else None

    def drop(self) -> None:
        """Forget it."""
        self._prepared.clear()
