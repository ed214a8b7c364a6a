"""Finds calls that wait for each other in a cycle, from what processes report about their calls. Pure.

A running call waits for the one call that it has made (an AND edge); a call that waits for its turn waits until fewer
calls run than the limit (an OR edge, if the limit is above one). So a deadlock is a knot, not just any cycle: the
largest set of calls in which each running call waits for one of the set, and each waiting call is held up by enough of
the set. It is the rest after removing every call that may still go on.

    a.step (runs) ─▶ b.push (waits) ─▶ b.sync (runs) ─▶ a.pull (waits) ─▶ a.step

The reports of the processes are of different moments, and still a knot that is found is real. Suppose that some call of
the knot went on after it was reported, and take the first that did. If it ran, the call that it waited for had
returned; but the other process reported that call as part of the knot, so that call had gone on before. If it waited
for its turn, one of the calls that held it up had returned, and these were reported at the same moment. So no call was
the first. This requires that a wait is known at both of its ends by one name, which is never reused, and that waiting
calls have no timeout.

The model is that of Chandy, Misra and Haas, "Distributed Deadlock Detection" (1983),
https://doi.org/10.1145/357360.357365; since the launcher of a program is known to all of its processes, it asks along
the edges, in place of probes that the processes pass on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk.calls.waits import LaneWaits, RunningCall, WaitingCall

Reports = Mapping[str, Sequence[LaneWaits]]
"""The processes' reports of their calls, by address."""
Name = tuple[str, int, int]
"""A call, as both of its ends know it: address of the callee, key of the call that made it, number."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A call that cannot go on unless others do."""

    address: str
    """Address of the process that it is in."""
    target: int
    """The object's number."""
    call: RunningCall | WaitingCall

    @property
    def runs(self) -> bool:
        """Whether it runs, and waits for a call that it has made."""
        return isinstance(self.call, RunningCall)


@dataclass(frozen=True, slots=True)
class Circle:
    """Calls that each wait for the next, the last for the first; the first waits for its turn."""

    calls: tuple[Stuck, ...]

    @property
    def last_comer(self) -> Stuck:
        """The call that has waited for its turn for the shortest time: its arrival closed the cycle."""
        waiting = [stuck for stuck in self.calls if isinstance(stuck.call, WaitingCall)]
        return min(waiting, key=lambda stuck: (stuck.call.waited_s, stuck.call.label))  # type: ignore[union-attr]

    @property
    def labels(self) -> tuple[str, ...]:
        """Service and method of each call, with the first one again at the end."""
        labels = [stuck.call.label for stuck in self.calls]
        return (*labels, labels[0])

    def drawn(self) -> str:
        """A line for each call."""
        labels = self.labels
        lines: list[str] = []
        for stuck, label, after in zip(self.calls, labels, labels[1:], strict=False):
            words = "runs, and waits for its call of" if stuck.runs else "waits for its turn, which is taken by"
            lines.append(f"  {label:<{max(map(len, labels))}}  {words} {after}")
        return "\n".join(lines)


def addresses(lanes: Sequence[LaneWaits]) -> set[str]:
    """The addresses of the processes that calls wait for."""
    return {call.address for lane in lanes for call in lane.running}


def find_circle(reports: Reports) -> Circle | None:
    """A cycle of calls none of which can ever go on; None if there is none."""
    lanes = [(address, lane) for address, those in reports.items() for lane in those]
    held: dict[Name, tuple[int, WaitingCall]] = {}
    running: dict[Name, tuple[int, RunningCall]] = {}
    alive: list[list[RunningCall]] = []
    for index, (address, lane) in enumerate(lanes):
        alive.append(list(lane.running))
        running |= {(address, *asked): (index, call) for call in lane.running for asked in call.asked}
        held |= {(address, *call.asked): (index, call) for call in lane.waiting}

    def is_stuck(call: RunningCall) -> bool:
        name = call.address, call.key, call.number
        if name in running:
            index, other = running[name]
            return other in alive[index]
        return name in held and len(alive[held[name][0]]) >= lanes[held[name][0]][1].limit

    shrinks = True
    while shrinks:
        shrinks = False
        for calls in alive:
            stuck = [call for call in calls if is_stuck(call)]
            shrinks = shrinks or len(stuck) < len(calls)
            calls[:] = stuck

    for index, calls in enumerate(alive):
        if calls:
            return _circle_from(calls[0], index, lanes, alive, running, held)
    return None


def _circle_from(
    call: RunningCall,
    index: int,
    lanes: Sequence[tuple[str, LaneWaits]],
    alive: Sequence[Sequence[RunningCall]],
    running: Mapping[Name, tuple[int, RunningCall]],
    held: Mapping[Name, tuple[int, WaitingCall]],
) -> Circle:
    """Follow a call of a knot until it comes back to a call that was visited before."""
    path: list[Stuck] = []
    seen: dict[tuple[int, int], int] = {}
    while (index, call.key) not in seen:
        seen[index, call.key] = len(path)
        address, lane = lanes[index]
        path.append(Stuck(address, lane.target, call))
        name = call.address, call.key, call.number
        if name in running:
            index, call = running[name]
        else:
            index, waiting = held[name]
            path.append(Stuck(lanes[index][0], lanes[index][1].target, waiting))
            call = alive[index][0]
    circle = path[seen[index, call.key] :]
    # It begins with a call that waits for its turn; there is one, because running calls alone form a chain with an end.
    first = next((at for at, stuck in enumerate(circle) if not stuck.runs), 0)
    return Circle((*circle[first:], *circle[:first]))


__all__ = ["Circle", "Reports", "Stuck", "addresses", "find_circle"]
