"""Finds the rank that failed first: when one dies, the others of its group fail too, a moment later.

    rank 1 raises ──UnitEnded──▶                       (its sockets close)
    rank 0 raises "connection closed by peer" ──UnitEnded──▶ process ends ──▶ held
    rank 1's process ends ─────────────────────────────────────────────────▶ held
                                             after HOLD_S: rank 1, then rank 0, in the order of their reports

The process of a rank that raised may take longer to end than those of the ranks that failed because of it. So the end
of a rank that reported an exception is held for a moment; a rank that ended without a report, as one that was killed,
is the cause, and is told at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.program.messages import UnitName
from ropewalk.program.units import UnitReplica
from ropewalk.transport.loop import Loop

HOLD_S = 0.5
"""Seconds for which the end of a rank with an exception is held."""


@dataclass(frozen=True, slots=True)
class _Held:
    unit: UnitReplica
    tell: Callable[[], None]


class RankFailures:
    """The ends of ranks that are held; on the loop."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], list[_Held]] = {}
        """By unit and generation."""

    def hold(self, loop: Loop, unit: UnitReplica, num_alive: int, tell: Callable[[], None]) -> None:
        """Hold the end of a rank that raised an exception.

        Args:
            loop: calls back.
            unit: the rank.
            num_alive: number of ranks of its group whose end is not known, itself and those that are held included.
            tell: called with the first of the group's ends, or when the moment is over.
        """
        group = _group_of(unit.name)
        held = self._held.setdefault(group, [])
        held.append(_Held(unit, tell))
        if len(held) >= num_alive:
            self.release(unit.name)
        elif len(held) == 1:
            loop.call_later(HOLD_S, lambda: self.release(unit.name))

    def release(self, name: UnitName) -> None:
        """Tell the ends of a rank's group that are held, in the order of the ranks' reports."""
        for each in sorted(self._held.pop(_group_of(name), []), key=lambda held: held.unit.reported):
            each.tell()


def _group_of(name: UnitName) -> tuple[str, int]:
    return name.unit, name.generation
