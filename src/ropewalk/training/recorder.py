"""The recorder: a worker's actions, their times and the waits before them; cheap enough to be always on.

    ──── waited ────┤ start ▬▬▬▬▬ end        one row of the ring: action, start, end, waited
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
"""A Receive lacked its tensor, a Send room on its link, a Step its sums."""
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
    num_forgotten: int = 0
    """The number of older actions that the ring has dropped."""

    def __len__(self) -> int:
        return len(self.actions)

    def cause(self, place: int) -> tuple[str, int | None]:
        """Return the cause of the wait before an action, and the stage that was waited for, if there is one."""
        action = self.actions[place]
        return _cause(action), action.peer


class Recorder:
    """Records the actions of a worker.

    Methods are for the thread that performs the actions, or while it rests, unless they say otherwise. Rows are
    numbered from 0 on; row n lies in slot n modulo the number of slots. There is one slot more than rows are kept: that
    of the row that is being written while another thread takes the kept ones.

    Args:
        worker: the worker whose actions are recorded.
        capacity: the number of newest actions that are kept.
    """

    def __init__(self, worker: PlanWorker, capacity: int = 1 << 16) -> None:
        if capacity < 1:
            raise ValueError(f"a recorder keeps at least 1 action, not {capacity}")
        self.worker = worker
        self._capacity = capacity
        self._num_slots = capacity + 1
        self.clear()

    def clear(self) -> None:
        """Forget all records, for a new run whose versions count from 0."""
        blank = Action(ActionKind.FORWARD, 0)
        self._actions = [blank] * self._num_slots
        self._start_ns = array("q", bytes(8 * self._num_slots))
        self._end_ns = array("q", bytes(8 * self._num_slots))
        self._waited_ns = array("q", bytes(8 * self._num_slots))
        self.num_recorded: int = 0
        """The number of all actions so far, including those that were dropped. Any thread may ask."""

    def record(self, action: Action, start_ns: int, end_ns: int, waited_ns: int = 0) -> None:
        """Record a completed action.

        Args:
            action: the action.
            start_ns: when it began, after waiting.
            end_ns: when it was done.
            waited_ns: nanoseconds for which the worker could not begin it.
        """
        slot = self.num_recorded % self._num_slots
        self._actions[slot] = action
        self._start_ns[slot] = start_ns
        self._end_ns[slot] = end_ns
        self._waited_ns[slot] = waited_ns
        self.num_recorded += 1

    @property
    def last_end_ns(self) -> int:
        """When the newest action was done; 0 before the first. Any thread may ask."""
        return self._end_ns[(self.num_recorded - 1) % self._num_slots]

    def take(self, last: int | None = None) -> WorkerRecord:
        """Return a copy of the kept actions, or of the `last` newest; nothing is removed.

        Any thread may call this. Without the oldest ones if another thread has recorded over them meanwhile.
        """
        num_recorded = self.num_recorded
        num = min(num_recorded, self._capacity)
        if last is not None:
            num = min(num, max(last, 0))
        first = num_recorded - num
        slot = first % self._num_slots
        parts = [slice(slot, slot + num), slice(0, max(slot + num - self._num_slots, 0))]

        def column(of: array[int]) -> array[int]:
            return sum((of[part] for part in parts), array("q"))

        actions = [action for part in parts for action in self._actions[part]]
        columns = [column(of) for of in (self._start_ns, self._end_ns, self._waited_ns)]
        num_lost = max(self.num_recorded - self._capacity - first, 0)
        start_ns, end_ns, waited_ns = (each[num_lost:] for each in columns)
        return WorkerRecord(
            worker=self.worker,
            actions=tuple(actions[num_lost:]),
            start_ns=start_ns,
            end_ns=end_ns,
            waited_ns=waited_ns,
            num_forgotten=first + min(num_lost, num),
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
