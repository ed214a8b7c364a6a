"""Hyperband: brackets of synchronous successive halving, from many trials with little budget to few with all of it.

Li, Jamieson, DeSalvo, Rostamizadeh, Talwalkar: Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization,
JMLR 18 (2018), https://arxiv.org/abs/1603.06560, algorithm 1. With s_max = floor(log_eta(R / r)), for s = s_max to 0:

    n = ceil((s_max + 1) / (s + 1) * eta^s) trials begin, with the budget R * eta^-s
    for i = 0, ..., s - 1: when all n_i trials of rung i have finished, the best floor(n_i / eta) go on to rung i + 1

    R = 81, eta = 3:         s = 4      s = 3      s = 2      s = 1      s = 0
    trials, budget          81   1     34   3     15   9      8  27      5  81
                            27   3     11   9      5  27      2  81
                             9   9      3  27      1  81
                             3  27      1  81
                             1  81

The paper runs one bracket after the other. Here a free place begins trials of the next bracket while a rung of an
earlier one is incomplete; which trials are promoted is the same, in whatever order trials finish. Of equal scores, the
trial with the lower number is better. A trial that fails, or ends by itself, counts in the rung for which it trained,
with the worst or its last score, and is not promoted, nor another in its place. A bracket that is cut short, because no
further trial is started, promotes the best of a rung even if it has fewer than eta trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ropewalk.misplaced_options import tells_places
from ropewalk.search.optuna_names import OF_HYPERBAND
from ropewalk.search.schedulers.rungs import Bracket, budgets_from, checked_count
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


class Hyperband(Scheduler):
    """Hyperband: a trial pauses at the budget of each rung, until the rung is complete.

    Li et al., Hyperband, JMLR 18, 2018 (https://arxiv.org/abs/1603.06560), algorithm 1.

    Args:
        R: the most budget of a trial, in steps.
        r: the least.
        eta: of the trials of a rung, one in `eta` goes on to the next, which has `eta` times the budget.
        iterations: how many times all brackets are run; None repeats them until the search starts no further trial.

    Raises:
        SearchInvalid: an argument is out of range.
    """

    needs_checkpoints = True

    @tells_places(OF_HYPERBAND)
    def __init__(self, *, R: float, r: float = 1, eta: float = 3, iterations: int | None = 1) -> None:
        self._R, self._eta = R, eta
        self._num_rates = len(budgets_from(r, R, eta))
        self.max_steps: float | None = R
        repeats = math.inf if iterations is None else checked_count("iterations", iterations, 1)
        self._num_brackets = self._num_rates * repeats
        self.brackets: Sequence[Bracket] = ()
        self._bracket_of: dict[int, Bracket] = {}

    def table(self) -> list[list[tuple[int, float]]]:
        """Return the number of trials and the budget of each rung, for each bracket of an iteration."""
        rows: list[list[tuple[int, float]]] = []
        for bracket in range(self._num_rates):
            num, row = self._size(bracket), list[tuple[int, float]]()
            for budget in self._budgets(bracket):
                row.append((num, budget))
                num = self._num_promoted(num)
            rows.append(row)
        return rows

    def next(self) -> StartTrial | PromoteTrial | Wait:
        for number, bracket in enumerate(self.brackets):
            promote = self._promotion(number, bracket)
            if promote is not None:
                return promote
        last = len(self.brackets) - 1
        number = last + 1 if self._is_full(last) else last
        if not self.is_exhausted and number < self._num_brackets:
            return StartTrial(self._budgets(number)[0], number)
        return WAIT if any(bracket.is_open for bracket in self.brackets) else FINISHED

    def started(self, trial: int, start: StartTrial) -> None:
        if start.bracket == len(self.brackets):
            self.brackets = (*self.brackets, Bracket(self._budgets(start.bracket)))
        self._bracket_of[trial] = self.brackets[start.bracket]
        self.brackets[start.bracket].start(trial)

    def promoted(self, promote: PromoteTrial) -> None:
        self._bracket_of[promote.trial].promote(promote.trial)

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        self._bracket_of[trial].report(trial, score)
        return GO_ON

    def paused(self, trial: int, step: float) -> None:
        self._bracket_of[trial].pause(trial, step)

    def ended(self, trial: int) -> None:
        self._bracket_of[trial].end(trial)

    def failed(self, trial: int) -> None:
        self._bracket_of[trial].fail(trial)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _promotion(self, number: int, bracket: Bracket) -> PromoteTrial | None:
        """Return the promotion that is next in a bracket, from the lowest rung that is not finished with."""
        if not (self.is_exhausted or self._is_full(number)):
            return None
        for rung, (here, after) in enumerate(pairwise(bracket.rungs)):
            if bracket.is_awaited(rung):
                return None
            trial = here.best_promotable(self._num_promoted(len(here.ranking)))
            if trial is not None:
                return PromoteTrial(trial, after.budget)
        return None

    def _is_full(self, number: int) -> bool:
        """Whether all trials of a bracket were started; of what is before the first, too."""
        return number < 0 or self.brackets[number].num_started == self._size(number)

    def _rate(self, number: int) -> int:
        """Return s of a bracket: s_max for the first, 0 for the last, and so on again."""
        return self._num_rates - 1 - number % self._num_rates

    def _size(self, number: int) -> int:
        rate = self._rate(number)
        return math.ceil(self._num_rates * self._eta**rate / (rate + 1))

    def _budgets(self, number: int) -> list[float]:
        rate = self._rate(number)
        return [self._R / self._eta ** (rate - rung) for rung in range(rate + 1)]

    def _num_promoted(self, num: int) -> int:
        return max(1, int(num // self._eta))
