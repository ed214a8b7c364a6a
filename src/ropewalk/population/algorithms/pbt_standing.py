"""What the launcher of a population based training knows of a member, and why each one comes to an end. Pure.

A member with `steps` to go is done once its state was trained so long. Two things could put that off for ever:

  copying back    the copied state is not as far on, and those steps are trained once more: in all at most `steps` of
                  them; then the member copies only from who is at least as far on
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
    """What is known of a member."""

    hyperparameters: dict[str, Any]
    number: int = 0
    """Of its next interval."""
    steps: int = 0
    score: float | None = None
    last: int = -1
    """The interval in the history that its state comes from; -1 for a new one."""
    state: StateRef | None = None
    is_lost: bool = False
    """Its state is known to be nowhere any more."""
    has_failed: bool = False
    """Its score is not of its state: its last interval gave none, and it was told another in place of it."""
    is_under_way: bool = False
    is_waiting: bool = False
    """Synchronous: it has trained in this round."""
    furthest: int = 0
    """The most steps that a state of it ever had."""
    in_vain: int = 0
    """Intervals since then that left it without a new state."""
    repeated: int = 0
    """Steps that were given up for states that were not as far on."""

    def is_done(self, steps: int | None) -> bool:
        """Whether it has trained for so many steps, or is given up; never, if steps are None."""
        return steps is not None and (self.steps >= steps or self.is_given_up(steps))

    def is_given_up(self, steps: int | None) -> bool:
        """Whether too many intervals were in vain for one that is to train for so many steps."""
        return steps is not None and self.steps < steps and self.in_vain >= MOST_IN_VAIN

    def may_copy(self, other: MemberStanding, steps: int | None) -> bool:
        """Whether the other is better, and not so far behind that the run might never end.

        A tie is not better, except that one whose last interval failed is worse than one whose did not.
        """
        if self.score is None or other.score is None or other.last < 0 or other.is_lost:
            return False
        is_better = (other.score, not other.has_failed) > (self.score, not self.has_failed)
        return is_better and (steps is None or self.repeated + max(0, self.steps - other.steps) <= steps)

    def copy(self, other: MemberStanding, hyperparameters: dict[str, Any]) -> None:
        """Go on from the other's state, with these hyperparameters."""
        self.repeated += max(0, self.steps - other.steps)
        self.hyperparameters, self.state, self.is_lost = hyperparameters, other.state, other.is_lost
        self.score, self.last, self.has_failed = other.score, other.last, False
        self._go_to(other.steps)

    def trained(self, steps: int, score: float, state: StateRef | None, last: int) -> None:
        """It has a new state, trained for so many more steps."""
        self.score, self.last, self.has_failed = score, last, False
        self.state, self.is_lost = state, False
        self._go_to(self.steps + steps)

    def begin_again(self) -> None:
        """Its state was lost, and it copies nobody's."""
        self.state, self.is_lost, self.has_failed, self.steps, self.score, self.last = None, False, False, 0, None, -1

    def _go_to(self, steps: int) -> None:
        self.steps = steps
        if steps > self.furthest:
            self.furthest, self.in_vain = steps, 0


SAVED = [field.name for field in fields(MemberStanding) if field.name != "state"]
