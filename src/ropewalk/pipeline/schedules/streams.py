"""Streams: the actions of a schedule as micro-batches are admitted, for a run without a known end.

A schedule without a flush has, for each worker, one endless order. What was admitted
decides how far it is certain; a drain is what remains of it for the admitted pieces:

    endless order of a worker   F0 F1 F2 B0 U1 F3 B1 U2 F4 ...
    admit(3)                    F0 F1 F2 B0 U1 |             (F3 may come next, or B1)
    drain()                                    | B1 U2 B2 U3

So admission in any portions gives the same lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, Kind
from ropewalk.pipeline.plans import Plan, Worker

#: Actions of all workers in one order in which they can be performed.
LinearOrder = Iterator[tuple[Worker, Action]]


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

    def __init__(self, plan: Plan, linear: Callable[[], LinearOrder]) -> None:
        self._plan = plan
        self._step = _by_worker(plan, linear())
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
        linear: begins the endless order of all workers.
        round_sizes: for each stage, how many pieces make one update.
    """

    def __init__(self, plan: Plan, linear: Callable[[], LinearOrder], round_sizes: Sequence[int]) -> None:
        self._plan = plan
        self._linear = linear
        self._round_sizes = round_sizes
        #: Pieces and updates of each stage before the pipeline was last empty.
        self._num_before = 0
        self._versions = [0] * len(plan.stages)
        self._refill()

    def _refill(self) -> None:
        self._coming = self._linear()
        self._ahead: dict[Worker, deque[Action]] = {worker: deque() for worker in self._plan.workers}
        self._num_admitted = 0

    def admit(self, num: int) -> dict[Worker, list[Action]]:
        if num < 0:
            raise ScheduleInvalid(f"{num} micro-batches were admitted; it must be at least 0")
        self._num_admitted += num
        certain: dict[Worker, list[Action]] = {worker: [] for worker in self._plan.workers}
        for worker in self._plan.workers:
            found = certain[self._renamed(worker)]
            while not self._is_beyond(action := self._next(worker)):
                found.append(self._take(worker, action))
        return certain

    def drain(self) -> dict[Worker, list[Action]]:
        rest: dict[Worker, list[Action]] = {worker: [] for worker in self._plan.workers}
        for worker in self._plan.workers:
            found = rest[self._renamed(worker)]
            while True:
                action = self._next(worker)
                if not self._is_beyond(action):
                    found.append(self._take(worker, action))
                elif action.kind is Kind.STEP:  # of a round without pieces: all before it is done
                    break
                else:
                    self._ahead[worker].popleft()
        for stage, size in enumerate(self._round_sizes):
            self._versions[stage] += -(-self._num_admitted // size)
        self._num_before += self._num_admitted
        self._refill()
        return rest

    def _next(self, worker: Worker) -> Action:
        ahead = self._ahead[worker]
        while not ahead:
            other, action = next(self._coming)
            self._ahead[other].append(action)
        return ahead[0]

    def _take(self, worker: Worker, action: Action) -> Action:
        """An action as the run numbers it: a piece goes to replica b mod r whenever the pipeline was last empty."""
        self._ahead[worker].popleft()
        if self._num_before == 0:
            return action
        return replace(
            action,
            replica=self._renamed(worker).replica,
            micro_batch=None if action.micro_batch is None else action.micro_batch + self._num_before,
            version=None if action.version is None else action.version + self._versions[action.stage],
        )

    def _renamed(self, worker: Worker) -> Worker:
        replicas = self._plan.stages[self._plan.groups[worker.group][0]].replicas
        return Worker(worker.group, (worker.replica + self._num_before) % replicas)

    def _is_beyond(self, action: Action) -> bool:
        """Whether it is for pieces that were not admitted; an update is, if its round has none that were."""
        if action.micro_batch is not None:
            return action.micro_batch >= self._num_admitted
        assert action.version is not None
        return (action.version - 1) * self._round_sizes[action.stage] >= self._num_admitted


def _by_worker(plan: Plan, linear: LinearOrder) -> dict[Worker, list[Action]]:
    found: dict[Worker, list[Action]] = {worker: [] for worker in plan.workers}
    for worker, action in linear:
        found[worker].append(action)
    return found


def _shifted(action: Action, start: int) -> Action:
    return action if action.version is None or not start else replace(action, version=action.version + start)
