"""Streams: the actions of a schedule as micro-batches are admitted, for a run without a known end.

A schedule without a flush has, for each worker, one endless list: all workers are played
together once, transfers included (transfers.py). Admission decides how far they get in it; a
drain is what remains of it for the admitted pieces:

    endless list of a worker    F0 F1 F2 B0 U1 F3 B1 U2 F4 ...
    admit(3)                    F0 F1 F2 B0 U1 |             (F3 may come next, or B1)
    drain()                                    | B1 U2 B2 U3

The play stops for all workers where the first of them would need a piece that was not
admitted. So the lists are the same in whatever portions pieces are admitted. If the others
went on without that piece, what a long skip connection brings would be received before it,
and that worker would wait for the last stage each time. `admit(0)` does let them go on: for
those who wait for the losses of what was admitted.

A stream can begin at a cut of an earlier run, in the middle of the endless order: there it
begins as it began at first, because what a worker forwards beyond a cut before it gets
there is exactly what fills the pipeline (resuming.py).

    the run            F0 F1 F2 B0 U1 F3 B1 U2 | F4 B2 U3 F5 B3 U4 ...     U2 is the last step before cut 2
    from cut 2 on                        F2 F3 | F4 B2 U3 F5 B3 U4 ...     F2 and F3 once more, their graphs are gone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.endless_play import Lists, Orders, RepeatedPlay, by_worker
from ropewalk.pipeline.transfers import with_transfers


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a run, by what was admitted before it.

    Schedules with a flush count micro-batches anew in each step, so only their versions tell where they are.
    """

    #: Micro-batches before the pipeline was last empty, and since then.
    num_before: int
    num_since: int
    #: For each stage the version of its weights when the pipeline was last empty.
    versions: tuple[int, ...]
    #: Steps of a schedule with a flush since its last update, if it has not one in each (`Schedule.accumulate`).
    num_accumulated: int = 0

    @classmethod
    def start(cls, plan: Plan) -> Cut:
        """Where nothing is done yet."""
        return cls(0, 0, (0,) * len(plan.stages))

    @property
    def next_micro_batch(self) -> int:
        """The number of the micro-batch that is admitted next."""
        return self.num_before + self.num_since

    def behind_step(self, accumulate: int) -> Cut:
        """Behind one more step of a schedule with a flush, which updates once in so many."""
        if self.num_accumulated + 1 == accumulate:
            return self.behind_update()
        return replace(self, num_accumulated=self.num_accumulated + 1)

    def behind_update(self) -> Cut:
        """Behind the update of a schedule with a flush."""
        return Cut(self.num_before, self.num_since, tuple(version + 1 for version in self.versions))


class ActionStream(Protocol):
    """The actions of a run, as micro-batches are admitted. Versions count up through the whole run."""

    @property
    def position(self) -> Cut:
        """Behind all that was admitted."""
        ...

    def admit(self, num: int) -> Lists:
        """Admit so many more micro-batches: what each worker does next, before the first one that was not admitted.

        Without a flush, 0 gives all that can be done with those that were admitted, without a drain.
        """
        ...

    def drain(self) -> Lists:
        """Admit no more for now: what remains until the pipeline is empty, updates of partial rounds included.

        The next `admit` fills the pipeline again. Numbers of micro-batches and versions go on, but the formulas
        of versions and rounds begin anew: piece 0 of theirs is the first after the drain.
        """
        ...


class StepStream:
    """Steps of a schedule with a flush: each admission is one step, and at most an update is left to drain.

    Args:
        plan: what runs.
        begin: gives the orders of a step of so many micro-batches, without transfers.
        accumulate: an update ends only every so many steps; the others leave their gradients to it.
        start: where the run is.
        only: the worker whose lists are wanted; None: all.
    """

    def __init__(
        self,
        plan: Plan,
        begin: Callable[[int], Orders],
        *,
        accumulate: int = 1,
        start: Cut | None = None,
        only: PlanWorker | None = None,
    ) -> None:
        self._plan = plan
        self._begin = begin
        self._accumulate = accumulate
        self._position = start or Cut.start(plan)
        self._wanted = plan.workers if only is None else (only,)
        #: By their numbers of micro-batches, the lists of steps.
        self._steps: dict[int, Lists] = {}
        self._step(plan.micro_batches)

    @property
    def position(self) -> Cut:
        return self._position

    def admit(self, num: int) -> Lists:
        if not 1 <= num <= self._plan.micro_batches:
            raise ScheduleInvalid(
                f"{num} micro-batches were admitted, but this schedule flushes after each step, and steps of the plan "
                f"have {self._plan.micro_batches}; admit as many, or fewer where a mini-batch has fewer samples"
            )
        step, before = self._step(num), self._position
        self._position = before.behind_step(self._accumulate)
        return self._of_run(step, before, updates=self._position.num_accumulated == 0)

    def drain(self) -> Lists:
        if not self._position.num_accumulated:
            return _empty(self._plan)
        before, self._position = self._position, self._position.behind_update()
        step = self._step(self._plan.micro_batches)
        updates = {worker: [action for action in row if action.kind in _UPDATING] for worker, row in step.items()}
        return self._of_run(updates, before, updates=True)

    def _of_run(self, lists: Lists, start: Cut, *, updates: bool) -> Lists:
        """Lists of a step as the whole run counts versions, with or without their update."""
        rows = _empty(self._plan)
        for worker in self._wanted:
            rows[worker] = [
                _later(action, start.versions[action.stage])
                for action in lists[worker]
                if updates or action.kind not in _UPDATING
            ]
        return rows

    def _step(self, num: int) -> Lists:
        if num not in self._steps:
            lists = by_worker(self._plan, with_transfers(self._plan, self._begin(num)))
            self._steps[num] = {worker: lists[worker] for worker in self._wanted}
        return self._steps[num]


