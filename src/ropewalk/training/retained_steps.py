"""The admissions that would have to be repeated after a death, and those of them that are not completed. Pure.

admitted ─▶ retained, under way ─▶ retained, done ─▶ dropped, when all workers have a snapshot taken after it
                 ▲                      │
                 └────── restart ───────┘
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.micro_batches import MiniBatch
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.trees import tensors_of
from ropewalk.quantities import counted
from ropewalk.training.assignment import AdmissionOutcome


@dataclass(slots=True, eq=False)
class Retained:
    """An admission, kept until all workers have a snapshot taken after it."""

    step: int
    num: int
    """The number of micro-batches."""
    batch: MiniBatch | None
    """None: there is no mini-batch, or the stages read it by themselves."""
    metrics: StepMetrics | None
    drains: bool
    position: Cut | None = None
    """The position of the pipeline after it, under the present plan."""
    futures: dict[PlanWorker, Future[AdmissionOutcome]] | None = None
    is_done: bool = False
    was_done: bool = False
    """Whether it was completed at least once, in this epoch or an earlier one."""
    sent_s: float = 0.0
    """When it was sent in this epoch."""

    @property
    def size_bytes(self) -> int:
        """The size of its tensors in bytes."""
        if self.batch is None:
            return 0
        return sum(tensor.nbytes for tensor in tensors_of((dict(self.batch.inputs), self.batch.labels)))


class RetainedSteps:
    """The admissions since the newest cut of which all snapshots are kept, oldest first."""

    def __init__(self) -> None:
        self._all: deque[Retained] = deque()
        self._under_way: deque[Retained] = deque()

    @property
    def num_under_way(self) -> int:
        """The number of those that were sent in this epoch and are not completed."""
        return len(self._under_way)

    @property
    def first_under_way(self) -> Retained:
        """The oldest of those that are under way."""
        return self._under_way[0]

    @property
    def positions(self) -> list[Cut | None]:
        """The position after each."""
        return [one.position for one in self._all]

    def add(self, one: Retained) -> None:
        """Retain an admission."""
        self._all.append(one)

    def remove(self, one: Retained) -> None:
        """Retain an admission no longer, as it was not sent."""
        self._all.remove(one)

    def sent(self, one: Retained) -> None:
        """Note that an admission is under way."""
        self._under_way.append(one)

    def done(self, one: Retained) -> bool:
        """Note that an admission is completed; returns whether for the first time, in all epochs."""
        one.is_done, one.futures = True, {}
        self._under_way.remove(one)
        was_done, one.was_done = one.was_done, True
        return not was_done

    def drop(self, num: int) -> None:
        """Drop the oldest `num`."""
        for _ in range(num):
            self._all.popleft()

    def drop_done(self) -> None:
        """Drop all that precede the first that is not completed."""
        while self._all and self._all[0].is_done:
            self._all.popleft()

    def clear(self) -> None:
        """Drop all; none is under way."""
        self._all.clear()

    def restart(self) -> list[Retained]:
        """Return all, which have to be sent again."""
        self._under_way.clear()
        for one in self._all:
            one.futures, one.is_done = None, False
        return list(self._all)

    def __str__(self) -> str:
        """How training goes on from the newest cut, in words."""
        num = sum(one.was_done for one in self._all if one.num)
        first = next((f"step {one.step}" for one in self._all if one.num), "the next step")
        return f"training goes on with {first}; it repeats {counted(num, 'step')} that had been done"
