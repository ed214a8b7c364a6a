"""The timeouts of a trainer."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.exchange.groups.watched_worker import WatchTimeouts


@dataclass(frozen=True, slots=True)
class TrainerTimeouts(WatchTimeouts):
    """How long a trainer waits, in seconds, and how many deaths it survives.

    Attributes:
        start_s: at the beginning, until all workers have started; it begins when their jobs have left the queue of the
            cluster manager.
        replace_s: until a process that died is replaced; then training continues with fewer. If it cannot, it waits for
            `start_s`.
        copy_s: after a recovery, until snapshots that only one process keeps are copied to another; if that takes
            longer, training continues meanwhile.
        max_deaths: deaths in a row, without a step done between them, that training survives.
        max_restarts: how many times one process may be restarted within a minute.
    """

    quiet_s: float = 2.0
    stalled_s: float = 600.0
    replace_s: float = 15.0
    copy_s: float = 2.0
    max_deaths: int = 3
    max_restarts: int = 20
