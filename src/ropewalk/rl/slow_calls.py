"""Which calls of environments have not returned, as those who call measure it. Pure: looks in, times as arguments.

actor, evaluator: calls under way ──▶ CallWatch ──▶ SlowCall, once a second ──▶ learner: SlowCalls ──▶ line of progress
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk.quantities import counted, shown_duration

_SLOW_S = 3.0
"""Seconds after which a call is told. It is a fact and no alarm, so that it may come early."""
_FORGOTTEN_S = 3.5
"""Seconds for which a report counts; it is repeated every second while the call lasts."""


@dataclass(frozen=True, slots=True)
class SlowCall:
    """A call of an environment that has not returned.

    Attributes:
        caller: the process that waits for the call, such as "actor 2" or "evaluator 0"; "" in a run of one process.
        call: what was called, such as "step 7 of environment 0 of group 2, episode seed 9".
        seconds: seconds for which it has been under way.
    """

    caller: str
    call: str
    seconds: float

    def in_words(self) -> str:
        """Say which call has not returned, and to whom."""
        if not self.caller:
            return f"{self.call}, has not returned for {shown_duration(round(self.seconds))}"
        return f"{self.caller} has not answered for {shown_duration(round(self.seconds))} in {self.call}"


class CallWatch:
    """Notices, where the environments are, which of their calls take long.

    Args:
        caller: see `SlowCall`.
        slow_s: seconds after which a call is told.
    """

    def __init__(self, caller: str = "", slow_s: float = _SLOW_S) -> None:
        self._caller, self._slow_s = caller, slow_s
        self._seen: dict[int, tuple[str, float]] = {}
        """By its group or another key, the call that was under way at the last look, and when it was seen first."""

    def look(self, now: float, calls: Mapping[int, str]) -> list[SlowCall]:
        """Return the calls that take long, the longest first.

        Args:
            now: time in seconds.
            calls: by group of environments, or another key, the call that is under way, in words that no other call
                has; "": none is.
        """
        seen, self._seen = self._seen, {}
        for group, call in calls.items():
            if call:
                self._seen[group] = seen[group] if group in seen and seen[group][0] == call else (call, now)
        slow = [SlowCall(self._caller, call, now - since) for call, since in self._seen.values()]
        return sorted((each for each in slow if each.seconds >= self._slow_s), key=lambda each: -each.seconds)


class SlowCalls:
    """Keeps what actors and evaluators report, as long as they repeat it: one that died reports nothing any more."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str], tuple[SlowCall, float]] = {}

    def note(self, slow: SlowCall, now: float) -> None:
        """Keep a report that came at a time."""
        self._reports[slow.caller, slow.call] = slow, now

    def at(self, now: float) -> tuple[SlowCall, ...]:
        """Return the calls that take long at a time, the longest first."""
        self._reports = {key: each for key, each in self._reports.items() if now - each[1] < _FORGOTTEN_S}
        lasting = [SlowCall(slow.caller, slow.call, slow.seconds + now - at) for slow, at in self._reports.values()]
        return tuple(sorted(lasting, key=lambda each: -each.seconds))


def slow_in_words(slow: Sequence[SlowCall]) -> str:
    """Say which call takes longest, and how many others take long; "" if none does. The longest is the first."""
    others = f", and {counted(len(slow) - 1, 'other call')} likewise" if len(slow) > 1 else ""
    return f"{slow[0].in_words()}{others}" if slow else ""


__all__ = ["CallWatch", "SlowCall", "SlowCalls", "slow_in_words"]
