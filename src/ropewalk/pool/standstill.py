"""Whether a pool stands still: no task ends, no worker computes, and tasks wait for a worker. Pure.

Tasks that wait for tasks which have not begun, such as at a barrier for more parties than there are workers, wait for
ever. It cannot be known what a task waits for, so only the symptoms are looked at, and the words say "if".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

AFTER_S = 60.0
"""Seconds of standstill after which it is told."""
_LATE = 3.0
"""Tasks that are expected to last long are given this multiple of that time."""
_IDLE = 0.02
"""A worker that uses less than this share of a CPU waits."""


class Standstill:
    """Looks at a pool again and again; tells once that it stands still."""

    def __init__(self) -> None:
        self._since = 0.0
        self._looked = 0.0
        self._was: Hashable = None
        self._cpu_s = 0.0
        self._is_told = False

    def look(
        self, now: float, *, num_ended: int, num_waiting: int, cpu_s: Mapping[str, float], expected_s: float | None
    ) -> float | None:
        """Take a look.

        Args:
            now: monotonic time in seconds.
            num_ended: number of tasks that have ended.
            num_waiting: number of tasks that no worker has begun.
            cpu_s: CPU seconds used by each worker that is in a task, by name.
            expected_s: seconds that such tasks take on average; None if that is not known.

        Returns:
            The seconds for which the pool has stood still, if that is to be told now; else None.
        """
        used_s, passed_s = sum(cpu_s.values()) - self._cpu_s, now - self._looked
        was, self._was = self._was, (num_ended, frozenset(cpu_s))
        self._looked, self._cpu_s = now, self._cpu_s + used_s
        if was != self._was or not num_waiting or not cpu_s or used_s > _IDLE * passed_s * len(cpu_s):
            self._since = now
        stood_s = now - self._since
        if self._is_told or stood_s < max(AFTER_S, _LATE * (expected_s or 0.0)):
            return None
        self._is_told = True
        return stood_s
