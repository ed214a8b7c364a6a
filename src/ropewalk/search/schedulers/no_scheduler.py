"""No scheduler: every trial runs to its own end."""

from __future__ import annotations

from ropewalk.search.schedulers.scheduler import FINISHED, GO_ON, Scheduler, StartTrial, Verdict, Wait


class NoScheduler(Scheduler):
    """Starts trials and stops none: what grid, random and Bayesian search do by themselves."""

    def next(self) -> StartTrial | Wait:
        return FINISHED if self.is_exhausted else StartTrial(None)

    def started(self, trial: int, start: StartTrial) -> None:
        """Nothing is remembered."""

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        return GO_ON

    def ended(self, trial: int) -> None:
        """Nothing is remembered."""

    def failed(self, trial: int) -> None:
        """Nothing is remembered."""
