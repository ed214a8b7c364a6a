"""`Bracket`: the rungs of one bracket of successive halving, and which trials stand on them.

    rung 2   budget 16    ·           a trial trains for the budget of a rung, pauses there, and enters the rung
    rung 1   budget 4     · · ·       with its last score; one that is promoted trains for the next rung
    rung 0   budget 1     · · · · · · · · ·

This is what the schedulers of successive halving share. When a trial is promoted is theirs to decide: `ASHA` at any
time, `Hyperband` when a rung is complete, `StoppingASHA` at the moment at which the trial enters the rung.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ropewalk.errors import SearchInvalid

UNSCORED = -math.inf
"""Score of a trial that failed, or reported nothing: the worst."""


@dataclass(slots=True)
class BudgetRung:
    """The trials that have trained for one budget.

    Attributes:
        budget: steps after which a trial enters the rung.
        ranking: (negated score, trial) of the trials that have entered, best first; of equal scores, the lower number.
        promotable: those of them that are paused here: they were not promoted, did not end and did not fail.
        num_promoted: number of those that were promoted.
    """

    budget: float
    ranking: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    promotable: set[int] = field(default_factory=set[int])
    num_promoted: int = 0

    def enter(self, trial: int, score: float) -> int:
        """Add a trial, which cannot be promoted unless it is added to `promotable`; returns its rank from 0."""
        place = (-score, trial)
        bisect.insort(self.ranking, place)
        return bisect.bisect_left(self.ranking, place)

    def best_promotable(self, num: int) -> int | None:
        """Return the best of the trials that are among the best `num` and can be promoted; None if there is none."""
        return next((trial for _, trial in self.ranking[:num] if trial in self.promotable), None)


class Bracket:
    """Rungs, and trials between them.

    Args:
        budgets: budget of each rung, increasing.

    Attributes:
        rungs: the rungs, that with the least budget first.
        num_started: number of trials that were started.
    """

    def __init__(self, budgets: Sequence[float]) -> None:
        self.rungs = [BudgetRung(budget) for budget in budgets]
        self.num_started = 0
        self._target: dict[int, int] = {}
        self._score: dict[int, float] = {}

    @property
    def is_open(self) -> bool:
        """Whether a trial trains for a rung from which it may be promoted: any but the last."""
        return any(number < len(self.rungs) - 1 for number in self._target.values())

    def is_awaited(self, number: int) -> bool:
        """Whether a trial trains for this rung."""
        return number in self._target.values()

    def start(self, trial: int) -> None:
        """A new trial trains for rung 0."""
        self.num_started += 1
        self._target[trial], self._score[trial] = 0, UNSCORED

    def promote(self, trial: int) -> None:
        """A trial that is paused on a rung trains for the next one."""
        number = next(number for number, rung in enumerate(self.rungs) if trial in rung.promotable)
        self.rungs[number].promotable.remove(trial)
        self.rungs[number].num_promoted += 1
        self._target[trial] = number + 1

    def report(self, trial: int, score: float) -> None:
        """A trial has reported: it enters its rung with the last score."""
        self._score[trial] = score

    def pause(self, trial: int, step: float) -> None:
        """A trial has paused for its rung: it enters that rung, or the last of those that the step has reached."""
        number = self._last_reached(self._target.pop(trial), step)
        rung = self.rungs[number]
        rung.enter(trial, self._score[trial])
        rung.promotable.add(trial)

    def pass_by(self, trial: int, step: float) -> tuple[BudgetRung, int] | None:
        """A trial that trains on without a pause enters the last of the rungs that it has reached since.

        Returns:
            That rung, and the rank of the trial in it from 0; None if it has reached no further rung.
        """
        target = self._target[trial]
        if target == len(self.rungs) or step < self.rungs[target].budget:
            return None
        number = self._last_reached(target, step)
        self._target[trial] = number + 1
        rung = self.rungs[number]
        return rung, rung.enter(trial, self._score[trial])

    def _last_reached(self, target: int, step: float) -> int:
        """Return the last rung whose budget is at most `step`; at least `target`."""
        return max(target, bisect.bisect_right([rung.budget for rung in self.rungs], step) - 1)

    def stop(self, trial: int) -> None:
        """A trial is stopped at the rung that it has just entered, and enters no other."""
        del self._target[trial]

    def end(self, trial: int) -> None:
        """A trial trains no more: one that was under way enters its rung, and no rung promotes it."""
        number = self._target.pop(trial, len(self.rungs))
        if number < len(self.rungs):
            self.rungs[number].enter(trial, self._score[trial])
        for rung in self.rungs:
            rung.promotable.discard(trial)

    def fail(self, trial: int) -> None:
        """A trial has failed: as `end`, with the worst score if it was under way."""
        self._score[trial] = UNSCORED
        self.end(trial)


def budgets_from(r: float, R: float, eta: float) -> list[float]:
    """Return r, r * eta, r * eta^2 and so on, up to R: the budgets of the rungs for s = 0.

    Args:
        r: the least budget, in steps.
        R: the most, in steps.
        eta: factor between the budgets of two rungs.

    Raises:
        SearchInvalid: `eta` is not above 1, or not 0 < r <= R.
    """
    if not 1 < eta < math.inf:
        raise SearchInvalid(f"eta must be a number above 1, not {eta}: each rung has eta times the budget of the last")
    if not 0 < r <= R < math.inf:
        raise SearchInvalid(f"the least budget r must be above 0 and at most R, but r is {r} and R is {R}")
    most = R * (1 + 1e-9)  # 0.1 * 3 is above 0.3 in binary
    return list(itertools.takewhile(lambda budget: budget <= most, (r * eta**number for number in itertools.count())))


def checked_count(name: str, value: int, least: int) -> int:
    """Return a whole number that an argument gives.

    Raises:
        SearchInvalid: it is not a whole number, or less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SearchInvalid(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
