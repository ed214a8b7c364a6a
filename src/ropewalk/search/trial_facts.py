"""`TrialFacts`: all that is known of a trial of a search."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class TrialState(enum.Enum):
    """State of a trial."""

    RUNNING = "running"
    WAITING = "waiting"
    """To be begun again: its last attempt failed, or its launcher ended."""
    PAUSED = "paused"
    """It has used its budget, and may be promoted."""
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether nothing more can become of the trial."""
        return self in (TrialState.DONE, TrialState.STOPPED, TrialState.FAILED)


class Retries(enum.Enum):
    """Whether a further attempt of a trial that failed makes sense."""

    NEVER = "never"
    IF_NEW = "if new"
    """An exception: what fails twice in the same way before the first report fails for ever."""
    ALWAYS = "always"
    """A death: what killed the process has often nothing to do with the trial."""


@dataclass(slots=True)
class TrialFacts:
    """All that is known of a trial."""

    number: int
    hyperparameters: dict[str, Any]
    """Values by dotted name, those included that its function has asked for."""
    budget: float | None
    bracket: int = 0
    state: TrialState = TrialState.RUNNING
    attempts: int = 1
    step: float = 0.0
    """The last step that it reported."""
    values: tuple[float, ...] | None = None
    """The metrics of that report, as they were logged."""
    history: dict[float, float] = field(default_factory=dict[float, float])
    """The score of the first metric by step: to be maximised, and minus infinity for NaN."""
    best: float | None = None
    """The best value of the first metric at any step."""
    is_asked_to_stop: bool = False
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """How often it has failed in each way since it last got further."""
    failed_at: float = 0.0
    """The last step at the time of the last failure."""
    why: str = ""
    """Why it has failed, or was stopped."""
    suggested: dict[str, Any] = field(default_factory=dict[str, Any])
    """Distributions of the hyperparameters that its function has asked for by `suggest_*`."""
    excluded_hosts: list[str] = field(default_factory=list[str])
    """Hosts on which it is not begun again."""

    def begin_again(self, after: TrialState) -> None:
        """Begin another attempt.

        Raises:
            ValueError: the trial is not in the state in which it should be.
        """
        if self.state is not after:
            raise ValueError(f"trial {self.number} is {self.state.value}, and not {after.value}")
        self.state = TrialState.RUNNING
        self.attempts += 1

    def count_failure(self, failure_class: str, why: str) -> int:
        """Note a failure; returns how often it has failed in this way since it last got further."""
        if self.step > self.failed_at:
            self.failures.clear()
        self.failed_at, self.why = self.step, why
        self.failures[failure_class] = self.failures.get(failure_class, 0) + 1
        return self.failures[failure_class]


__all__ = ["Retries", "TrialFacts", "TrialState"]
