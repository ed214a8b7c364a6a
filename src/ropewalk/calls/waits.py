"""Who waits for whom at the objects of one process: the edges of a graph in which circles are sought.

    runs at a, made b.push ──▶ b.push, which waits for its turn behind b.sync ──▶ b.sync, which made a.pull ──▶ ...

Whoever calls knows the number of the call, and whoever is called knows it as well, with the key of the call that made
it. So an edge between two processes is known at both of its ends, and is true only if both say so.
"""

from __future__ import annotations

import msgspec


class RunningCall(msgspec.Struct, array_like=True, frozen=True):
    """A call that runs, and waits without a limit for a call that it has made."""

    key: int
    label: str
    asked: list[tuple[int, int]]
    """Key of the call that made it, and its number there; of a batch, those of all its calls."""
    address: str
    """Of the process that it waits for."""
    number: int
    """Of the call that it waits for."""


class WaitingCall(msgspec.Struct, array_like=True, frozen=True):
    """A call that waits for its turn."""

    key: int
    label: str
    asked: tuple[int, int]
    """As of `RunningCall`."""
    waited_s: float = 0.0


class LaneWaits(msgspec.Struct, array_like=True, frozen=True):
    """Calls of which a limited number may run at a time."""

    target: int
    """The object."""
    limit: int
    running: list[RunningCall]
    """Those that wait for others; there may be more that do not."""
    waiting: list[WaitingCall]

    @property
    def is_held_up(self) -> bool:
        """Whether calls wait here for those that wait for others."""
        return bool(self.waiting) and len(self.running) >= self.limit
