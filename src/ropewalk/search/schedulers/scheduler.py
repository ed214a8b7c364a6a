"""`Scheduler`: which trial gets how much budget. One file per scheduler; all are pure.

    SearchBook ── next() ─────────────▶ Scheduler ─▶ StartTrial(budget) | PromoteTrial(trial, budget) | WAIT
               ── reported, ended, ... ▶           ─▶ GO_ON | PAUSE | STOP

A scheduler has no clock, no randomness and no input but these calls, in order. The calls are logged; a search is
resumed by making the same calls to a new scheduler, and a test repeats a search from its log in the same way.
Budgets are steps that the trial reports with its metric: epochs, updates, whatever `run.steps` counts.
Scores are always maximised: the search negates a metric that is minimised, and turns NaN into minus infinity.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.search.described import DescribedByArguments
from ropewalk.search.schedulers.rungs import Bracket


@dataclass(frozen=True, slots=True)
class StartTrial:
    """Begin a new trial, with a configuration of the sampler."""

    budget: float | None
    """The trial pauses by itself at the first step from here on, having written a checkpoint; None: it runs until its
    own end."""
    bracket: int = 0
    """The bracket of rungs that the trial belongs to."""


@dataclass(frozen=True, slots=True)
class PromoteTrial:
    """Continue a paused trial from its checkpoint."""

    trial: int
    budget: float | None
    """As in `StartTrial`."""


class Wait(enum.Enum):
    """What `next` returns if there is nothing to begin."""

    WAIT = "wait"
    """Nothing now; ask again after the next report, pause, end or failure. Only returned while a trial is under way."""
    FINISHED = "finished"
    """Nothing any more, whatever trials under way still report: those that are paused stay paused."""


WAIT = Wait.WAIT
"""`Scheduler.next` returns it if there is nothing to begin now."""
FINISHED = Wait.FINISHED
"""`Scheduler.next` returns it if there is nothing to begin any more."""


class Verdict(enum.Enum):
    """What happens to a trial that has reported."""

    GO_ON = "go on"
    STOP = "stop"
    """It ends; its last score counts."""


GO_ON = Verdict.GO_ON
"""`Scheduler.reported` returns it for a trial that goes on."""
STOP = Verdict.STOP
"""`Scheduler.reported` returns it for a trial that ends."""


class Scheduler(DescribedByArguments, ABC):
    """Decides how much budget trials get.

    Trials are numbered from 0 in the order in which they were started: the n-th `StartTrial` that `next` returned and
    that was carried out is trial n - 1. The caller reports that by `started`, because the trials of a search are
    limited and its space may be exhausted: a `StartTrial` that was not carried out never happened. Then `exhausted` is
    called; a search that was complete, and goes on with more trials, calls `extended`.
    """

    needs_checkpoints: bool = False
    """Whether it pauses trials and continues them, for which they must write checkpoints."""
    max_steps: float | None = None
    """The step at which every trial ends by itself, as `run.steps` counts; None: the trial's function decides."""
    brackets: Sequence[Bracket] = ()
    """The brackets with their rungs, for reading; empty if it has none."""
    is_exhausted: bool = False
    """Whether no further trial is started. Then `next` returns no `StartTrial`."""

    @abstractmethod
    def next(self) -> StartTrial | PromoteTrial | Wait:
        """Return what a free place should do. Changes nothing: `started` and `promoted` do."""

    @abstractmethod
    def started(self, trial: int, start: StartTrial) -> None:
        """A trial was begun as `next` said."""

    def exhausted(self) -> None:
        """No further trial is started: their number, or the space, is exhausted. May be called again."""
        self.is_exhausted = True

    def extended(self) -> None:
        """The search may start further trials, although `exhausted` was called: it goes on with more of them."""
        self.is_exhausted = False

    def promoted(self, promote: PromoteTrial) -> None:  # only for those that pause
        """A paused trial was continued as `next` said."""

    @abstractmethod
    def reported(self, trial: int, step: float, score: float) -> Verdict:
        """A trial under way has reported its score at a step; its steps increase. After STOP it reports no more."""

    def paused(self, trial: int, step: float) -> None:  # only for those that pause
        """A trial has paused at its budget, after its report at that step."""

    @abstractmethod
    def ended(self, trial: int) -> None:
        """A trial has ended, by itself, by STOP or while paused. It reports nothing more, and cannot be promoted."""

    @abstractmethod
    def failed(self, trial: int) -> None:
        """A trial has failed for good, perhaps while paused: it counts as the worst wherever it has not reported."""
