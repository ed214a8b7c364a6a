"""Transfers: inserts Send and Receive into the computing actions of workers, in an order that cannot deadlock.

A link carries one tensor (or its gradient) of an edge between two workers, and has one
slot: Send waits until the slot is empty, Receive until it is full. Send comes right after
the action that makes the value, Receive right before the action that needs it, with one
exception: if a long skip connection would find its slot still full, the receiver empties
the slot early.

    stage 0   F0 S0 F1 S1 F2 S2 ...          S1 would wait for R0, and R0 for F0 of stage 1, which ...
    stage 3   R0 F0 ...                      with early receives S1 finds the slot empty

This module simulates all workers together, once, with forwards of one unit of time and
backwards of two. The resulting order is an execution with one slot for each link, which
proves that the lists do not deadlock, whatever the real durations are. Stages that share a
worker pass their tensors in the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.updates import members
from ropewalk.quantities import listed

UNITS = {
    ActionKind.FORWARD: 1,
    ActionKind.BACKWARD: 2,
    ActionKind.INPUT_GRADIENT: 1,
    ActionKind.WEIGHT_GRADIENT: 1,
    ActionKind.RECOMPUTE: 1,
}
"""Units of time that each kind of action takes in the simulation; other kinds take none."""

BACKWARDS = (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)
"""The actions that make gradients to be sent."""


class Passing(NamedTuple):
    """A tensor (or gradient) that passes between two stages once for each micro-batch."""

    tensor: str
    source: int
    target: int


Result = tuple[ActionKind, int, int | None]
"""A result that other actions wait for: F, or B (which also stands for I), of a stage for a micro-batch."""


class Crossings:
    """The tensors that cross between the stages of a plan, for each stage and each of F, B and I.

    Attributes:
        received: the tensors that a stage needs from other stages before F, B or I, by other stage and tensor.
        sent: the tensors that it makes for other stages, by other stage and tensor.
    """

    def __init__(self, plan: Plan) -> None:
        keys = [(kind, stage.id) for kind in (ActionKind.FORWARD, *BACKWARDS) for stage in plan.stages]
        self.received: dict[tuple[ActionKind, int], list[Passing]] = {key: [] for key in keys}
        self.sent: dict[tuple[ActionKind, int], list[Passing]] = {key: [] for key in keys}
        for edge in plan.edges:
            for target in edge.targets:
                there, back = Passing(edge.tensor, edge.source, target), Passing(edge.tensor, target, edge.source)
                self._add(ActionKind.FORWARD, there)
                for kind in BACKWARDS if edge.gradient_bytes else ():
                    self._add(kind, back)
        for found in self.received.values():
            found.sort(key=lambda passing: (passing.source, passing.tensor))
        for found in self.sent.values():
            found.sort(key=lambda passing: (passing.target, passing.tensor))

    def _add(self, kind: ActionKind, passing: Passing) -> None:
        self.sent[kind, passing.source].append(passing)
        self.received[kind, passing.target].append(passing)


def with_transfers(plan: Plan, orders: Mapping[PlanWorker, Iterator[Action]]) -> Iterator[tuple[PlanWorker, Action]]:
    """Yield the actions of all workers, including transfers, in an order in which they can be performed.

    Args:
        plan: its edges say which tensors are transferred.
        orders: the computing actions of each worker, with its reductions and steps.

    Raises:
        ScheduleInvalid: the workers wait for each other in a cycle.
    """
    play = Play(plan, {worker: partial(next, order, None) for worker, order in orders.items()})
    yield from play.go_on(_nothing_stops)
    play.check_done()


class Play:
    """An event loop over all workers, which can stop before actions that must not be done yet, and go on later.

    Args:
        plan: its edges say which tensors are transferred.
        turns: for each worker a function that returns its next computing action, reduction or step; None: no more.
    """

    def __init__(self, plan: Plan, turns: Mapping[PlanWorker, Callable[[], Action | None]]) -> None:
        self._plan = plan
        self._turns = turns
        crossings = Crossings(plan)
        self._incoming, self._outgoing = crossings.received, crossings.sent
        self._needs = _needs(plan, crossings)
        self._num_uses = _num_uses(plan, crossings)
        self._free_at = dict.fromkeys(turns, 0)
        """When each worker is free, and its next action."""
        self._next: dict[PlanWorker, Action] = {}
        self._waiting: dict[Result, list[PlanWorker]] = {}
        """The workers that wait for a result, and those that have reached a reduction."""
        self._met: dict[tuple[ReduceGroup, tuple[PlanWorker, ...]], int] = {}
        self._members: dict[tuple[ReduceGroup, int], tuple[PlanWorker, ...]] = {}
        self._ready: list[tuple[int, int, PlanWorker]] = []
        """Workers that can begin, by time; at equal times later stages come first, so that slots are emptied in time.
        """
        self._done: dict[Result, tuple[int, int]] = {}
        """When each result was ready, and the number of actions that still need it; it is deleted after the last one.
        """
        self._slots: dict[tuple[Passing, bool, PlanWorker, PlanWorker], int] = {}
        """The micro-batch in the slot of each link."""
        for worker in turns:
            self._turn_to_next(worker)

    def state(self, num: int) -> Hashable:
        """Return the state that, with the turns, determines what follows: equal states go on equally.

        Args:
            num: the micro-batch from which the state counts. Versions of reductions and steps are left to the turns.
        """
        now = min(self._free_at.values())

        def counted(action: Action) -> Hashable:
            return (
                action.kind,
                action.stage,
                action.group,
                None if action.micro_batch is None else action.micro_batch - num,
            )

        def named(result: Result) -> Hashable:
            return result[0], result[1], None if result[2] is None else result[2] - num

        return (
            frozenset((worker, at - now) for worker, at in self._free_at.items()),
            frozenset((worker, counted(action)) for worker, action in self._next.items()),
            frozenset((named(result), frozenset(workers)) for result, workers in self._waiting.items()),
            frozenset(self._met.items()),
            frozenset((named(result), at - now, uses) for result, (at, uses) in self._done.items()),
            frozenset((link, b - num) for link, b in self._slots.items()),
        )

    def go_on(self, stops: Callable[[Action], bool]) -> Iterator[tuple[PlanWorker, Action]]:
        """Yield the workers' actions in order of time, until the next one stops the simulation or none is left.

        Args:
            stops: whether an action must not be done yet.
        """
        while self._ready and not stops(self._next[self._ready[0][2]]):
            yield from self._do_first()

    def go_around(self, stops: Callable[[Action], bool]) -> Iterator[tuple[PlanWorker, Action]]:
        """Yield all actions that are possible without those that stop; workers at such an action wait there.

        Args:
            stops: whether an action must not be done yet.
        """
        behind: list[tuple[int, int, PlanWorker]] = []
        while self._ready:
            if stops(self._next[self._ready[0][2]]):
                behind.append(heapq.heappop(self._ready))
            else:
                yield from self._do_first()
        self._ready = behind  # in order, as they came from the heap

    def leave_out(self, is_left_out: Callable[[Action], bool]) -> None:
        """Let workers whose next action is to be left out turn to the one after it."""
        leaving = {worker for worker, action in self._next.items() if is_left_out(action)}
        self._ready = [entry for entry in self._ready if entry[2] not in leaving]
        heapq.heapify(self._ready)
        waiting = {result: [one for one in them if one not in leaving] for result, them in self._waiting.items()}
        self._waiting = {result: them for result, them in waiting.items() if them}
        for worker in sorted(leaving):
            self._turn_to_next(worker)

    def _do_first(self) -> Iterator[tuple[PlanWorker, Action]]:
        start, _, worker = heapq.heappop(self._ready)
        action = self._next[worker]
        if action.group is not None:
            yield from self._meet(worker, action.group, start)
            return
        yield from self._compute(worker, action)
        self._free_at[worker] = start + UNITS.get(action.kind, 0)
        self._finish(worker, action)
        self._turn_to_next(worker)

    def check_done(self) -> None:
        """Check that no worker waits.

        Raises:
            ScheduleInvalid: a worker waits for ever.
        """
        if not self._next:
            return
        waits = [f"worker {worker} at {action}" for worker, action in sorted(self._next.items())]
        worker, action = min(self._next.items())
        raise ScheduleInvalid(
            f"the order of the schedule lets workers wait for each other for ever: {listed(waits, _NUM_SHOWN)}; "
            f"something that they need comes later on the worker that makes it",
            action=str(action),
            worker=str(worker),
        )

    def _turn_to_next(self, worker: PlanWorker) -> None:
        action = self._turns[worker]()
        if action is None:
            self._next.pop(worker, None)
        else:
            self._next[worker] = action
            self._look(worker, action)

    def _look(self, worker: PlanWorker, action: Action) -> None:
        """Make a worker ready if all results that it needs exist, or else record which one it waits for."""
        start = self._free_at[worker]
        for kind, stage in self._needs.get((action.kind, action.stage), ()):
            result = (kind, stage, action.micro_batch)
            found = self._done.get(result)
            if found is None:
                self._waiting.setdefault(result, []).append(worker)
                return
            start = max(start, found[0])
        heapq.heappush(self._ready, (start, -worker.group, worker))

    def _compute(self, worker: PlanWorker, action: Action) -> Iterator[tuple[PlanWorker, Action]]:
        """Yield an action with its receives before it and its sends after it."""
        key, b, gradient = (action.kind, action.stage), action.micro_batch, action.kind is not ActionKind.FORWARD
        for passing in self._incoming.get(key, ()):
            assert b is not None
            sender = self._plan.worker_of(passing.source, b)
            if self._slots.get((passing, gradient, sender, worker)) == b:
                yield worker, self._receive(passing, gradient, sender, worker)
        yield worker, action
        for passing in self._outgoing.get(key, ()):
            assert b is not None
            receiver = self._plan.worker_of(passing.target, b)
            if (passing, gradient, worker, receiver) in self._slots:
                yield receiver, self._receive(passing, gradient, worker, receiver)
            self._slots[passing, gradient, worker, receiver] = b
            yield (
                worker,
                Action(ActionKind.SEND, passing.source, worker.replica, b, edge=passing.tensor, peer=passing.target),
            )

    def _receive(self, passing: Passing, gradient: bool, sender: PlanWorker, receiver: PlanWorker) -> Action:
        b = self._slots.pop((passing, gradient, sender, receiver))
        return Action(ActionKind.RECEIVE, passing.target, receiver.replica, b, edge=passing.tensor, peer=passing.source)

    def _finish(self, worker: PlanWorker, action: Action) -> None:
        """Wake the workers that wait for an action's result, and delete results that no action needs any more."""
        b = action.micro_batch
        for kind, stage in self._needs.get((action.kind, action.stage), ()):
            at, num_uses = self._done.pop((kind, stage, b))
            if num_uses > 1:
                self._done[kind, stage, b] = (at, num_uses - 1)
        if (made := _MADE.get(action.kind)) is None:
            return
        num_uses = self._num_uses[made, action.stage]
        if action.kind is ActionKind.BACKWARD:
            num_uses -= 1  # no W will use it
        if num_uses:
            self._done[made, action.stage, b] = (self._free_at[worker], num_uses)
        for other in self._waiting.pop((made, action.stage, b), ()):
            self._look(other, self._next[other])

    def _meet(self, worker: PlanWorker, group: ReduceGroup, start: int) -> Iterator[tuple[PlanWorker, Action]]:
        """Yield a reduction when its last member has reached it."""
        self._free_at[worker] = start
        if (everyone := self._members.get((group, worker.group))) is None:
            everyone = self._members[group, worker.group] = members(self._plan, worker, group)
        num_here = self._met.pop((group, everyone), 0) + 1
        if num_here < len(everyone):
            self._met[group, everyone] = num_here
            return
        for member in everyone:
            yield member, self._next[member]
        for member in everyone:
            self._free_at[member] = start
            self._turn_to_next(member)


