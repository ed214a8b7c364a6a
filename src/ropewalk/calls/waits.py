"""The calls that wait for each other at the objects of one process: edges of a graph that is searched for cycles.

    runs at a, made b.push ──▶ b.push, which waits for its turn after b.sync ──▶ b.sync, which made a.pull ──▶ ...

The caller knows the number of the call; so does the callee, with the key of the call that made it. So an edge between
two processes is known at both of its ends, and is valid only if both report it.
"""

from __future__ import annotations

import msgspec

from ropewalk.calls.incoming import Incoming, Served, Turn
from ropewalk.calls.turns import CallLane


class RunningCall(msgspec.Struct, array_like=True, frozen=True):
    """A running call that waits, without a timeout, for a call that it has made."""

    key: int
    label: str
    asked: list[tuple[int, int]]
    """Key of the call that made it, and its number there; for a batch, those of all its calls."""
    address: str
    """Address of the process that it waits for."""
    number: int
    """Number of the call that it waits for."""


class WaitingCall(msgspec.Struct, array_like=True, frozen=True):
    """A call that waits for its turn."""

    key: int
    label: str
    asked: tuple[int, int]
    """As in `RunningCall`."""
    waited_s: float = 0.0


class LaneWaits(msgspec.Struct, array_like=True, frozen=True):
    """Calls of which a limited number may run at a time."""

    target: int
    """The object's number."""
    limit: int
    running: list[RunningCall]
    """Running calls that wait for others; there may be more that do not."""
    waiting: list[WaitingCall]

    @property
    def is_held_up(self) -> bool:
        """Whether calls wait here for calls that wait for others."""
        return bool(self.waiting) and len(self.running) >= self.limit


def waits_of(served: Served) -> list[LaneWaits]:
    """The lanes of an object in which calls wait for others; with its lock held."""
    found: list[LaneWaits] = []
    for lane in dict.fromkeys(served.lanes):
        running = [call for turn in lane.running.values() if (call := _running(turn))]
        if running:
            waiting = [WaitingCall(call.key, call.label, _asked(call)) for call in waiting_calls(served, lane)]
            found.append(LaneWaits(served.target, lane.limit, running, waiting))
    return found


def _running(turn: Turn) -> RunningCall | None:
    """The entry of a running turn, if it waits for a call of its own."""
    waits_for = getattr(turn, "waits_for", None)
    if waits_for is None:
        return None
    address, call = waits_for
    return RunningCall(turn.key, turn.label, [_asked(each) for each in turn.calls], address, call.number)


def waiting_calls(served: Served, lane: CallLane[Turn] | None = None) -> list[Incoming]:
    """The calls that wait for a turn in one lane, or in any; with the object's lock held."""
    found = [call for each in served.lanes if lane in (None, each) for turn in each.waiting for call in turn.calls]
    for way in served.ways.values():
        if way.batch and lane in (None, way.lane):
            found += way.batch.held_up
    return [call for call in found if not call.cancelled]


def leave_batch(call: Incoming) -> bool:
    """Remove a call from the batch in which it waits; False if it is in no waiting batch."""
    if call.way.batch and call.way.batch.discard(call):
        return True
    return any(call in turn.calls for turn in call.lane.waiting)  # the batch skips it


def _asked(call: Incoming) -> tuple[int, int]:
    return (call.chain[-1].key if call.chain else 0), call.number
