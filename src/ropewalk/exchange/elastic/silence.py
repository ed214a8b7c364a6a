"""Detection of workers that no longer answer, although their end was not seen. Pure: times are arguments.

The end of a process is seen at once, by the end of its link and by its agent. A process that is stopped, or hangs in a
driver while it holds the interpreter's lock, looks alive. Workers are asked only while others wait for them.
"""

from __future__ import annotations

from collections.abc import Collection


class Silence:
    """Records when each worker was asked whether it is alive.

    Args:
        quiet_s: duration of a step in seconds after which workers are asked.
        silent_s: seconds after which a worker that has not answered counts as dead.

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
        """Record that a step was completed at `now`: no worker has been waited for since an earlier time."""
        self._since = now

    def to_ask(self, awaited: Collection[str], now: float) -> list[str]:
        """Return the workers to ask now; they count as asked."""
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
        """Record that a worker is alive."""
        self._asked.pop(name, None)
        self._answered[name] = now

    def forget(self, name: str) -> None:
        """Forget a worker that is gone, and that the others no longer wait for."""
        self._asked.pop(name, None)
        self._answered.pop(name, None)

    def overdue(self, now: float) -> list[str]:
        """Return the workers that count as dead."""
        return [name for name, asked in self._asked.items() if now - asked >= self._silent_s]
