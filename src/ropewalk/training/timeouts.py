"""The timeouts of a trainer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainerTimeouts:
    """Timeouts in seconds, and the numbers of deaths and restarts that end a training."""

    #: Until the processes are up at the start.
    start_s: float = 120.0
    #: A step may take this long before the stages are asked for a sign of life.
    quiet_s: float = 2.0
    #: A stage that does not answer within this time is killed, and counts as dead.
    silent_s: float = 10.0
    #: A step may take this long although all stages answer.
    stalled_s: float = 600.0
    #: Until a dead process is replaced; then training goes on with fewer. If it cannot, it waits for `start_s`.
    replace_s: float = 15.0
    #: After a recovery, until snapshots that only one process keeps are copied to another one; if the copies take
    #: longer, training goes on meanwhile.
    copy_s: float = 2.0
    #: This many deaths in a row, without a step done between them, end the training.
    max_deaths: int = 3
    #: The largest number of restarts of one process within a minute.
    max_restarts: int = 20
