"""No scheduler: every trial runs to its own end."""

from __future__ import annotations

from ropewalk.search.schedulers.scheduler import FINISHED, GO_ON, Scheduler, Start, Verdict, Wait


class NoScheduler(Scheduler):
    """Starts trials and stops none: what grid, random and Bayesian search do by themselves."""

    def next(self) -> Start | Wait:
        return FINISHED if self.is_exhausted else Start(None)

    def started(self, trial: int, start: Start) -> None:
        """Nothing is remembered."""

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        return GO_ON

    def ended(self, trial: int) -> None:
        """Nothing is remembered."""

    def failed(self, trial: int) -> None:
        """Nothing is remembered."""
