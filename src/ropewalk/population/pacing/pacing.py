"""The interface of pacings: a pacing is told what was asked and what has ended, and decides what to do next. Pure.

    asked(tickets) ──┐                ┌──▶ Ask(n)                      ask the algorithm, have its candidates evaluated
    ended(ticket) ───┼─▶ next(now) ───┼──▶ Tell(tickets)               tell the algorithm, in this order
    (time passes) ───┘                ├──▶ CancelEvaluations(tickets)  give these up
                                      └──▶ None                        wait, at most until `due`

Apart from the algorithm, a run consists of these instructions in order; their log suffices to repeat it
(`decisions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Ticket(NamedTuple):
    """An evaluation: the number of its ask, and the position of its candidate in that ask."""

    ask: int
    position: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the algorithm for `n` candidates."""

    n: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the algorithm the outcomes of these evaluations, in this order."""

    tickets: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class CancelEvaluations:
    """Give these evaluations up."""

    tickets: tuple[Ticket, ...]


Instruction = Ask | Tell | CancelEvaluations


class Pacing(Protocol):
    """A strategy of asking and telling."""

    def next(self, now: float, num_workers: int) -> Instruction | None:
        """Return the next instruction, which the caller carries out before the next call.

        None means that the caller has to wait until an evaluation ends, or until `due`.
        """
        ...

    def asked(self, tickets: Sequence[Ticket], now: float) -> None:
        """Note that the algorithm was asked, and these evaluations were submitted: possibly fewer than requested."""
        ...

    def ended(self, ticket: Ticket, now: float) -> None:
        """Note that an evaluation has ended."""
        ...

    @property
    def due(self) -> float | None:
        """The time at which `next` may return an instruction although no evaluation has ended; None if never."""
        ...

    @property
    def under_way(self) -> list[Ticket]:
        """Evaluations that were asked for and neither told nor dropped, oldest first."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from: numbers and lists of numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; evaluations under way then are evaluated again."""
        ...


class UnderWay:
    """Evaluations that were asked for and neither told nor dropped: the bookkeeping that pacings share."""

    def __init__(self) -> None:
        self._running: dict[Ticket, None] = {}
        self._ended: dict[Ticket, None] = {}
        """Evaluations that have ended, in that order."""

    @property
    def due(self) -> float | None:
        return None

    @property
    def under_way(self) -> list[Ticket]:
        return sorted([*self._running, *self._ended])

    def asked(self, tickets: Sequence[Ticket], now: float) -> None:
        self._running |= dict.fromkeys(tickets)

    def ended(self, ticket: Ticket, now: float) -> None:
        if ticket in self._running:
            del self._running[ticket]
            self._ended[ticket] = None

    def _evaluate_again(self, saved: Sequence[Sequence[int]]) -> None:
        """Restore evaluations from `rows`, to evaluate them again."""
        self._running = dict.fromkeys(tickets(saved))
        self._ended = {}


def rows(tickets: Sequence[Ticket]) -> list[list[int]]:
    """Convert tickets to lists that a state file can hold."""
    return [list(ticket) for ticket in tickets]


def tickets(rows: Sequence[Sequence[int]]) -> list[Ticket]:
    """Convert the lists of `rows` back to tickets."""
    return [Ticket(int(ask), int(position)) for ask, position in rows]
