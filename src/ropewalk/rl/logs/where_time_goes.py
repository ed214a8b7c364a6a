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

    def limit(self) -> str:
        """Say in one line which side limits the other; "" before anything is known."""
        waits = share(self.learner, "wait"), share(self.actors, "wait")
        if waits[0] is None or waits[1] is None:
            return ""
        parts = ", ".join(
            f"{part} {100 * seconds / sum(self.actors.values()):.0f} %"
            for part, seconds in sorted(self.actors.items(), key=lambda item: -item[1])
            if part != "wait"
        )
        if waits[0] >= waits[1]:
            return f"actor-bound: the learner waits {100 * waits[0]:.0f} % (actors: {parts})"
        return f"learner-bound: actors wait {100 * waits[1]:.0f} %"


def share(seconds: Mapping[str, float], part: str) -> float | None:
    """Return the share of a part; None if nothing was measured."""
    total = sum(seconds.values())
    return seconds.get(part, 0.0) / total if total > 0 else None


__all__ = ["TimeShares", "share"]
