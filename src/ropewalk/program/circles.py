"""Carries out the decisions of `WaitWatch`: asks hosts about waiting calls, and ends a call of a cycle. On the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ropewalk.calls.waits import LaneWaits
from ropewalk.program.hosting import Hosting
from ropewalk.program.messages import AskWaits, EndCall, UnitName
from ropewalk.program.units import Units
from ropewalk.program.wait_graph import Circle
from ropewalk.program.wait_watch import BreakCircle, QueryWaits, WaitWatch

_ADVICE = (
    "let one of these methods return before the other service is called, call with .send() or with a future that the "
    "method does not wait for, or mark a method that may run beside the others with @rw.concurrent(n)"
)


class Circles:
    """Ends calls that wait for each other.

    Args:
        units: the units that live.
        happened: reports something to the user.
    """

    def __init__(self, units: Units, happened: Callable[[str], object]) -> None:
        self._units = units
        self._happened = happened
        self._watch = WaitWatch()
        self._hosting: Hosting

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._hosting = hosting

    def held_up(self, name: UnitName) -> None:
        """Calls are held up in a unit's process."""
        unit = self._units.find(name)
        if unit:
            self._do(self._watch.held_up(unit.address, time.monotonic()))

    def answered(self, name: UnitName, number: int, lanes: Sequence[LaneWaits]) -> None:
        """A unit's process reports its waiting calls."""
        unit = self._units.find(name)
        if unit:
            self._do(self._watch.answered(unit.address, number, lanes))

    def _do(self, instructions: Sequence[QueryWaits | BreakCircle]) -> None:
        for said in instructions:
            if isinstance(said, QueryWaits):
                name = self._name_at(said.address)
                if name:
                    self._hosting.tell(name, AskWaits(said.number, name))
                else:
                    self._watch.gone(said.address)
            elif isinstance(said, BreakCircle):
                self._break(said.circle)

    def _break(self, circle: Circle) -> None:
        last = circle.last_comer
        name = self._name_at(last.address)
        if name:
            text = f"these calls wait for each other, and none of them can ever go on:\n{circle.drawn()}\n"
            words = f"{text}{last.call.label} was ended, as it came last; {_ADVICE}"
            self._hosting.tell(name, EndCall(last.target, last.call.key, words, list(circle.labels)))
            self._happened(f"calls waited for each other, and {last.call.label} was ended: {' → '.join(circle.labels)}")

    def _name_at(self, address: str) -> UnitName | None:
        return next((unit.name for unit in self._units if unit.address == address), None)
