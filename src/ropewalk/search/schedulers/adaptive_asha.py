"""Adaptive ASHA: several brackets of ASHA side by side, from those that stop early to those that never do.

The search of Determined (https://github.com/determined-ai/determined, `adaptive_asha`): asynchronous Hyperband, with a
mode that says how much early scores are trusted. Of K rungs, a bracket with b of them begins at rung K - b:

    conservative    b = K, K - 1, ..., 1                       the last bracket is random search: no trial is stopped
    standard        b = K, K - 1, ..., floor((K - 1) / 2) + 1
    aggressive      b = K                                      one ASHA

Trials are shared out as `side_by_side` says. Determined divides a known number of trials by the same shares; here each
new trial goes to the bracket that is the least beyond its share, so that their number need not be known.
"""

from __future__ import annotations

from typing import Literal, get_args

from ropewalk.errors import SearchInvalid
from ropewalk.misplaced_options import tells_places
from ropewalk.near_names import check_choice
from ropewalk.search.optuna_names import OF_HYPERBAND
from ropewalk.search.schedulers.asha import ASHA
from ropewalk.search.schedulers.rungs import budgets_from, checked_count

AdaptiveMode = Literal["conservative", "standard", "aggressive"]


class AdaptiveASHA(ASHA):
    """Brackets of ASHA side by side, chosen by a mode.

    As `adaptive_asha` of Determined (https://github.com/determined-ai/determined).

    Args:
        R: the most budget of a trial, in steps. As for `ASHA`, choose R = r * eta^k.
        r: the least budget.
        eta: of the trials of a rung, one in `eta` goes on to the next, which has `eta` times the budget.
        mode: "conservative" if early scores say little of late ones, "aggressive" if they say much, "standard" between.
        max_rungs: the most rungs of a bracket; more of them would begin with less budget. The last ones are kept.

    Raises:
        SearchInvalid: an argument is out of range.
    """

    @tells_places(OF_HYPERBAND)
    def __init__(
        self, *, R: float, r: float = 1, eta: float = 4, mode: AdaptiveMode = "standard", max_rungs: int = 5
    ) -> None:
        check_choice("mode", mode, get_args(AdaptiveMode), SearchInvalid)
        num_possible = len(budgets_from(r, R, eta))
        num_rungs = min(num_possible, checked_count("max_rungs", max_rungs, 1))
        num_brackets = {"conservative": num_rungs, "standard": num_rungs // 2 + 1, "aggressive": 1}[mode]
        super().__init__(R=R, r=r, eta=eta, s=num_possible - num_rungs, max_brackets=num_brackets)
