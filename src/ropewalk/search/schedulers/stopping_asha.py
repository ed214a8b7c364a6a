"""Stopping ASHA: a trial runs on from rung to rung until it is not among the best of one; needs no checkpoints.

The variant of `ASHA` in Ray Tune and Determined; the rungs are those of algorithm 2 of arXiv 1810.05934.

    report at a step ─▶ next rung reached? ─▶ no:  go on
                                          └▶ yes: among the best max(1, floor(n_k / eta)) of the n_k seen there, itself
                                                  included? ─▶ yes: go on; no: stop

A decision is final, so early trials of a rung are lucky: the first always goes on. A report that comes after several
rungs counts in the last of them. The report at R, or after it, stops the trial in any case. Ties and failures are those
of `ASHA`: the trial with the lower number is better, and one that fails counts as the worst in the rung that it would
have reached next.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.misplaced_options import tells_places
from ropewalk.search.optuna_names import OF_ASHA
from ropewalk.search.schedulers.rungs import Bracket, BudgetRung
from ropewalk.search.schedulers.scheduler import (
    FINISHED,
    GO_ON,
    STOP,
    PromoteTrial,
    Scheduler,
    StartTrial,
    Verdict,
    Wait,
)
from ropewalk.search.schedulers.side_by_side import SideBySide


class StoppingASHA(Scheduler):
    """Asynchronous successive halving by stopping: no trial pauses, and none is continued.

    As in Ray Tune and Determined; the rungs are those of Li et al., 2018 (https://arxiv.org/abs/1810.05934),
    algorithm 2.

    Args:
        R: the most steps of a trial, which is stopped there.
        r: the budget of rung 0 if `s` is 0.
        eta: a trial goes on if it is among the best one in `eta` of the trials seen at a rung.
        s: the early-stopping rate: rung k is at step r * eta^(s+k).
        max_brackets: the most brackets side by side, as for `ASHA`.

    Attributes:
        brackets: the brackets with their rungs, for reading.

    Raises:
        SearchInvalid: an argument is out of range.
    """

    @tells_places(OF_ASHA)
    def __init__(self, *, R: float, r: float = 1, eta: float = 4, s: int = 0, max_brackets: int = 1) -> None:
        self._R, self._eta = R, eta
        self._all = SideBySide(r, R, eta, s, max_brackets)
        self.brackets: Sequence[Bracket] = tuple(self._all.brackets)
        self.max_steps: float | None = R

    def next(self) -> StartTrial | PromoteTrial | Wait:
        return FINISHED if self.is_exhausted else StartTrial(None, self._all.next_bracket())

    def started(self, trial: int, start: StartTrial) -> None:
        self._all.start(trial, start.bracket)

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        bracket = self._all.of(trial)
        bracket.report(trial, score)
        passed = bracket.pass_by(trial, step)
        if step < self._R and (passed is None or self._is_among_the_best(*passed)):
            return GO_ON
        bracket.stop(trial)
        return STOP

    def _is_among_the_best(self, rung: BudgetRung, rank: int) -> bool:
        return rank < max(1, len(rung.ranking) // self._eta)

    def ended(self, trial: int) -> None:
        self._all.of(trial).end(trial)

    def failed(self, trial: int) -> None:
        self._all.of(trial).fail(trial)
