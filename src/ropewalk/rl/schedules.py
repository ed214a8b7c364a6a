"""`LinearSchedule`: a setting that changes while an experiment proceeds, such as epsilon or a learning rate.

Schedules are functions of the experiment's progress, 0 to 1, which comes with `Variables` and with every update. So
they need no counter of their own, and an actor that is started again continues where the experiment is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """A straight line from `start` to `end`, which then stays at `end`.

    Args:
        start: the value at progress 0.
        end: the value from progress `until` on.
        until: share of the experiment, above 0 and at most 1, after which it no longer changes.
    """

    start: float
    end: float
    until: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a share that is not one."""
        if not 0 < self.until <= 1:
            raise ValueError(
                f"LinearSchedule: until={self.until} must be above 0 and at most 1: it is the share of the experiment "
                f"during which the value goes from {self.start} to {self.end}"
            )

    def at(self, progress: float) -> float:
        """Return the value at a progress between 0 and 1."""
        share = min(max(progress / self.until, 0.0), 1.0)
        return self.start + share * (self.end - self.start)


def progress_after(steps: int, total_steps: int) -> float:
    """Return the share of an experiment's steps that is done, 0 to 1; the last block may bring more than its steps."""
    return min(1.0, steps / total_steps)


__all__ = ["LinearSchedule", "progress_after"]