class EndlessStream:
    """Pieces of a schedule without a flush.

    Args:
        plan: what runs.
        begin: begins the endless orders of all workers, without transfers.
        round_sizes: for each stage, how many pieces make one update.
        version: for a stage and a piece the version that it uses, if the pipeline was last empty at piece 0.
        start: where the run is: at a multiple of all rounds since the pipeline was last empty.
        only: the worker whose lists are wanted; None: all.
    """

    def __init__(
        self,
        plan: Plan,
        begin: Callable[[], Orders],
        round_sizes: Sequence[int],
        version: Callable[[int, int], int],
        *,
        start: Cut | None = None,
        only: PlanWorker | None = None,
    ) -> None:
        self._plan = plan
        self._begin = begin
        self._round_sizes = round_sizes
        self._version = version
        self._wanted = plan.workers if only is None else (only,)
        start = start or Cut.start(plan)
        #: Pieces, and updates of each stage, before the pipeline was last empty.
        self._num_before = start.num_before
        self._versions = start.versions
        self._fill(start.num_since)

    def _fill(self, num_since: int) -> None:
        self._play = RepeatedPlay(self._plan, self._begin(), self._round_sizes)
        #: Pieces since the pipeline was last empty: those that the play counts from, and all.
        self._start = num_since
        self._num_since = num_since

    @property
    def position(self) -> Cut:
        return Cut(self._num_before, self._num_since, self._versions)

    def admit(self, num: int) -> Lists:
        if num < 0:
            raise ScheduleInvalid(f"{num} micro-batches were admitted; it must be at least 0")
        self._num_since += num
        return self._renumbered(*self._play.admit(num))

    def drain(self) -> Lists:
        rest = self._renumbered(*self._play.drain())
        self._versions = tuple(
            version - -self._num_since // size for version, size in zip(self._versions, self._round_sizes, strict=True)
        )
        self._num_before += self._num_since
        self._fill(0)
        return rest

    def _renumbered(self, lists: Lists, ahead: int) -> Lists:
        """Lists of the play as the whole run counts pieces and versions, and calls workers.

        Piece b goes to replica b mod r, whenever the pipeline was last empty.
        """
        since = self._start + ahead
        first = self._num_before + since
        rows = _empty(self._plan)
        for worker in self._wanted:
            replicas = self._plan.stages[self._plan.groups[worker.group][0]].replicas
            played = lists[PlanWorker(worker.group, (worker.replica - first) % replicas)]
            rows[worker] = [self._of_run(action, worker, since, first) for action in played] if first else [*played]
        return rows

    def _of_run(self, action: Action, worker: PlanWorker, since: int, first: int) -> Action:
        stage, b, version = action.stage, action.micro_batch, action.version
        if version is not None:
            if b is not None:
                version = self._versions[stage] + self._version(stage, b + since)
            else:
                version += self._versions[stage] + since // self._round_sizes[stage]
        number = None if b is None else b + first
        return Action(action.kind, stage, worker.replica, number, version, action.edge, action.peer, action.group)


_UPDATING = (ActionKind.REDUCE, ActionKind.STEP)


def _empty(plan: Plan) -> Lists:
    return {worker: [] for worker in plan.workers}


def _later(action: Action, start: int) -> Action:
    """An action of a step as the whole run counts versions."""
    if action.version is None or not start:
        return action
    return Action(
        action.kind, action.stage, action.replica, action.micro_batch, action.version + start, group=action.group
    )
