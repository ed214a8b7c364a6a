"""Leases that every message from the other side renews: how a silent process is found to be lost.

Pure: times come in, a state comes out. The death of a process on this host is seen by its pidfd and needs no lease.
Leases are for processes that can fall silent without dying: on a host that lost its network, a stopped agent, a
launcher on the other side of a link.

The observer itself may have been stopped. A launcher that was stopped for a minute (SIGSTOP, a laptop's lid, a long
garbage collection) wakes up without having heard any process for a minute, which says nothing about those processes. So
silence counts only while the observer itself was running: a gap between two looks that is longer than half a lease is
taken out of the count.

    heard ──────── half a lease ──────── a lease ────▶ silence
           ALIVE                SUSPECT          LOST (stays)
"""

from __future__ import annotations

import enum
import math


class Liveness(enum.Enum):
    """What the silence of the other side means."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    """Silent for half a lease: it gets no new work; once heard again, it is alive."""
    LOST = "lost"
    """Silent for a whole lease: its work goes to others. Final, since others may hold the work by now."""


class Lease:
    """The lease of one process, kept by another that observes it.

    The observer calls `state` regularly, several times per lease; an observer that
    looks less often than every half lease never finds a process lost.

    Args:
        lease_s: seconds of silence after which the other side is lost.
        now: monotonic time in seconds at which the other side was first heard.
    """

    def __init__(self, lease_s: float, now: float) -> None:
        if not (math.isfinite(lease_s) and lease_s > 0):
            raise ValueError(f"lease_s must be a number of seconds above 0, not {lease_s}")
        self.lease_s = lease_s
        self._heard = now
        self._looked = now
        self._lost = False

    def heard(self, now: float) -> None:
        """Note that something arrived from the other side. After LOST this changes nothing."""
        self._look(now)
        self._heard = max(self._heard, now)

    def state(self, now: float) -> Liveness:
        """Return the state at `now`; this also notes that the observer is running."""
        self._look(now)
        silent_s = now - self._heard
        if self._lost or silent_s >= self.lease_s:
            self._lost = True
            return Liveness.LOST
        return Liveness.SUSPECT if silent_s >= self.lease_s / 2 else Liveness.ALIVE

    def silent_s(self, now: float) -> float:
        """Return the seconds of silence that count, for messages."""
        return max(0.0, now - self._heard)

    def left_s(self, now: float) -> float:
        """Return the seconds after which the other side is lost if it stays silent."""
        return max(0.0, self.lease_s - (now - self._heard))

    def _look(self, now: float) -> None:
        gap_s = now - self._looked
        if gap_s > self.lease_s / 2:
            self._heard += gap_s  # the observer was stopped: this time does not count as silence
        self._looked = max(self._looked, now)
