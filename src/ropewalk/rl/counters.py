"""`Counters`: what an experiment has done so far. The learner keeps them beside its weights: no step counts twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ropewalk.rl.blocks import EpisodeEnd

_RECENT = 100
"""Episodes whose mean score is shown, and the means of what else is known of them."""

_LISTED = "recent", "recent_facts"
"""What is saved as a list."""


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
        recent_facts: what else is known of these: their "length", and the numbers that the environment gave with their
            last step; empty with several learners, which tell each other of scores alone.
    """

    steps: int = 0
    episodes: int = 0
    updates: int = 0
    rounds: int = 0
    stale_steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT), repr=False)
    recent_facts: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=_RECENT), repr=False)

    @property
    def score(self) -> float | None:
        """Mean score of the last 100 episodes; None before the first has ended."""
        return sum(self.recent) / len(self.recent) if self.recent else None

    def facts(self) -> dict[str, float]:
        """Return the mean of each of `recent_facts`, over the episodes of which it is known; names in their order."""
        found: dict[str, list[float]] = {}
        for facts in self.recent_facts.copy():  # to which another thread may add
            for name, value in facts.items():
                found.setdefault(name, []).append(value)
        return {name: sum(values) / len(values) for name, values in found.items()}

    def add(self, steps: int, episodes: Iterable[EpisodeEnd]) -> None:
        """Count a block."""
        self.steps += steps
        for episode in episodes:
            self.episodes += 1
            self.recent.append(episode.score)
            self.recent_facts.append({**episode.info, "length": float(episode.length)})

    def copied(self) -> Counters:
        """Return a copy that does not change any more; may be called while another thread counts."""
        # In one step each, where `deepcopy` is interrupted by an append.
        return replace(self, recent=self.recent.copy(), recent_facts=self.recent_facts.copy())

    def state_dict(self) -> dict[str, Any]:
        """Return all counts."""
        lists = {name: list(getattr(self, name)) for name in _LISTED}
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, **lists}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from these counts."""
        for name, value in state.items():
            setattr(self, name, deque(value, maxlen=_RECENT) if name in _LISTED else value)


__all__ = ["Counters"]
