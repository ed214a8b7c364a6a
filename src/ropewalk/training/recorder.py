"""The recorder: a worker's actions, their times and the waits before them; cheap enough to be always on.

    ──── waited ────┤ start ▬▬▬▬▬ end        one row of the ring: action, start, end, waited, cause
      for a tensor, a slot, a sum, or for work

A ring of preallocated columns keeps the newest rows. Times are `time.monotonic_ns()`: one
clock for all processes of a host, and `clocks` relates those of several.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.local_executor import Performed
from ropewalk.pipeline.plans import PlanWorker

ADMISSION = "admission"
"""Causes of waiting. There was no action to do: the controller had to admit more."""
STARVED = "starved"
"""Causes that follow from the action: a Receive lacked its tensor, a Send room on its link, a Step its sums."""
BACK_PRESSURE = "back-pressure"
SUMS = "sums"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The actions of one worker, oldest first, by its own clock."""

    worker: PlanWorker
    actions: tuple[Action, ...]
    start_ns: array[int]
    end_ns: array[int]
    waited_ns: array[int]
    """Nanoseconds of waiting right before each action, that is, until its `start_ns`."""
    causes: tuple[str, ...]
    """The causes of the waits; "" where the cause follows from the action."""
    num_forgotten: int = 0
    """The number of older actions that the ring has dropped."""

    def __len__(self) -> int:
        return len(self.actions)

    def cause(self, place: int) -> tuple[str, int | None]:
        """Return the cause of the wait before an action, and the stage that was waited for, if there is one."""
        action = self.actions[place]
        return self.causes[place] or _cause(action), action.peer


class Recorder:
    """Records the actions of a worker. Call its methods from the thread that performs the actions, or while that rests.

    Args:
        worker: the worker whose actions are recorded.
        capacity: the number of newest actions that are kept.
    """

    def __init__(self, worker: PlanWorker, capacity: int = 1 << 16) -> None:
        if capacity < 1:
            raise ValueError(f"a recorder keeps at least 1 action, not {capacity}")
        self.worker = worker
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Forget all records, for a new run whose versions count from 0."""
        blank = Action(ActionKind.FORWARD, 0)
        self._actions = [blank] * self._capacity
        self._causes = [""] * self._capacity
        self._start_ns = array("q", bytes(8 * self._capacity))
        self._end_ns = array("q", bytes(8 * self._capacity))
        self._waited_ns = array("q", bytes(8 * self._capacity))
        self._place = 0
        self._num_rounds = 0

    def record(self, action: Action, start_ns: int, end_ns: int, waited_ns: int = 0, cause: str = "") -> None:
        """Record a completed action.

        Args:
            action: the action.
            start_ns: when it began, after waiting.
            end_ns: when it was done.
            waited_ns: nanoseconds for which the worker could not begin it.
            cause: the cause of the wait, if it does not follow from the action; `ADMISSION`.
        """
        place = self._place
        self._actions[place] = action
        self._start_ns[place] = start_ns
        self._end_ns[place] = end_ns
        self._waited_ns[place] = waited_ns
        self._causes[place] = cause
        place += 1
        if place == self._capacity:
            place = 0
            self._num_rounds += 1
        self._place = place

    @property
    def last_end_ns(self) -> int:
        """When the newest action was done; 0 before the first. Any thread may ask."""
        return self._end_ns[self._place - 1]

    @property
    def num_recorded(self) -> int:
        """The number of all actions so far, including those that were dropped."""
        return self._num_rounds * self._capacity + self._place

    def take(self, last: int | None = None) -> WorkerRecord:
        """Return a copy of the kept actions, or of the `last` newest; nothing is removed.

        Any thread may take less than half of the capacity while another one records: rows that are complete do not
        change until the ring comes round.
        """
        place, num_recorded = self._place, self.num_recorded
        num = min(num_recorded, self._capacity)
        if last is not None:
            num = min(num, max(last, 0))
        first = place - num
        if first >= 0:
            parts = [slice(first, place)]
        else:
            parts = [slice(first + self._capacity, None), slice(0, place)]

        def column(of: array[int]) -> array[int]:
            return sum((of[part] for part in parts), array("q"))

        return WorkerRecord(
            worker=self.worker,
            actions=tuple(action for part in parts for action in self._actions[part]),
            start_ns=column(self._start_ns),
            end_ns=column(self._end_ns),
            waited_ns=column(self._waited_ns),
            causes=tuple(cause for part in parts for cause in self._causes[part]),
            num_forgotten=num_recorded - num,
        )


def records_of(performed: Iterable[Performed]) -> dict[PlanWorker, WorkerRecord]:
    """Return the actions of a local executor as records of its workers; no worker waits there."""
    recorders: dict[PlanWorker, Recorder] = {}
    rows = list(performed)
    for worker, action, start_s, end_s in ((row.worker, row.action, row.start_s, row.end_s) for row in rows):
        if worker not in recorders:
            recorders[worker] = Recorder(worker, len(rows))
        recorders[worker].record(action, round(start_s * 1e9), round(end_s * 1e9))
    return {worker: recorders[worker].take() for worker in sorted(recorders)}


def _cause(action: Action) -> str:
    if action.kind is ActionKind.RECEIVE:
        return STARVED
    if action.kind is ActionKind.SEND:
        return BACK_PRESSURE
    return SUMS if action.kind in (ActionKind.STEP, ActionKind.REDUCE) else ADMISSION
