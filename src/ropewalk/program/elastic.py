"""Elastic rank groups: a group whose size has bounds begins with the ranks for which there is room.

    all ranks are up                               ─▶ they meet
    `least` are up, the others not after LAST_CALL_S ─▶ the group restarts with those that were up
    a rank cannot be started                       ─▶ the group restarts with one less, if `least` remain
    a rank failed, and the rule allows a restart   ─▶ the group restarts with its upper bound again

The rules are those of `torchrun`'s rendezvous ("last call"; torch/distributed/elastic/rendezvous), except that ranks
are added only when the group restarts, or when the user scales it.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.program.hosting import Hosting
from ropewalk.program.messages import UnitName
from ropewalk.program.units import Units

LAST_CALL_S = 30.0
"""Seconds that a group waits for further ranks when it has its least number of them, as `torchrun` does."""


class ElasticGroups:
    """Decides the size of elastic groups; on the loop.

    Args:
        units: the units of the program.
        scale: changes the size of a unit, which restarts it.
        happened: reports something to the user.
    """

    def __init__(self, units: Units, scale: Callable[[str, int], None], happened: Callable[[str], None]) -> None:
        self._units = units
        self._scale = scale
        self._happened = happened
        self._called: set[tuple[str, int]] = set()
        """The groups for which a last call is out, by unit and generation."""
        self._most = dict(units.sizes)
        self._hosting: Hosting

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._hosting = hosting

    def came_up(self, name: UnitName) -> None:
        """The process of a rank is up: the last call begins when the group has its least number."""
        least = self._least(name.unit)
        call = name.unit, name.generation
        if least is None:
            return
        num_up = self._num_up(*call)
        if num_up >= self._units.sizes[name.unit]:
            self._called.discard(call)  # they meet, and end one by one: those that are left are no smaller group
            return
        if call in self._called or num_up < least:
            return
        self._called.add(call)
        self._hosting.loop.call_later(LAST_CALL_S, lambda: self._begin_without(*call))

    def cannot_start(self, name: UnitName, problem: str) -> None:
        """A rank could not be started: go on with one less, if that is enough."""
        size, least = self._units.sizes[name.unit], self._least(name.unit)
        if least is not None and size > least:
            self._happened(f"{name.unit} goes on with {size - 1} of {size} ranks: {name.replica} {problem}")
            self._scale(name.unit, size - 1)

    def restarts(self, unit: str) -> None:
        """A rank failed, and the group restarts: with its upper bound again."""
        if self._least(unit) is not None and self._units.sizes[unit] < self._most[unit]:
            self._scale(unit, self._most[unit])

    def _begin_without(self, unit: str, generation: int) -> None:
        if (unit, generation) not in self._called:
            return
        self._called.discard((unit, generation))
        num_up, size = self._num_up(unit, generation), self._units.sizes[unit]
        if (self._least(unit) or 0) <= num_up < size and num_up:
            self._happened(
                f"{unit} begins with {num_up} of {size} ranks: the others have found no room for {LAST_CALL_S:g} s"
            )
            self._scale(unit, num_up)

    def _num_up(self, unit: str, generation: int) -> int:
        names = [each.name for each in self._units if each.address and not each.timer]  # without those that are ending
        return sum((name.unit, name.generation) == (unit, generation) for name in names)

    def _least(self, unit: str) -> int | None:
        return self._units.nodes[unit][0].node.least_replicas
