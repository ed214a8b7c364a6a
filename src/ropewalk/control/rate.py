"""How fast a count grows, from the counts of two looks. Pure."""

from __future__ import annotations

_LEAST_S = 0.5
"""Looks that follow each other faster, because several look, share one rate."""


class Rate:
    """The growth per second of a count that is looked at again and again.

    Args:
        now: monotonic time in seconds at which the count was 0.
    """

    def __init__(self, now: float) -> None:
        self._at, self._total, self._rate = now, 0.0, 0.0

    def at(self, now: float, total: float) -> float:
        """Return the rate since the last look that is long enough ago; a count that falls has begun again.

        Args:
            now: monotonic time in seconds.
            total: the count.
        """
        if now - self._at >= _LEAST_S:
            self._rate = max(0.0, total - self._total) / (now - self._at)
            self._at, self._total = now, total
        return self._rate
