"""Streams: the actions of a schedule as micro-batches are admitted, for a run without a known end.

A schedule without a flush has, for each worker, one endless order. Admission decides how
far a worker gets in it; a drain is what remains of it for the admitted pieces:

    endless order of a worker   F0 F1 F2 B0 U1 F3 B1 U2 F4 ...
    admit(3)                    F0 F1 F2 B0 U1 |             (F3 may come next, or B1)
    drain()                                    | B1 U2 B2 U3

What is certain is what workers can get done with the admitted pieces, when they are played
together (transfers.py). Admission in any portions computes the same in the same order; a
Receive that must come early may come at another place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, Kind
from ropewalk.pipeline.plans import Plan, Worker
from ropewalk.pipeline.transfers import Play, with_transfers

#: For each worker what it computes, with its reductions and steps.
Orders = Mapping[Worker, Iterator[Action]]


class Stream(Protocol):
    """The actions of a run, as micro-batches are admitted. Versions count up through the whole run."""

    def admit(self, num: int) -> dict[Worker, list[Action]]:
        """Admit so many more micro-batches: what each worker does next, as far as it is now certain."""
        ...

    def drain(self) -> dict[Worker, list[Action]]:
        """Admit no more for now: what remains until the pipeline is empty, updates of partial rounds included.

        The next `admit` fills the pipeline again. Numbers of micro-batches and versions go on, but the formulas
        of versions and rounds begin anew: piece 0 of theirs is the first after the drain.
        """
        ...


class StepStream:
    """Steps of a schedule with a flush: each admission is one step, and nothing is left to drain."""

    def __init__(self, plan: Plan, orders: Orders) -> None:
        self._plan = plan
        self._step = _by_worker(plan, with_transfers(plan, orders))
        self._num_steps = 0

    def admit(self, num: int) -> dict[Worker, list[Action]]:
        if num != self._plan.micro_batches:
            raise ScheduleInvalid(
                f"{num} micro-batches were admitted, but this schedule flushes after each step, and steps of the plan "
                f"have {self._plan.micro_batches}; admit as many"
            )
        start = self._num_steps
        self._num_steps += 1
        return {worker: [_shifted(action, start) for action in actions] for worker, actions in self._step.items()}

    def drain(self) -> dict[Worker, list[Action]]:
        return {worker: [] for worker in self._plan.workers}


class EndlessStream:
    """Pieces of a schedule without a flush.

    Args:
        plan: what runs.
        orders: begins the endless orders of all workers, without transfers.
        round_sizes: for each stage, how many pieces make one update.
    """

    def __init__(self, plan: Plan, orders: Callable[[], Orders], round_sizes: Sequence[int]) -> None:
        self._plan = plan
        self._begin = orders
        self._round_sizes = round_sizes
        #: Pieces and updates of each stage before the pipeline was last empty.
        self._num_before = 0
        self._versions = [0] * len(plan.stages)
        self._fill()

    def _fill(self) -> None:
        self._orders = self._begin()
        #: What is next for a worker, but not for a piece that was admitted.
        self._held_up: dict[Worker, Action] = {}
        self._num_admitted = 0
        self._is_draining = False
        self._play = Play(self._plan, {worker: partial(self._turn, worker) for worker in self._plan.workers})

    def admit(self, num: int) -> dict[Worker, list[Action]]:
        if num < 0:
            raise ScheduleInvalid(f"{num} micro-batches were admitted; it must be at least 0")
        self._num_admitted += num
        return self._go_on()

    def drain(self) -> dict[Worker, list[Action]]:
        self._is_draining = True
        rest = self._go_on()
        self._play.check_done()
        for stage, size in enumerate(self._round_sizes):
            self._versions[stage] += -(-self._num_admitted // size)
        self._num_before += self._num_admitted
        self._fill()
        return rest

    def _turn(self, worker: Worker) -> Action | None:
        """What a worker does next; None before what was not admitted. A drain leaves that out, up to its step."""
        action = self._held_up.pop(worker, None) or next(self._orders[worker])
        while self._is_beyond(action):
            if not self._is_draining or action.kind is Kind.STEP:
                self._held_up[worker] = action
                return None
            action = next(self._orders[worker])
        return action

    def _is_beyond(self, action: Action) -> bool:
        """Whether it is for pieces that were not admitted; an update is, if its round has none that were."""
        if action.micro_batch is not None:
            return action.micro_batch >= self._num_admitted
        assert action.version is not None
        return (action.version - 1) * self._round_sizes[action.stage] >= self._num_admitted

    def _go_on(self) -> dict[Worker, list[Action]]:
        lists = _by_worker(self._plan, self._play.go_on())
        if self._num_before == 0:
            return lists
        renamed = {self._renamed(worker): row for worker, row in lists.items()}
        return {worker: [self._renumbered(worker, action) for action in renamed[worker]] for worker in lists}

    def _renamed(self, worker: Worker) -> Worker:
        """Piece b goes to replica b mod r, whenever the pipeline was last empty."""
        replicas = self._plan.stages[self._plan.groups[worker.group][0]].replicas
        return Worker(worker.group, (worker.replica + self._num_before) % replicas)

    def _renumbered(self, worker: Worker, action: Action) -> Action:
        """An action as the whole run counts pieces and versions."""
        return replace(
            action,
            replica=worker.replica,
            micro_batch=None if action.micro_batch is None else action.micro_batch + self._num_before,
            version=None if action.version is None else action.version + self._versions[action.stage],
        )


def _by_worker(plan: Plan, played: Iterator[tuple[Worker, Action]]) -> dict[Worker, list[Action]]:
    found: dict[Worker, list[Action]] = {worker: [] for worker in plan.workers}
    for worker, action in played:
        found[worker].append(action)
    return found


def _shifted(action: Action, start: int) -> Action:
    return action if action.version is None or not start else replace(action, version=action.version + start)
