"""Streams: the actions of a schedule as micro-batches are admitted, for a run without a known end.

A schedule without a flush has one endless list for each worker: all workers are simulated
together once, including transfers (transfers.py). Admission decides how far they get in
their lists; a drain is the rest of the lists for the admitted pieces:

    endless list of a worker    F0 F1 F2 B0 U1 F3 B1 U2 F4 ...
    admit(3)                    F0 F1 F2 B0 U1 |             (F3 may come next, or B1)
    drain()                                    | B1 U2 B2 U3

The simulation stops for all workers where the first of them needs a piece that is not
admitted. So the lists do not depend on the portions in which pieces are admitted. If the
other workers went on without that piece, they would receive the tensors of long skip
connections before it, and its worker would wait for the last stage each time. `admit(0)`
does let them go on, for callers that wait for the losses of admitted pieces.

A stream can begin at a cut of an earlier run, in the middle of the endless order. It begins
there as at the start, because the forwards of a worker for pieces after the cut, before it
reaches the cut, are exactly those that fill the pipeline (resuming.py).

    the run            F0 F1 F2 B0 U1 F3 B1 U2 | F4 B2 U3 F5 B3 U4 ...     U2 is the last step before cut 2
    from cut 2 on                        F2 F3 | F4 B2 U3 F5 B3 U4 ...     F2 and F3 again, since their graphs are lost
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
    """A place in a run, given by the micro-batches that were admitted before it.

    Schedules with a flush count micro-batches from 0 in each step, so for them only the versions give the place.
    """

    num_before: int
    """Micro-batches admitted before the pipeline was last empty, and since then."""
    num_since: int
    versions: tuple[int, ...]
    """The version of each stage's weights when the pipeline was last empty."""
    num_accumulated: int = 0
    """Steps since the last update, for a schedule with a flush that accumulates gradients (`Schedule.accumulate`)."""

    @classmethod
    def start(cls, plan: Plan) -> Cut:
        """Return the beginning of a run."""
        return cls(0, 0, (0,) * len(plan.stages))

    @property
    def next_micro_batch(self) -> int:
        """The number of the micro-batch that is admitted next."""
        return self.num_before + self.num_since

    def behind_step(self, accumulate: int) -> Cut:
        """Return the place after one more step of a schedule with a flush.

        Args:
            accumulate: number of steps for each update.
        """
        if self.num_accumulated + 1 == accumulate:
            return self.behind_update()
        return replace(self, num_accumulated=self.num_accumulated + 1)

    def behind_update(self) -> Cut:
        """Return the place after the next update of a schedule with a flush."""
        return Cut(self.num_before, self.num_since, tuple(version + 1 for version in self.versions))


class ActionStream(Protocol):
    """The actions of a run as micro-batches are admitted. Versions are counted through the whole run."""

    @property
    def position(self) -> Cut:
        """The place after all micro-batches that were admitted."""
        ...

    def admit(self, num: int) -> Lists:
        """Admit further micro-batches.

        Args:
            num: number of micro-batches. Without a flush, 0 returns all actions that are possible with the admitted
                ones, without a drain.

        Returns:
            The next actions of each worker, before the first micro-batch that is not admitted.

        Raises:
            ScheduleInvalid: `num` is out of range: a step of a schedule with a flush has at least 1 micro-batch and at
                most those of the plan.
        """
        ...

    def drain(self) -> Lists:
        """Empty the pipeline.

        The next `admit` fills the pipeline again. Numbers of micro-batches and versions go on, but the formulas of
        versions and rounds start over: their piece 0 is the first piece after the drain.

        Returns:
            The remaining actions of each worker, including updates of partial rounds.
        """
        ...


class StepStream:
    """The stream of a schedule with a flush: each admission is one step, and a drain has at most an update left.

    Args:
        plan: the plan to run.
        begin: returns the orders of a step of the given number of micro-batches, without transfers.
        accumulate: number of steps for each update, which sums their gradients.
        start: the position of the run; None: its beginning.
        only: the worker whose lists are needed; None: all workers.
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
        self._steps: dict[int, Lists] = {}
        """The lists of steps, by their number of micro-batches."""
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
        """The lists of a step with the versions of the whole run, with or without their update."""
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
    """The stream of a schedule without a flush.

    Args:
        plan: the plan to run.
        begin: begins the endless orders of all workers, without transfers.
        round_sizes: for each stage, the number of pieces of one update.
        version: returns the version that a stage uses for a piece, if the pipeline was last empty at piece 0.
        start: the position of the run, at a multiple of all rounds since the pipeline was last empty; None: its
            beginning.
        only: the worker whose lists are needed; None: all workers.
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
        self._num_before = start.num_before
        """Pieces, and updates of each stage, before the pipeline was last empty."""
        self._versions = start.versions
        self._fill(start.num_since)

    def _fill(self, num_since: int) -> None:
        self._play = RepeatedPlay(self._plan, self._begin(), self._round_sizes)
        self._start = num_since
        """Pieces since the pipeline was last empty: the one from which the simulation counts, and all."""
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
        """The lists of the simulation with the pieces, versions and workers of the whole run.

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
    """An action of a step, with its version in the whole run."""
    if action.version is None or not start:
        return action
    return Action(
        action.kind, action.stage, action.replica, action.micro_batch, action.version + start, group=action.group
    )
