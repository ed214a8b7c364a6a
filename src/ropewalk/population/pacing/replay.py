"""ReplayPacing: repeats the decisions of a logged run in their order, whenever evaluations end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.population.pacing.pacing import Ask, CancelEvaluations, Instruction, Tell, UnderWay, rows


class ReplayPacing(UnderWay):
    """The pacing of a logged run.

    Args:
        instructions: the logged instructions, in order.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        super().__init__()
        self._instructions = list(instructions)
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether all instructions were repeated."""
        return self._at == len(self._instructions)

    def next(self, now: float, num_workers: int) -> Instruction | None:
        if self.is_over:
            return None
        instruction = self._instructions[self._at]
        match instruction:
            case Ask():
                pass
            case Tell(told):
                if not self._ended.keys() >= set(told):
                    return None
                for ticket in told:
                    del self._ended[ticket]
            case CancelEvaluations(dropped):
                for ticket in dropped:
                    self._running.pop(ticket, None)
                    self._ended.pop(ticket, None)
        self._at += 1
        return instruction

    def state_dict(self) -> dict[str, Any]:
        return {"under_way": rows(self.under_way), "at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluate_again(state["under_way"])
        self._at = int(state["at"])
