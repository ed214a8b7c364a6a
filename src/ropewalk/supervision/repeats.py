"""Which of many similar messages are shown: the first few of a kind, then their number. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Period:
    began: float
    num: int = 0
    last: str = ""


class Repeats:
    """Counts messages by kind: in each period, the first ones of a kind are shown, and the others are counted.

    Args:
        most: number of messages of a kind that are shown in a period.
        period_s: length of a period in seconds; it begins with the first message of the kind.
    """

    def __init__(self, most: int = 5, period_s: float = 10.0) -> None:
        self.period_s = period_s
        self._most = most
        self._periods: dict[str, _Period] = {}

    def admits(self, kind: str, text: str, now: float) -> bool:
        """Count a message, and say whether it is shown.

        Args:
            kind: what it is about.
            text: the message.
            now: monotonic time in seconds.
        """
        period = self._periods.get(kind)
        if period is None or (now - period.began >= self.period_s and period.num <= self._most):
            period = self._periods[kind] = _Period(now)
        period.num += 1
        period.last = text
        return period.num <= self._most

    def due(self, kind: str) -> float:
        """The monotonic time at which `left_out` should be asked for a kind whose message was not shown."""
        return self._periods[kind].began + self.period_s

    def left_out(self, kind: str) -> tuple[int, str]:
        """Return how many messages of a kind were not shown, and the last one; ends the period."""
        period = self._periods.pop(kind, _Period(0.0))
        return max(0, period.num - self._most), period.last
