"""Ends units: services after the units that call them; each unit is asked first, then terminated, then killed.

EndReplica ─▶ held, while finite units are still ending ─▶ StopUnit ──grace──▶ SIGTERM ──▶ SIGKILL
                                                               └─ shortly before: AskStatus, to report what it is doing
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from ropewalk.program.hosting import Hosting
from ropewalk.program.instructions import EndReplica
from ropewalk.program.messages import NOBODY_WAITS, AskStatus, StopUnit
from ropewalk.program.units import UnitReplica, Units

GRACE_S = 5.0
"""Default grace in seconds between the request to end and SIGTERM."""
_RESTART_GRACE_S = 1.0
"""The same for units that are restarted: often they wait for a peer that has died, and cannot react."""
_LOOK_S = 0.2
"""Seconds before the end of the grace at which a unit is asked what it is doing."""
_TERMINATE_S = 1.0
"""Seconds between SIGTERM, at the end of the grace, and SIGKILL."""


class Endings:
    """Ends the units of a program; on the loop.

    Args:
        units: the units that live.
        overdue: called for a unit that has not ended within its grace, before it is terminated.
        abandoned: called for a unit that cannot be ended, because it is a thread.
    """

    def __init__(
        self,
        units: Units,
        overdue: Callable[[UnitReplica, float], object],
        abandoned: Callable[[UnitReplica, str], None],
    ) -> None:
        self.grace_s = GRACE_S
        self._units = units
        self._overdue = overdue
        self._abandoned = abandoned
        self._hosting: Hosting
        self._held: list[EndReplica] = []

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._hosting = hosting

    def end(self, end: EndReplica, *, of_program: bool, patient: bool) -> None:
        """End a unit.

        Args:
            end: names the replica and the reason.
            of_program: whether the whole program ends: services then go on answering the units that are told to end
                first.
            patient: whether the unit gets its whole grace; a unit that is only restarted gets a second at most.
        """
        if of_program and self.grace_s and not self._units.is_finite(end.name):
            self._held.append(end)
            if len(self._held) == 1:
                self._hosting.loop.call_later(self.grace_s, self._release)
        else:
            grace_s = self.grace_s if patient else min(self.grace_s, _RESTART_GRACE_S)
            self._ask(end, grace_s, program_stays=not of_program)

    def settle(self) -> None:
        """Something has ended: perhaps the services can be ended now."""
        if self._held and not any(self._units.is_finite(unit.name.unit) for unit in self._units):
            self._release()

    def set_grace(self, grace_s: float) -> None:
        """Set the grace of the program, which shortens that of the units that are ending already."""
        self.grace_s = grace_s
        for unit in self._units:
            if unit.timer:
                self._give(unit, grace_s, sooner=True)

    def hurry(self, grace_s: float) -> None:
        """Shorten the grace, and end the services, too, without waiting for those that call them."""
        self.set_grace(grace_s)
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        for end in held:
            self._ask(end, self.grace_s)

    def _ask(self, end: EndReplica, grace_s: float, *, program_stays: bool = False) -> None:
        unit = self._units.at(end.name, end.replica)
        if unit is not None and unit.name.generation == end.generation:
            self._hosting.tell(unit.name, StopUnit(unit.name, end.why, grace_s, program_stays))
            self._give(unit, grace_s)

    def _give(self, unit: UnitReplica, grace_s: float, *, sooner: bool = False) -> None:
        """Terminate a unit after its grace, and ask it before what it is doing; `sooner` is as for `_after`."""
        self._hosting.loop.call_later(max(0.0, grace_s - _LOOK_S), lambda: self._look(unit))
        self._after(unit, grace_s, lambda unit: self._terminate(unit, grace_s), sooner=sooner)

    def _look(self, unit: UnitReplica) -> None:
        """Ask a unit what it is doing, shortly before its grace is over."""
        if self._units.find(unit.name) is unit:
            self._hosting.tell(unit.name, AskStatus(NOBODY_WAITS))

    def _terminate(self, unit: UnitReplica, grace_s: float) -> None:
        self._overdue(unit, grace_s)
        if self._hosting.signal(unit.name, signal.SIGTERM):
            self._after(unit, _TERMINATE_S, lambda unit: self._hosting.signal(unit.name, signal.SIGKILL))
        else:
            self._abandoned(unit, "did not end when it was asked to, and a thread cannot be killed")

    def _after(
        self, unit: UnitReplica, delay_s: float, action: Callable[[UnitReplica], object], *, sooner: bool = False
    ) -> None:
        """Schedule an action for a unit in place of the planned one; with `sooner`, only if it comes before that."""
        timer = self._hosting.loop.call_later(delay_s, lambda: action(unit))
        if sooner and unit.timer and unit.timer.due <= timer.due:
            timer.cancel()
            return
        if unit.timer:
            unit.timer.cancel()
        unit.timer = timer
