"""What the hosts of a program's units report of their nodes: the calls that run, and where they are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from ropewalk.processes.notifier import Notifier
from ropewalk.program.hosting import Hosting
from ropewalk.program.messages import AskStatus, HostStatus, NodeCalls, UnitName
from ropewalk.program.units import UnitReplica, Units


class HostReports:
    """Asks the hosts, and keeps their last answers. On the loop.

    Args:
        units: the units of the program.
        changed: notified when a host has answered a request that a thread waits for.
    """

    def __init__(self, units: Units, changed: Notifier) -> None:
        self.calls: dict[tuple[str, int], NodeCalls] = {}
        """The last report of each replica's calls, by node and replica."""
        self._made_before: dict[tuple[str, int], Mapping[str, int]] = {}
        """The calls that each replica has made to each service before it was started last, by node and replica."""
        self.answers: dict[int, int] = {}
        """Number of hosts that have answered, by the number of a request that a thread waits for."""
        self._units = units
        self._changed = changed
        self._hosting: Hosting

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._hosting = hosting

    def ask(self, number: int) -> int:
        """Ask all hosts for the state of their nodes; returns the number of hosts asked."""
        up = [unit for unit in self._units if unit.address]
        if self._hosting.shares_host:
            up = up[:1]
        now = time.monotonic()
        for unit in up:
            unit.asked = unit.asked or now
            self._hosting.tell(unit.name, AskStatus(number))
        return len(up)

    def heard(self, name: UnitName, status: HostStatus) -> None:
        """A host has answered."""
        for unit in self._units if self._hosting.shares_host else [self._units.find(name)]:
            if unit:
                unit.asked = None
        for calls in status.nodes:
            self._take(calls)
        if status.number in self.answers:  # otherwise no thread waits for it any more
            self.answers[status.number] += 1
            self._changed.ring()

    def _take(self, calls: NodeCalls) -> None:
        key = calls.node, calls.unit.replica
        last = self.calls.get(key)
        if last and last.unit.generation != calls.unit.generation:
            self._made_before[key] = Counter(self._made_before.get(key, {})) + Counter(last.calls_to)
        self.calls[key] = calls

    def calls_made(self) -> list[tuple[str, Mapping[str, int]]]:
        """Return names of nodes with calls that they have made to each service, whose sums never fall; any thread.

        A restart does not begin them anew: the rate of a caller whose replicas die often would be shown too low.
        """
        before = [(node, made) for (node, _), made in list(self._made_before.items())]
        return before + [(calls.node, calls.calls_to) for calls in list(self.calls.values())]

    def occupation(self, unit: UnitReplica) -> str:
        """A description of what a unit is doing that was asked to end."""
        all_calls = [self.calls.get((spec.name, unit.name.replica)) for spec in self._units.nodes[unit.name.unit]]
        answered = [calls for calls in all_calls if calls and calls.unit == unit.name and calls.stopping]
        if not answered:
            return "it does not answer" if unit.address else "it was still starting"
        calls = [call for each in answered for call in each.running]
        if calls:
            longest = max(calls, key=lambda call: call.running_s)
            at = f", at {longest.at}" if longest.at else ""
            return f"it has been in {longest.label}() for {longest.running_s:.1f} s{at}"
        place = next((each.at for each in answered if each.at), "")
        if place:
            return f"its own work goes on, at {place}; let it look at rw.stopping(), or wait with rw.wait_for_stop()"
        return "it was still finishing"
