"""ASHA: asynchronous successive halving, which promotes a trial when it is good enough and never waits for a rung.

Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht, Talwalkar: A System for Massively Parallel Hyperparameter
Tuning, 2018 (https://arxiv.org/abs/1810.05934), algorithm 2.

  get_job         for each rung, the one with the most budget first: promote the best of its trials that is among the
                  best floor(n_k / eta) of the n_k in it and was not promoted yet; if there is none, begin a new trial
  rung k          has the budget r * eta^(s+k)

The paper does not say what becomes of ties and failures. Of equal scores, the trial with the lower number is better. A
trial that fails counts in the rung for which it trained, as the worst; one that ends by itself before the budget of a
rung counts with its last score; neither is promoted.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.misplaced_options import tells_places
from ropewalk.search.optuna_names import OF_ASHA
from ropewalk.search.schedulers.rungs import Bracket
from ropewalk.search.schedulers.scheduler import (
    FINISHED,
    GO_ON,
    WAIT,
    PromoteTrial,
    Scheduler,
    StartTrial,
    Verdict,
    Wait,
)
from ropewalk.search.schedulers.side_by_side import SideBySide


class ASHA(Scheduler):
    """Asynchronous successive halving by promotion: a trial pauses at the budget of each rung.

    Li et al., A System for Massively Parallel Hyperparameter Tuning, 2018 (https://arxiv.org/abs/1810.05934),
    algorithm 2.

    A trial that reaches the last rung is complete. Choose R = r * eta^k: otherwise the last rung has the largest
    of these budgets that is below R.

    Example:
        >>> from ropewalk.search import ASHA
        >>> [rung.budget for rung in ASHA(R=81, eta=3).brackets[0].rungs]
        [1, 3, 9, 27, 81]

    Args:
        R: the most budget of a trial, in steps.
        r: the budget of rung 0 if `s` is 0.
        eta: of the trials of a rung, one in `eta` goes on to the next, which has `eta` times the budget.
        s: the early-stopping rate: rung k has budget r * eta^(s+k).
        max_brackets: the most brackets side by side, with the rates s, s + 1 and so on. Their shares of the trials are
            such that all use about the same budget. More than one helps if early scores say little of late ones.

    Attributes:
        brackets: the brackets with their rungs, for reading.

    Raises:
        SearchInvalid: an argument is out of range.
    """

    needs_checkpoints = True

    @tells_places(OF_ASHA)
    def __init__(self, *, R: float, r: float = 1, eta: float = 4, s: int = 0, max_brackets: int = 1) -> None:
        self._eta = eta
        self._all = SideBySide(r, R, eta, s, max_brackets)
        self.brackets: Sequence[Bracket] = tuple(self._all.brackets)
        self.max_steps: float | None = self.brackets[0].rungs[-1].budget

    def next(self) -> StartTrial | PromoteTrial | Wait:
        for bracket in self.brackets:
            for number in reversed(range(len(bracket.rungs) - 1)):
                rung = bracket.rungs[number]
                trial = rung.best_promotable(int(len(rung.ranking) // self._eta))
                if trial is not None:
                    return PromoteTrial(trial, bracket.rungs[number + 1].budget)
        if not self.is_exhausted:
            number = self._all.next_bracket()
            return StartTrial(self.brackets[number].rungs[0].budget, number)
        return WAIT if any(bracket.is_open for bracket in self.brackets) else FINISHED

    def started(self, trial: int, start: StartTrial) -> None:
        self._all.start(trial, start.bracket)

    def promoted(self, promote: PromoteTrial) -> None:
        self._all.of(promote.trial).promote(promote.trial)

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        self._all.of(trial).report(trial, score)
        return GO_ON

    def paused(self, trial: int, step: float) -> None:
        self._all.of(trial).pause(trial, step)

    def ended(self, trial: int) -> None:
        self._all.of(trial).end(trial)

    def failed(self, trial: int) -> None:
        self._all.of(trial).fail(trial)
