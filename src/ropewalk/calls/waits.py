"""The calls that wait for each other at the objects of one process: edges of a graph that is searched for cycles.

    runs at a, made b.push ──▶ b.push, which waits for its turn after b.sync ──▶ b.sync, which made a.pull ──▶ ...

The caller knows the number of the call; so does the callee, with the key of the call that made it. So an edge between
two processes is known at both of its ends, and is valid only if both report it.
"""

from __future__ import annotations

import msgspec


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
