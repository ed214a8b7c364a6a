"""`Counters`: what an experiment has done so far. The learner keeps them beside its weights: no step counts twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ropewalk.rl.blocks import EpisodeEnd

_RECENT = 100
"""Episodes whose mean score is shown."""


@dataclass(slots=True)
class Counters:
    """Counts since the experiment began, over restarts of all its processes.

    Attributes:
        steps: environment steps that reached replay; resets do not count.
        stale_steps: environment steps that were dropped because they were older than `Experiment.max_lag`.
        episodes: episodes that ended in them.
        updates: number of updates of the learner.
        rounds: rounds of lock-step.
        recent: scores of the last 100 episodes.
    """

    steps: int = 0
    episodes: int = 0
    updates: int = 0
    rounds: int = 0
    stale_steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def score(self) -> float | None:
        """Mean score of the last 100 episodes; None before the first has ended."""
        return sum(self.recent) / len(self.recent) if self.recent else None

    def add(self, steps: int, episodes: Iterable[EpisodeEnd]) -> None:
        """Count a block."""
        self.steps += steps
        for episode in episodes:
            self.episodes += 1
            self.recent.append(episode.score)

    def copied(self) -> Counters:
        """Return a copy that does not change any more; may be called while another thread counts."""
        return replace(self, recent=self.recent.copy())  # in one step, where `deepcopy` is interrupted by an append

    def state_dict(self) -> dict[str, Any]:
        """Return all counts."""
        return {**asdict(self), "recent": list(self.recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from these counts."""
        for name, value in state.items():
            setattr(self, name, deque(value, maxlen=_RECENT) if name == "recent" else value)


__all__ = ["Counters"]
