"""What became of the snapshots of a training: when each was taken, where it is kept, and whether it is whole. Pure.

asked ──▶ "under way" ── all workers' parts have arrived ──▶ "whole": training would go on from here
              └ a death, or another plan ──▶ "dropped"          └ the next one is whole ──▶ "superseded"
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.assignment import PeerSnapshot

SnapshotState = Literal["under way", "whole", "superseded", "dropped"]
_NUM_KEPT = 50


@dataclass(slots=True)
class SnapshotEntry:
    """One snapshot of the whole training.

    Attributes:
        step: the number of steps that it holds; training goes on with the step of this number.
        cut: the position of the pipeline.
        asked: Unix time in seconds at which it was asked for.
        workers: of the plan.
        parts: the part of each worker that has arrived at its keeper.
        whole: Unix time in seconds at which all had arrived; None before.
        state: see this module.
    """

    step: int
    cut: Cut
    asked: float
    workers: tuple[PlanWorker, ...]
    parts: dict[PlanWorker, PeerSnapshot] = field(default_factory=dict[PlanWorker, PeerSnapshot])
    whole: float | None = None
    state: SnapshotState = "under way"


class SnapshotHistory:
    """The newest 50 snapshots, oldest first; read by other threads."""

    def __init__(self) -> None:
        self._entries: deque[SnapshotEntry] = deque(maxlen=_NUM_KEPT)
        self.num_whole = 0
        """The number of all snapshots that became whole."""

    @property
    def entries(self) -> list[SnapshotEntry]:
        """The snapshots, oldest first."""
        return list(self._entries)

    def asked(self, step: int, cut: Cut, workers: tuple[PlanWorker, ...], now: float) -> None:
        """Record that all workers shall take a snapshot at a cut, which holds this number of steps."""
        self._entries.append(SnapshotEntry(step, cut, now, workers))

    def arrived(self, worker: PlanWorker, part: PeerSnapshot) -> None:
        """Record that the part of a worker has reached its keeper."""
        for entry in self._entries:
            if entry.state == "under way" and entry.cut == part.cut:
                entry.parts[worker] = part

    def became_whole(self, cut: Cut, now: float) -> None:
        """Record that training would go on from this cut."""
        for entry in self._entries:
            if entry.state == "whole":
                entry.state = "superseded"
            elif entry.state == "under way" and entry.cut == cut:
                entry.state, entry.whole = "whole", now
                self.num_whole += 1

    def restarted(self) -> None:
        """Record that training goes on from the last whole one: those under way will not become whole."""
        for entry in self._entries:
            if entry.state == "under way":
                entry.state = "dropped"

    def clear(self) -> None:
        """Record that training goes on from another state: none is of use any more."""
        for entry in self._entries:
            if entry.state in ("under way", "whole"):
                entry.state = "dropped"

    def newest_whole(self) -> SnapshotEntry | None:
        """Return the snapshot from which training would go on; None: there is none."""
        return next((entry for entry in reversed(self._entries) if entry.state == "whole"), None)


def size_bytes(parts: Mapping[PlanWorker, PeerSnapshot]) -> int:
    """Return the bytes of all parts of a snapshot that have arrived."""
    return sum(part.size_bytes for part in list(parts.values()))
