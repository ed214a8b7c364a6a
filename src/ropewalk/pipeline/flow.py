"""Checks action lists for deadlock: whether all can be performed to their ends with one slot for each link.

A Send waits until the slot of its link is empty, a Receive until its micro-batch is in the
slot, a Reduce until all its members have reached it. Every worker that can go on does so,
and there is never a choice between actions. So the outcome depends neither on the order in
which workers are advanced, nor on time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.updates import members
from ropewalk.quantities import listed

_NUM_SHOWN = 8


def standstill_of(plan: Plan, actions: Mapping[PlanWorker, Sequence[Action]]) -> tuple[PlanWorker, int, str] | None:
    """Find a worker that cannot go on.

    Args:
        plan: the plan that the lists belong to.
        actions: the actions of each worker, in order.

    Returns:
        The worker, the index in its list, and a text that says which worker waits for what; None if all workers
        reach the ends of their lists.
    """
    flow = _Flow(plan, actions)
    moved = True
    while moved:
        moved = False
        for worker in plan.workers:
            moved = flow.advance(worker) or moved
    stuck = [worker for worker in plan.workers if flow.at[worker] < len(actions[worker])]
    if not stuck:
        return None
    waits = [f"worker {worker} at {actions[worker][flow.at[worker]]} for {flow.waits_for(worker)}" for worker in stuck]
    return stuck[0], flow.at[stuck[0]], f"is never done, for workers wait for each other: {listed(waits, _NUM_SHOWN)}"


class _Flow:
    """The position of each worker in its list; the order in which workers are advanced does not change the outcome."""

    def __init__(self, plan: Plan, actions: Mapping[PlanWorker, Sequence[Action]]) -> None:
        self.plan, self.actions = plan, actions
        self.at = dict.fromkeys(plan.workers, 0)
        self.members: dict[tuple[ReduceGroup, int], tuple[PlanWorker, ...]] = {}
        self.slots: dict[tuple[str | None, int, int, PlanWorker, PlanWorker], int] = {}
        """For each link (tensor, from stage, to stage, from replica, to replica) the micro-batch in its slot."""

    def advance(self, worker: PlanWorker) -> bool:
        """Advance a worker as far as possible; return whether it performed any action."""
        start, row = self.at[worker], self.actions[worker]
        while self.at[worker] < len(row) and self._perform(worker, row[self.at[worker]]):
            pass
        return self.at[worker] > start

    def _perform(self, worker: PlanWorker, action: Action) -> bool:
        if action.kind is ActionKind.REDUCE:
            everyone = self._members(worker, action)
            if any(not self._is_at(other, action) for other in everyone):
                return False
            for other in everyone:
                self.at[other] += 1
            return True
        if action.kind is ActionKind.SEND:
            assert action.micro_batch is not None
            if self._link(action) in self.slots:
                return False
            self.slots[self._link(action)] = action.micro_batch
        elif action.kind is ActionKind.RECEIVE:
            if self.slots.get(self._link(action)) != action.micro_batch:
                return False
            del self.slots[self._link(action)]
        self.at[worker] += 1
        return True

    def waits_for(self, worker: PlanWorker) -> str:
        action = self.actions[worker][self.at[worker]]
        if action.kind is ActionKind.REDUCE:
            others = [str(other) for other in self._members(worker, action) if not self._is_at(other, action)]
            return f"worker {others[0]} to take part"
        assert action.peer is not None and action.micro_batch is not None
        peer, full = self.plan.worker_of(action.peer, action.micro_batch), self.slots.get(self._link(action))
        if action.kind is ActionKind.SEND:
            return f"worker {peer} to receive micro-batch {full}, which fills the slot"
        return f"worker {peer} to send it" + ("" if full is None else f"; micro-batch {full} fills the slot")

    def _link(self, action: Action) -> tuple[str | None, int, int, PlanWorker, PlanWorker]:
        assert action.peer is not None and action.micro_batch is not None
        ends = (action.stage, action.peer) if action.kind is ActionKind.SEND else (action.peer, action.stage)
        sender, receiver = (self.plan.worker_of(stage, action.micro_batch) for stage in ends)
        return action.edge, *ends, sender, receiver

    def _members(self, worker: PlanWorker, action: Action) -> tuple[PlanWorker, ...]:
        assert action.group is not None
        key = (action.group, worker.group)
        if key not in self.members:
            self.members[key] = members(self.plan, worker, action.group)
        return self.members[key]

    def _is_at(self, worker: PlanWorker, action: Action) -> bool:
        """Whether a worker has reached the same reduction; each stage has its own reductions over replicas."""
        row, at = self.actions[worker], self.at[worker]
        if at == len(row) or (row[at].kind, row[at].group, row[at].version) != (
            action.kind,
            action.group,
            action.version,
        ):
            return False
        return action.group is not ReduceGroup.REPLICAS or row[at].stage == action.stage
