"""Median stopping: a trial is stopped if its best score is worse than the median of the running means of others.

Golovin, Solnik, Moitra, Kochanski, Karro, Sculley: Google Vizier: A Service for Black-Box Optimization, KDD 2017
(https://doi.org/10.1145/3097983.3098043), section 3.2.2: a trial is stopped at step t if its best score until t is
strictly worse than the median of the means, over the steps until t, of the scores of other trials.

    at step t:   best score of the trial until t   <   median over others that have got to t of (mean of scores until t)

The paper takes completed trials; here every other trial counts that has reported at t or later, whether it still trains
or not, as soon as there are `min_others` of them. A trial that failed counts at later steps with minus infinity.
"""

from __future__ import annotations

import bisect
import math
import statistics
from dataclasses import dataclass, field

from ropewalk.errors import SearchInvalid
from ropewalk.misplaced_options import tells_places
from ropewalk.search.optuna_names import OF_MEDIAN_STOPPING
from ropewalk.search.schedulers.rungs import checked_count
from ropewalk.search.schedulers.scheduler import FINISHED, GO_ON, STOP, Scheduler, StartTrial, Verdict, Wait


@dataclass(slots=True)
class _Reports:
    """What a trial has reported.

    Attributes:
        steps: its steps, increasing.
        sums: sum of its scores until each step.
        best: its best score.
        has_failed: whether it failed.
    """

    steps: list[float] = field(default_factory=list[float])
    sums: list[float] = field(default_factory=list[float])
    best: float = -math.inf
    has_failed: bool = False

    def add(self, step: float, score: float) -> None:
        total = score + (self.sums[-1] if self.sums else 0.0)
        self.sums.append(-math.inf if math.isnan(total) else total)  # infinity and then NaN, the worst score
        self.steps.append(step)
        self.best = max(self.best, score)

    def mean_until(self, step: float) -> float | None:
        """Return the mean of the scores until a step; None if the trial has not got there."""
        if not self.steps or self.steps[-1] < step:
            return -math.inf if self.has_failed else None
        num = bisect.bisect_right(self.steps, step)
        return self.sums[num - 1] / num if num else None


class MedianStopping(Scheduler):
    """Stops trials that are worse than the median; needs no checkpoints and no budgets.

    Golovin et al., Google Vizier: A Service for Black-Box Optimization, KDD 2017.

    Args:
        grace: steps before which no trial is stopped.
        min_others: number of other trials that must have got to a step, before one is stopped there.

    Raises:
        SearchInvalid: an argument is out of range.
    """

    @tells_places(OF_MEDIAN_STOPPING)
    def __init__(self, *, grace: float = 1, min_others: int = 3) -> None:
        if not 0 <= grace < math.inf:
            raise SearchInvalid(f"grace must be a number of steps of at least 0, not {grace}")
        self._grace, self._min_others = grace, checked_count("min_others", min_others, 1)
        self._reports: dict[int, _Reports] = {}

    def next(self) -> StartTrial | Wait:
        return FINISHED if self.is_exhausted else StartTrial(None)

    def started(self, trial: int, start: StartTrial) -> None:
        self._reports[trial] = _Reports()

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        own = self._reports[trial]
        own.add(step, score)
        if step < self._grace:
            return GO_ON
        means = [other.mean_until(step) for number, other in self._reports.items() if number != trial]
        known = [mean for mean in means if mean is not None]
        return STOP if len(known) >= self._min_others and own.best < statistics.median(known) else GO_ON

    def ended(self, trial: int) -> None:
        """Nothing changes: what it has reported still counts."""

    def failed(self, trial: int) -> None:
        self._reports[trial].has_failed = True
