"""The end of a round of micro-batches: the reductions of gradients between workers, then the step.

    A0v1/tied       with all workers that hold a copy of a parameter tied across stages: its gradients are summed
    A0v1/replicas   with the other replicas of the stage: all its other gradients
    A0v1/norm       with all workers, on request: for clipping by the global norm and for skipping steps with NaN
    U0v1            the step, which makes version 1

A worker has one tied and one norm reduction, named after the first of its stages that takes
part, and one reduction over replicas and one step for each of its stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.plans import Plan, PlanWorker


def update(plan: Plan, worker: PlanWorker, versions: Sequence[int], *, norm: bool = False) -> list[Action]:
    """Return the reductions and steps that end a round at a worker.

    Args:
        plan: its stages and ties decide which reductions there are.
        worker: the worker.
        versions: for each stage of the plan, the version that the step makes.
        norm: whether to reduce the global norm before the step.
    """
    stages = plan.groups[worker.group]
    tied = sorted(_tied_stages(plan).intersection(stages))
    found: list[Action] = []

    def add(kind: ActionKind, stage: int, group: ReduceGroup | None = None) -> None:
        found.append(Action(kind, stage, worker.replica, version=versions[stage], group=group))

    if tied:
        add(ActionKind.REDUCE, tied[0], ReduceGroup.TIED)
    for stage in stages:
        if plan.stages[stage].replicas > 1:
            add(ActionKind.REDUCE, stage, ReduceGroup.REPLICAS)
    if norm:
        add(ActionKind.REDUCE, stages[0], ReduceGroup.NORM)
    for stage in stages:
        add(ActionKind.STEP, stage)
    return found


def members(plan: Plan, worker: PlanWorker, group: ReduceGroup) -> tuple[PlanWorker, ...]:
    """Return the workers that take part in a reduction of a worker, including itself; they wait for each other.

    Args:
        plan: the plan of the workers.
        worker: the worker.
        group: the kind of reduction.
    """
    if group is ReduceGroup.REPLICAS:
        return tuple(other for other in plan.workers if other.group == worker.group)
    if group is ReduceGroup.NORM:
        return plan.workers
    together = {worker.group}
    ties = [{plan.placement[stage] for stage in tie.stages} for tie in plan.tied]
    while grown := [tie for tie in ties if tie & together and not tie <= together]:
        together.update(*grown)
    return tuple(other for other in plan.workers if other.group in together)


def concerned(plan: Plan, worker: PlanWorker, action: Action) -> set[int]:
    """Return the stages of a worker whose gradients a reduction or step uses."""
    stages = set(plan.groups[worker.group])
    if action.group is ReduceGroup.TIED:
        return stages & _tied_stages(plan)
    return stages if action.group is ReduceGroup.NORM else {action.stage}


def is_after(one: Action, other: Action) -> bool:
    """Return whether `one` must come after `other` at the same stage: sums, then the norm, then the step."""
    return _rank(one) > _rank(other)


def _rank(action: Action) -> int:
    return 2 if action.kind is ActionKind.STEP else int(action.group is ReduceGroup.NORM)


def _tied_stages(plan: Plan) -> set[int]:
    return {stage for tie in plan.tied for stage in tie.stages}
