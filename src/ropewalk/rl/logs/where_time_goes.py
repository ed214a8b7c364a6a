"""Where the time of an experiment goes, and which side waits for the other. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class TimeShares:
    """Sums seconds by part, for the learner and for its actors.

    The learner's parts are "update", "insert" and "wait" (for experience); those of actors are "env", "policy",
    "other" and "wait" (for weights, or for room in replay).
    """

    def __init__(self) -> None:
        self.learner: defaultdict[str, float] = defaultdict(float)
        self.actors: defaultdict[str, float] = defaultdict(float)

    def add_actor(self, seconds: Mapping[str, float]) -> None:
        """Add what an actor says of a block."""
        for part, value in seconds.items():
            self.actors[part] += value

    def limit(self, learner_waits_s: float = 0.0) -> str:
        """Say in one line which side limits the other; "" before anything is known.

        Args:
            learner_waits_s: seconds for which the learner has waited now, which are not in its sum yet.
        """
        learner = {**self.learner, "wait": self.learner.get("wait", 0.0) + learner_waits_s}
        waits = share(learner, "wait"), share(self.actors, "wait")
        if waits[0] is None or waits[1] is None:
            return ""
        if waits[0] >= waits[1]:
            parts = _in_words({part: seconds for part, seconds in self.actors.items() if part != "wait"}, self.actors)
            return f"actor-bound: the learner waits {100 * waits[0]:.0f} % (actors: {parts})"
        return f"learner-bound: actors wait {100 * waits[1]:.0f} %"

    def of_one_process(self) -> str:
        """Say in one line where the time of a process goes that acts and learns in turn; "" before anything is known.

        What actors wait for is then the learning.
        """
        parts = {"learning" if part == "wait" else part: seconds for part, seconds in self.actors.items()}
        return f"time: {_in_words(parts, self.actors)}" if sum(parts.values()) > 0 else ""


def _in_words(parts: Mapping[str, float], whole: Mapping[str, float]) -> str:
    total = sum(whole.values())
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {100 * seconds / total:.0f} %" for part, seconds in ordered)


def share(seconds: Mapping[str, float], part: str) -> float | None:
    """Return the share of a part; None if nothing was measured."""
    total = sum(seconds.values())
    return seconds.get(part, 0.0) / total if total > 0 else None


__all__ = ["TimeShares", "share"]
