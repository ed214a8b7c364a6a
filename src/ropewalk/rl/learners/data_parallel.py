"""Several learners with equal weights: each draws its own batches, and all take each step with the mean gradient.

    learner 0:  batch ─▶ gradient ─┐                                    ┌─▶ optimizer step
                                   ├─▶ all-reduce (ropewalk.exchange) ──┤     equal weights, optimizers and counts
    learner 1:  batch ─▶ gradient ─┘                                    └─▶ optimizer step

Before an update all learners tell each other what they have done, so that they decide alike: how far the experiment is,
whether it has ended, and whether one of them has to stop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ropewalk.exchange.groups.group import Group
from ropewalk.rl.learners.learner import Learner


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a learner tells the others between two updates.

    Attributes:
        steps: environment steps that reached its replay.
        episodes: the episodes that ended in them.
        stale_steps: environment steps that were too old to be learned from.
        updates: number of updates that it has done.
        epoch: epoch of its lives; the versions of its weights begin with it.
        stopping: whether it has to stop, so that the others do not wait for its next gradient.
        scores: scores of the episodes since its last report.
    """

    steps: int
    episodes: int
    stale_steps: int
    updates: int
    epoch: int = 0
    stopping: bool = False
    scores: tuple[float, ...] = ()


class LearnerGroup:
    """The place of one learner among several.

    All methods wait for the other learners, and raise `ExchangeAborted` when `Group.abort` was called on this member.

    Args:
        group: the learners; all of them make the same calls in the same order.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    def join(self, learner: Learner) -> None:
        """Let all gradients of a learner be means over the group from now on.

        Raises:
            ValueError: the learner cannot be one of several; see `Learner.gradient_steps`.
        """
        for step in learner.gradient_steps():
            step.average = self.average

    def average(self, vector: Tensor) -> None:
        """Replace a vector by its mean over the group; the same bits on every member."""
        self._group.all_reduce(vector, "gradient").wait()
        vector /= self._group.size

    def tell(self, report: RankReport) -> list[RankReport]:
        """Tell the others about this learner, and return the reports of all by rank; the same on every member."""
        facts = (
            report.steps,
            report.episodes,
            report.stale_steps,
            report.updates,
            report.epoch,
            int(report.stopping),
        )
        scores = memoryview(np.array(report.scores, np.float64).tobytes())
        return [
            RankReport(steps, episodes, stale, updates, epoch, bool(stopping), tuple(np.frombuffer(theirs).tolist()))
            for theirs, (steps, episodes, stale, updates, epoch, stopping) in self._group.all_gather(
                scores, facts, "progress"
            )
        ]


__all__ = ["LearnerGroup", "RankReport"]
