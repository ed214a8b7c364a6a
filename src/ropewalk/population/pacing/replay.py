"""Replay: the decisions of a run that was logged, in their order, whatever arrives when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.population.pacing.pacing import Ask, Drop, Instruction, Tell, Ticket, rows, tickets


class Replay:
    """The pacing of a log.

    Args:
        instructions: as they were carried out.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = list(instructions)
        self._at = 0
        self._running: dict[Ticket, None] = {}
        self._ended: set[Ticket] = set()

    @property
    def is_over(self) -> bool:
        """Whether everything was done again."""
        return self._at == len(self._instructions)

    @property
    def under_way(self) -> list[Ticket]:
        return sorted([*self._running, *self._ended])

    @property
    def due(self) -> float | None:
        return None

    def next(self, now: float, num_workers: int) -> Instruction | None:
        if self.is_over:
            return None
        instruction = self._instructions[self._at]
        match instruction:
            case Ask():
                pass
            case Tell(told):
                if not self._ended.issuperset(told):
                    return None
                self._ended.difference_update(told)
            case Drop(dropped):
                for ticket in dropped:
                    self._running.pop(ticket, None)
                self._ended.difference_update(dropped)
        self._at += 1
        return instruction

    def asked(self, tickets: Sequence[Ticket], now: float) -> None:
        self._running |= dict.fromkeys(tickets)

    def ended(self, ticket: Ticket, now: float) -> None:
        if ticket in self._running:
            del self._running[ticket]
            self._ended.add(ticket)

    def state_dict(self) -> dict[str, Any]:
        return {"under_way": rows(self.under_way), "at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._running = dict.fromkeys(tickets(state["under_way"]))
        self._ended = set()
        self._at = int(state["at"])
