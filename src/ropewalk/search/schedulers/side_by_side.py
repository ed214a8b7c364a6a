"""`SideBySide`: several brackets at the same time, and which of them gets the next trial.

Bracket number i has early-stopping rate s + i: its rungs have the budgets r * eta^(s+i), ..., R. A bracket with b rungs
gets a share of eta^(b-1) / b of the trials, as in Hyperband (arXiv 1603.06560, algorithm 1), whose brackets have
ceil((s_max + 1) / (s + 1) * eta^s) with s = b - 1: then all of them use about the same budget.
"""

from __future__ import annotations

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers.rungs import Bracket, budgets_from, checked_count


class SideBySide:
    """Brackets with early-stopping rates s, s + 1, and so on.

    Args:
        r: the least budget, in steps.
        R: the most.
        eta: factor between the budgets of two rungs.
        s: the least early-stopping rate.
        max_brackets: the most brackets; there are fewer if there are fewer rates whose least budget is at most `R`.

    Attributes:
        brackets: the brackets; the first stops the most trials early.

    Raises:
        SearchInvalid: an argument is out of range.
    """

    def __init__(self, r: float, R: float, eta: float, s: int, max_brackets: int) -> None:
        budgets = budgets_from(r, R, eta)
        checked_count("s", s, 0)
        checked_count("max_brackets", max_brackets, 1)
        if s >= len(budgets):
            raise SearchInvalid(
                f"s = {s} begins above R: r * eta^s is {r * eta**s}, and R is {R}; use s <= {len(budgets) - 1}"
            )
        rates = range(s, min(s + max_brackets, len(budgets)))
        self.brackets = [Bracket(budgets[rate:]) for rate in rates]
        self._eta = eta
        self._bracket_of: dict[int, Bracket] = {}

    def next_bracket(self) -> int:
        """Return the number of the bracket that, with one trial more, is the least beyond its share."""
        # A share is eta^(b-1) / b, but for a factor that all have.
        beyond = [
            (bracket.num_started + 1) * len(bracket.rungs) / self._eta ** len(bracket.rungs)
            for bracket in self.brackets
        ]
        return beyond.index(min(beyond))

    def start(self, trial: int, bracket: int) -> Bracket:
        """StartTrial a trial in the bracket with this number, which is returned."""
        self._bracket_of[trial] = self.brackets[bracket]
        self.brackets[bracket].start(trial)
        return self.brackets[bracket]

    def of(self, trial: int) -> Bracket:
        """Return the bracket of a trial."""
        return self._bracket_of[trial]
