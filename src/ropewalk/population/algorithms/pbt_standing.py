"""The launcher's record of a member of population based training, and why each member finishes. Pure.

A member with a limit of `steps` is done once its state was trained for this number of steps. Two things could delay
that for ever:

  copying back    the copied state has fewer steps, which are trained again: in all at most `steps` of them; then the
                  member only copies members with at least as many steps
  in vain         intervals that fail, are dropped, or find their state lost: after `MOST_IN_VAIN` of them without
                  getting further than ever before, the member is given up where it is
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ropewalk.population.algorithms.pbt_states import StateRef

MOST_IN_VAIN = 10


@dataclass(slots=True)
class MemberStanding:
    """The launcher's record of a member."""

    hyperparameters: dict[str, Any]
    number: int = 0
    """Number of its next interval."""
    steps: int = 0
    score: float | None = None
    last: int = -1
    """Index in the history of the interval that produced its state; -1 for a new member."""
    state: StateRef | None = None
    is_lost: bool = False
    """Whether its state is known to be lost."""
    has_failed: bool = False
    """Whether its score does not belong to its state: its last interval failed, and a replacement was told."""
    is_under_way: bool = False
    is_waiting: bool = False
    """Whether it has trained in this synchronous round."""
    furthest: int = 0
    """The greatest number of steps that a state of it ever had."""
    in_vain: int = 0
    """Number of intervals since then that gave it no new state."""
    repeated: int = 0
    """Number of steps that it lost by copying states with fewer steps."""

    def is_done(self, steps: int | None) -> bool:
        """Whether it has trained for `steps` steps, or is given up; always False if `steps` is None."""
        return steps is not None and (self.steps >= steps or self.is_given_up(steps))

    def is_given_up(self, steps: int | None) -> bool:
        """Whether too many of its intervals were in vain; always False if `steps` is None."""
        return steps is not None and self.steps < steps and self.in_vain >= MOST_IN_VAIN

    def may_copy(self, other: MemberStanding, steps: int | None) -> bool:
        """Whether the other member is better, and has enough steps that the run still ends.

        A tie is not better, except that a member whose last interval failed is worse than one whose interval did not.
        """
        if self.score is None or other.score is None or other.last < 0 or other.is_lost:
            return False
        is_better = (other.score, not other.has_failed) > (self.score, not self.has_failed)
        return is_better and (steps is None or self.repeated + max(0, self.steps - other.steps) <= steps)

    def copy(self, other: MemberStanding, hyperparameters: dict[str, Any]) -> None:
        """Continue from the other member's state, with these hyperparameters."""
        self.repeated += max(0, self.steps - other.steps)
        self.hyperparameters, self.state, self.is_lost = hyperparameters, other.state, other.is_lost
        self.score, self.last, self.has_failed = other.score, other.last, False
        self._go_to(other.steps)

    def trained(self, steps: int, score: float, state: StateRef | None, last: int) -> None:
        """Record a new state, which was trained for `steps` more steps."""
        self.score, self.last, self.has_failed = score, last, False
        self.state, self.is_lost = state, False
        self._go_to(self.steps + steps)

    def begin_again(self) -> None:
        """Restart after its state was lost, without copying another member."""
        self.state, self.is_lost, self.has_failed, self.steps, self.score, self.last = None, False, False, 0, None, -1

    def _go_to(self, steps: int) -> None:
        self.steps = steps
        if steps > self.furthest:
            self.furthest, self.in_vain = steps, 0


SAVED = [field.name for field in fields(MemberStanding) if field.name != "state"]