def _nothing_stops(action: Action) -> bool:
    return False


_NUM_SHOWN = 8
_MADE = {
    ActionKind.FORWARD: ActionKind.FORWARD,
    ActionKind.BACKWARD: ActionKind.BACKWARD,
    ActionKind.INPUT_GRADIENT: ActionKind.BACKWARD,
}


def _needs(plan: Plan, crossings: Crossings) -> dict[tuple[ActionKind, int], list[tuple[ActionKind, int]]]:
    """For each action of a stage, the results that it needs before it can begin."""
    found: dict[tuple[ActionKind, int], list[tuple[ActionKind, int]]] = {}
    for stage in range(len(plan.stages)):
        before = sorted({passing.source for passing in crossings.received[ActionKind.FORWARD, stage]})
        behind = sorted({passing.source for passing in crossings.received[ActionKind.BACKWARD, stage]})
        found[ActionKind.FORWARD, stage] = [(ActionKind.FORWARD, source) for source in before]
        found[ActionKind.RECOMPUTE, stage] = [(ActionKind.FORWARD, stage)]
        found[ActionKind.BACKWARD, stage] = [
            (ActionKind.FORWARD, stage),
            *((ActionKind.BACKWARD, source) for source in behind),
        ]
        found[ActionKind.INPUT_GRADIENT, stage] = found[ActionKind.BACKWARD, stage]
        found[ActionKind.WEIGHT_GRADIENT, stage] = [(ActionKind.BACKWARD, stage)]
    return found


def _num_uses(plan: Plan, crossings: Crossings) -> dict[tuple[ActionKind, int], int]:
    """The number of actions that need the result of each forward, and of each split backward."""
    found: dict[tuple[ActionKind, int], int] = {}
    for stage in plan.stages:
        forwards = {passing.target for passing in crossings.sent[ActionKind.FORWARD, stage.id]}
        backwards = {passing.target for passing in crossings.sent[ActionKind.BACKWARD, stage.id]}
        found[ActionKind.FORWARD, stage.id] = len(forwards) + 1 + stage.recompute
        found[ActionKind.BACKWARD, stage.id] = len(backwards) + 1
    return found
