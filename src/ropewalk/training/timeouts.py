"""How long a trainer waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainerTimeouts:
    """Times in seconds, and how many deaths are too many."""

    #: Until the processes are up at the beginning.
    start_s: float = 120.0
    #: A step may take so long before stages are asked whether they are there.
    quiet_s: float = 2.0
    #: Who has not answered that question after so long is killed, and counts as dead.
    silent_s: float = 10.0
    #: A step may take so long although all are there.
    stalled_s: float = 600.0
    #: Until a process that died is replaced; then training goes on with fewer. If it cannot, it waits for `start_s`.
    replace_s: float = 15.0
    #: After a recovery, until snapshots that only one process keeps are copied to another one; if that takes longer,
    #: work goes on beside it.
    copy_s: float = 2.0
    #: So many deaths in a row, without a step done between them, end the training.
    max_deaths: int = 3
    #: So many restarts of one process within a minute are granted.
    max_restarts: int = 20
