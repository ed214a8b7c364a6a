"""`SearchKeeper`: where a search that runs is kept, and what users of other terminals ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ropewalk.search.trial_facts import TrialFacts
from ropewalk.search.trial_task import TrialTask


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Something that a user has asked for in another terminal."""

    number: int
    trial: int | None
    """None: the search as a whole."""
    action: str
    """ "pause", "continue", "stop" or "kill"."""


class SearchKeeper(Protocol):
    """Writes what happens in a search to where it is kept."""

    def begun(self, task: TrialTask, facts: TrialFacts) -> None:
        """An attempt is about to begin."""

    def changed(self, facts: TrialFacts) -> None:
        """A trial is not under way any more, and this is what is known of it."""

    def best(self, metric: str, value: float, trial: int, num_trials: int) -> None:
        """A trial has become the best one, with this value of the first metric, of those that have begun."""

    def died(self, task: TrialTask, cause: str, failure_class: str, at_step: float) -> None:
        """The process of an attempt has died: it could not say so itself."""

    def labelled(self, task: TrialTask, labels: Sequence[str]) -> None:
        """A log policy has given a trial labels."""

    def excluded(self, task: TrialTask, host: str, lines: Sequence[tuple[str, str]]) -> None:
        """Log policies keep a trial off a host, because of these lines, each with the pattern that found it."""

    def requests(self) -> Sequence[SearchRequest]:
        """Return what was asked since the last call."""
        ...

    def answer(self, request: SearchRequest, ok: bool, text: str) -> None:
        """Answer a request."""


__all__ = ["SearchKeeper", "SearchRequest"]
