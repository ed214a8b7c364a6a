"""A desk: it carries calls to states and keeps what they ended with, as a depot does, but at once and in one thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter


def party(process: str, thread: int = 0) -> Party:
    return Party(process, f"Process-{process}", thread)


@dataclass(frozen=True)
class Parcel:
    """An item that says who it is and pretends to be large."""

    label: Any
    size_bytes: int = 1
    is_light: bool = True


class Lot:
    """A lot whose reader begins items when the test says so."""

    def __init__(self) -> None:
        self.is_open = False
        self.begun = 1
        self.closed_at: int | None = None
        self.is_watched = False

    def open(self) -> None:
        assert not self.is_open, "a lot is lent once"
        self.is_open = True

    def close(self) -> int:
        assert self.is_open, "it was not lent"
        if self.closed_at is None:
            self.closed_at = self.begun
        return self.closed_at

    def watch(self) -> None:
        assert self.is_open and self.closed_at is None, "there is nothing to hear of"
        self.is_watched = True

    @property
    def num_begun(self) -> int:
        return self.begun if self.closed_at is None else self.closed_at


class Desk:
    """Calls under way and ended, of any number of states that live and die together.

    Args:
        states: as a depot has them, in the order in which they hear of deaths.
        on_outcome: hears each outcome as it comes.
    """

    def __init__(self, *states: Any, on_outcome: Callable[[CallOutcome], None] = lambda outcome: None) -> None:
        self.states = states
        self.waiting: dict[Waiter, Any] = {}  # In the order of the calls; with the state where each was made.
        self.ended: dict[Waiter, CallOutcome] = {}
        self.lent: dict[Waiter, Any] = {}
        self.dead: set[str] = set()
        self._on_outcome = on_outcome

    def call(self, state: Any, method: str, who: Party, *args: Any) -> Waiter:
        assert method in state.METHODS
        waiter = Waiter(who)
        self.waiting[waiter] = state
        self._hear(getattr(state, method)(waiter, *args))
        return waiter

    def ask(self, state: Any, method: str, who: Party, *args: Any) -> Any:
        """A call that must end at once, and whose caller hears of it: what it returns, or raises."""
        waiter = self.call(state, method, who, *args)
        if waiter in self.lent:
            self.taken(waiter)
        return self.end(waiter)

    def end(self, waiter: Waiter) -> Any:
        """What an ended call returns, or raises."""
        outcome = self.ended[waiter]
        if outcome.error is not None:
            raise outcome.error
        return outcome.value.label if isinstance(outcome.value, Parcel) else outcome.value

    def time_over(self, waiter: Waiter) -> None:
        self._hear(self.waiting[waiter].give_up(waiter, timed_out=True))

    def cancel(self, waiter: Waiter) -> None:
        self._hear(self.waiting.pop(waiter).give_up(waiter, timed_out=False))

    def taken(self, waiter: Waiter) -> None:
        self._hear(self.lent.pop(waiter).taken(waiter))

    def never_taken(self, waiter: Waiter) -> None:
        self._hear(self.lent.pop(waiter).give_up(waiter, timed_out=False))

    def die(self, process: str) -> None:
        self.dead.add(process)
        self.waiting = {waiter: state for waiter, state in self.waiting.items() if waiter.party.process != process}
        self.lent = {waiter: state for waiter, state in self.lent.items() if waiter.party.process != process}
        for state in self.states:
            self._hear(state.party_gone(process, f"Process-{process}"))

    def _hear(self, outcomes: list[CallOutcome]) -> None:
        for outcome in outcomes:
            waiter = outcome.waiter
            assert waiter.party.process not in self.dead, "an outcome for a process that is gone"
            assert waiter in self.waiting, "a second outcome, or one for a call that was cancelled"
            state = self.waiting.pop(waiter)
            self.ended[waiter] = outcome
            if outcome.lent:
                self.lent[waiter] = state
            self._on_outcome(outcome)
