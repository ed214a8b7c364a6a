"""`PendingState`: the state that a round prepared, until the round is committed or aborted.

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
        """Check that a round may begin.

        Raises:
            RuntimeError: the previous round was neither committed nor aborted.
        """
        if self._prepared:
            raise RuntimeError("the round before was neither committed nor aborted; settle it before the next begins")

    def prepare(self, state: T) -> None:
        """Keep the next state; in the same round it replaces the state that was prepared before."""
        self._prepared[:] = [state]

    def take(self) -> T | None:
        """Return the prepared state and forget it; None if no round has begun."""
        return self._prepared.pop() if self._prepared else None

    def drop(self) -> None:
        """Forget the prepared state."""
        self._prepared.clear()
