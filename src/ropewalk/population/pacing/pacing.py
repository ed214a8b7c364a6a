"""What every pacing does: it hears what was asked and what has ended, and says what to do next. Pure.

    asked(tickets) ──┐                ┌──▶ Ask(n)           ask the algorithm, have its candidates evaluated
    ended(ticket) ───┼─▶ next(now) ───┼──▶ Tell(tickets)    tell the algorithm, in this order
    (time passes) ───┘                ├──▶ CancelEvaluations(tickets)    these are not wanted any more
                                      └──▶ None             wait, at most until `due`

The instructions, in order, are all that a run decides beside its algorithm: their log is the run (`decisions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Ticket(NamedTuple):
    """An evaluation: which ask its candidate came from, and its position in there."""

    ask: int
    position: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the algorithm for `n` candidates."""

    n: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the algorithm of these, in this order."""

    tickets: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class CancelEvaluations:
    """Evaluate these no further."""

    tickets: tuple[Ticket, ...]


Instruction = Ask | Tell | CancelEvaluations


class Pacing(Protocol):
    """One way to ask and tell."""

    def next(self, now: float, num_workers: int) -> Instruction | None:
        """What to do next; the caller does it before it asks again. None: wait for something to end."""
        ...

    def asked(self, tickets: Sequence[Ticket], now: float) -> None:
        """The algorithm was asked, and these are on their way: perhaps fewer than it was asked for."""
        ...

    def ended(self, ticket: Ticket, now: float) -> None:
        """The outcome of one is here."""
        ...

    @property
    def due(self) -> float | None:
        """When `next` may say something although nothing has ended."""
        ...

    @property
    def under_way(self) -> list[Ticket]:
        """What was asked and is neither told nor dropped, oldest first."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `resume` needs; numbers and lists of numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; what was under way is evaluated again."""
        ...


class UnderWay:
    """What was asked and is neither told nor dropped: the bookkeeping that pacings share."""

    def __init__(self) -> None:
        self._running: dict[Ticket, None] = {}
        self._ended: dict[Ticket, None] = {}
        """In the order in which they ended."""

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
        """What `rows` made of what was under way."""
        self._running = dict.fromkeys(tickets(saved))
        self._ended = {}


def rows(tickets: Sequence[Ticket]) -> list[list[int]]:
    """Tickets as what can be saved."""
    return [list(ticket) for ticket in tickets]


def tickets(rows: Sequence[Sequence[int]]) -> list[Ticket]:
    """`rows` undone."""
    return [Ticket(int(ask), int(position)) for ask, position in rows]
