"""Who does not answer any more, although nobody saw it end. Pure: times come in.

A process that ends is seen at once, by the end of its link and by its agent. One that is stopped, or hangs in a
driver with the lock of the interpreter held, looks alive. It is asked only while others wait for it.
"""

from __future__ import annotations

from collections.abc import Collection


class Silence:
    """Notes when whom was asked whether it is there.

    Args:
        quiet_s: a step may take so long before anybody is asked.
        silent_s: who has not answered after this counts as dead.

    Raises:
        ValueError: a time is not above 0.
    """

    def __init__(self, quiet_s: float, silent_s: float) -> None:
        if not (quiet_s > 0 and silent_s > 0):
            raise ValueError(f"quiet_s and silent_s are seconds above 0, not {quiet_s} and {silent_s}")
        self._quiet_s = quiet_s
        self._silent_s = silent_s
        self._since = 0.0
        self._asked: dict[str, float] = {}
        self._answered: dict[str, float] = {}

    def went_on(self, now: float) -> None:
        """Something was completed: nobody is waited for since before now."""
        self._since = now

    def to_ask(self, awaited: Collection[str], now: float) -> list[str]:
        """Who is to be asked now; they count as asked."""
        if now - self._since < self._quiet_s:
            return []
        asked = [
            name
            for name in awaited
            if name not in self._asked and now - self._answered.get(name, -self._quiet_s) >= self._quiet_s
        ]
        self._asked.update(dict.fromkeys(asked, now))
        return asked

    def answered(self, name: str, now: float) -> None:
        """Somebody is there."""
        self._asked.pop(name, None)
        self._answered[name] = now

    def forget(self, name: str) -> None:
        """Somebody is gone, and not waited for any more."""
        self._asked.pop(name, None)
        self._answered.pop(name, None)

    def overdue(self, now: float) -> list[str]:
        """Who counts as dead."""
        return [name for name, asked in self._asked.items() if now - asked >= self._silent_s]
