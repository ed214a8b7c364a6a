"""Transfers: puts Send and Receive into what workers compute, in an order that cannot deadlock.

A link carries one tensor (or its gradient) of an edge between two workers, and has one
slot: Send waits until the slot is empty, Receive until it is full. Send stands right
after what makes the value, Receive right before what needs it, with one exception: if a
long skip connection would find its slot still full, the receiver empties it early.

    stage 0   F0 S0 F1 S1 F2 S2 ...          S1 would wait for R0, and R0 for F0 of stage 1, which ...
    stage 3   R0 F0 ...                      with early receives S1 finds the slot empty

All workers are played together here, once, with forwards of one unit and backwards of
two. The order in which that happens is an execution with one slot a link, and so a proof
that the lists do not deadlock, whatever the real durations are. Stages that
share a worker pass their tensors in the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, Group, Kind
from ropewalk.pipeline.plans import Plan, Worker
from ropewalk.pipeline.updates import members

#: Units of time of the play; what is not listed takes none.
UNITS = {
    Kind.FORWARD: 1,
    Kind.BACKWARD: 2,
    Kind.INPUT_GRADIENT: 1,
    Kind.WEIGHT_GRADIENT: 1,
    Kind.RECOMPUTE: 1,
}


#: What makes the gradients that are sent.
BACKWARDS = (Kind.BACKWARD, Kind.INPUT_GRADIENT)


class Passing(NamedTuple):
    """One tensor or gradient that passes between two stages for each micro-batch."""

    tensor: str
    source: int
    target: int


class Result(NamedTuple):
    """A value that others wait for."""

    #: F, or B (which I stands for too).
    kind: Kind
    stage: int
    micro_batch: int


class Crossings:
    """What crosses between the stages of a plan, for each stage and each of F, B and I, by other stage and tensor.

    Attributes:
        received: what a stage needs of others before it can do F, B or I.
        sent: what it makes for others.
    """

    def __init__(self, plan: Plan) -> None:
        keys = [(kind, stage.id) for kind in (Kind.FORWARD, *BACKWARDS) for stage in plan.stages]
        self.received: dict[tuple[Kind, int], list[Passing]] = {key: [] for key in keys}
        self.sent: dict[tuple[Kind, int], list[Passing]] = {key: [] for key in keys}
        for edge in plan.edges:
            for target in edge.targets:
                there, back = Passing(edge.tensor, edge.source, target), Passing(edge.tensor, target, edge.source)
                self._add(Kind.FORWARD, there)
                for kind in BACKWARDS if edge.gradient_bytes else ():
                    self._add(kind, back)
        for found in self.received.values():
            found.sort(key=lambda passing: (passing.source, passing.tensor))
        for found in self.sent.values():
            found.sort(key=lambda passing: (passing.target, passing.tensor))

    def _add(self, kind: Kind, passing: Passing) -> None:
        self.sent[kind, passing.source].append(passing)
        self.received[kind, passing.target].append(passing)


def needs(action: Action, incoming: list[Passing]) -> list[Result]:
    """The results without which an action cannot begin."""
    assert action.micro_batch is not None
    kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD
    found = [Result(kind, stage, action.micro_batch) for stage in {passing.source for passing in incoming}]
    if action.kind is Kind.WEIGHT_GRADIENT:
        found.append(Result(Kind.BACKWARD, action.stage, action.micro_batch))
    elif action.kind is not Kind.FORWARD:
        found.append(Result(Kind.FORWARD, action.stage, action.micro_batch))
    return found


def with_transfers(plan: Plan, orders: Mapping[Worker, Iterator[Action]]) -> Iterator[tuple[Worker, Action]]:
    """Play all workers and give their actions, transfers included, in one order in which they can be performed.

    Args:
        plan: whose edges.
        orders: for each worker what it computes, with its reductions and steps; may be endless.

    Raises:
        ScheduleInvalid: the workers wait for each other in a circle.
    """
    return _Play(plan, orders).run()


class _Play:
    """An event loop over all workers."""

    def __init__(self, plan: Plan, orders: Mapping[Worker, Iterator[Action]]) -> None:
        self.plan = plan
        self.orders = orders
        crossings = Crossings(plan)
        self.incoming, self.outgoing = crossings.received, crossings.sent
        #: When each worker is free, what it does next, and whom it waits for.
        self.free_at = dict.fromkeys(orders, 0)
        self.next: dict[Worker, Action] = {}
        self.waiting: dict[Result, list[Worker]] = {}
        self.met: dict[tuple[Group, tuple[Worker, ...]], list[Worker]] = {}
        #: When each result was there, and how many still need it; then it is forgotten.
        self.done: dict[Result, tuple[int, int]] = {}
        #: For each link the micro-batch in its slot.
        self.slots: dict[tuple[Passing, Worker, Worker, bool], int] = {}
        #: Who can begin, by time; of those at the same time first who is further along, to empty slots in time.
        self.ready: list[tuple[int, int, Worker]] = []

    def run(self) -> Iterator[tuple[Worker, Action]]:
        for worker in self.orders:
            self._turn_to_next(worker)
        while self.ready:
            start, _, worker = heapq.heappop(self.ready)
            action = self.next.pop(worker)
            if action.group is not None:
                yield from self._meet(worker, action, start)
            else:
                yield from self._compute(worker, action)
                self.free_at[worker] = start + UNITS.get(action.kind, 0)
                self._finish(worker, action)
                self._turn_to_next(worker)
        if self.next or self.met:
            self._explain()

    def _turn_to_next(self, worker: Worker) -> None:
        action = next(self.orders[worker], None)
        if action is not None:
            self.next[worker] = action
            self._look(worker)

    def _look(self, worker: Worker) -> None:
        """Make a worker ready if all it needs is there, or else remember what it waits for."""
        action, start = self.next[worker], self.free_at[worker]
        for result in self._needs(action):
            if result not in self.done:
                self.waiting.setdefault(result, []).append(worker)
                return
            start = max(start, self.done[result][0])
        heapq.heappush(self.ready, (start, -worker.group, worker))

    def _needs(self, action: Action) -> list[Result]:
        return [] if action.micro_batch is None else needs(action, self.incoming.get((action.kind, action.stage), []))

    def _compute(self, worker: Worker, action: Action) -> Iterator[tuple[Worker, Action]]:
        """An action between its receives and its sends."""
        key, b = (action.kind, action.stage), action.micro_batch
        gradient = action.kind is not Kind.FORWARD
        for passing in self.incoming.get(key, []):
            assert b is not None
            sender = self.plan.worker_of(passing.source, b)
            if self.slots.get((passing, sender, worker, gradient)) == b:
                yield worker, self._receive(passing, sender, worker, gradient)
        yield worker, action
        for passing in self.outgoing.get(key, []):
            assert b is not None
            receiver = self.plan.worker_of(passing.target, b)
            link = (passing, worker, receiver, gradient)
            if link in self.slots:
                yield receiver, self._receive(*link)
            self.slots[link] = b
            yield worker, Action(Kind.SEND, passing.source, worker.replica, b, edge=passing.tensor, peer=passing.target)

    def _receive(self, passing: Passing, sender: Worker, receiver: Worker, gradient: bool) -> Action:
        b = self.slots.pop((passing, sender, receiver, gradient))
        return Action(Kind.RECEIVE, passing.target, receiver.replica, b, edge=passing.tensor, peer=passing.source)

    def _finish(self, worker: Worker, action: Action) -> None:
        """Tell those who wait for what an action made, and forget what nobody needs any more."""
        for result in self._needs(action):
            at, uses = self.done.pop(result)
            if uses > 1:
                self.done[result] = (at, uses - 1)
        if (action.kind, action.stage) not in self.outgoing:
            return
        assert action.micro_batch is not None
        uses = len({passing.target for passing in self.outgoing[action.kind, action.stage]})
        if action.kind is Kind.FORWARD:
            uses += 2 if self.plan.stages[action.stage].recompute else 1
        elif action.kind is Kind.INPUT_GRADIENT:
            uses += 1
        kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD
        result = Result(kind, action.stage, action.micro_batch)
        if uses:
            self.done[result] = (self.free_at[worker], uses)
        for other in self.waiting.pop(result, []):
            self._look(other)

    def _meet(self, worker: Worker, action: Action, start: int) -> Iterator[tuple[Worker, Action]]:
        """A reduction begins when its last member has come."""
        assert action.group is not None
        self.next[worker] = action
        self.free_at[worker] = start
        everyone = members(self.plan, worker, action.group)
        came = self.met.setdefault((action.group, everyone), [])
        came.append(worker)
        if len(came) < len(everyone):
            return
        del self.met[action.group, everyone]
        for member in everyone:
            yield member, self.next.pop(member)
        for member in everyone:
            self.free_at[member] = start
            self._turn_to_next(member)

    def _explain(self) -> None:
        waits = [f"worker {worker} at {action}" for worker, action in sorted(self.next.items())]
        worker, action = min(self.next.items())
        raise ScheduleInvalid(
            f"the order of the schedule lets workers wait for each other for ever: {', '.join(waits[:8])}"
            f"{' ...' if len(waits) > 8 else ''}; something that they need comes later on the worker that makes it",
            action=str(action),
            worker=str(worker),
        )
