"""Which calls of environments have not returned, as their actors measure it. Pure: looks in, times as arguments.

actor, once a second: calls under way ──▶ CallWatch ──▶ SlowCall ──▶ learner: SlowCalls ──▶ line of progress
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ropewalk.quantities import shown_duration

_SLOW_S = 3.0
"""Seconds after which a call is told. It is a fact and no alarm, so that it may come early."""
_FORGOTTEN_S = 3.5
"""Seconds for which a report counts; actors repeat it every second while the call lasts."""


@dataclass(frozen=True, slots=True)
class SlowCall:
    """A call of an environment that has not returned.

    Attributes:
        actor: replica of the actor; None in a run without actors.
        call: what was called, such as "step 7 of environment 0 of group 2, episode seed 9".
        seconds: for which it has been seen under way.
    """

    actor: int | None
    call: str
    seconds: float

    def in_words(self) -> str:
        """Say which call of which actor has not returned."""
        if self.actor is None:
            return f"{self.call}, has not returned for {shown_duration(round(self.seconds))}"
        return f"actor {self.actor} has not answered for {shown_duration(round(self.seconds))} in {self.call}"


class CallWatch:
    """Notices, where the environments are, which of their calls take long.

    Args:
        actor: replica of the actor; None in a run without actors.
        slow_s: seconds after which a call is told.
    """

    def __init__(self, actor: int | None = None, slow_s: float = _SLOW_S) -> None:
        self._actor, self._slow_s = actor, slow_s
        self._seen: dict[int, tuple[str, float]] = {}
        """By group, the call that was under way at the last look, and when it was seen first."""

    def look(self, now: float, calls: Mapping[int, str]) -> list[SlowCall]:
        """Return the calls that take long, the longest first.

        Args:
            now: time in seconds.
            calls: by group of environments, the call that is under way, in words that no other call has; "": none is.
        """
        seen, self._seen = self._seen, {}
        for group, call in calls.items():
            if call:
                self._seen[group] = seen[group] if group in seen and seen[group][0] == call else (call, now)
        slow = [SlowCall(self._actor, call, now - since) for call, since in self._seen.values()]
        return sorted((each for each in slow if each.seconds >= self._slow_s), key=lambda each: -each.seconds)


class SlowCalls:
    """Keeps what actors report, as long as they repeat it: an actor that died reports nothing any more."""

    def __init__(self) -> None:
        self._reports: dict[tuple[int | None, str], tuple[SlowCall, float]] = {}

    def note(self, slow: SlowCall, now: float) -> None:
        """Keep a report that came at a time."""
        self._reports[slow.actor, slow.call] = slow, now

    def at(self, now: float) -> tuple[SlowCall, ...]:
        """Return the calls that take long at a time, the longest first."""
        self._reports = {key: each for key, each in self._reports.items() if now - each[1] < _FORGOTTEN_S}
        lasting = [SlowCall(slow.actor, slow.call, slow.seconds + now - at) for slow, at in self._reports.values()]
        return tuple(sorted(lasting, key=lambda each: -each.seconds))


__all__ = ["CallWatch", "SlowCall", "SlowCalls"]
