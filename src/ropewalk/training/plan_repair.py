"""Changes a plan when there are fewer processes than before, or when a stage is to have more replicas.

    a stage has other replicas       ──▶  without_workers: it goes on with those, which do all micro-batches
    a stage has no process any more  ──▶  merged: a neighbour takes over its operators
    processes are too few            ──▶  for_fewer: merged, until there are enough
    more replicas are wanted         ──▶  with_replicas

All functions are pure. `schedule.check` says whether the resulting plan can run under a schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.plans import Edge, Plan, PlanWorker, Stage, Tie


def without_workers(plan: Plan, lost: Collection[PlanWorker]) -> Plan | None:
    """Return the plan without some replicas; None if a stage would have none left."""
    kept: dict[int, tuple[int, ...]] = {}
    for stage in plan.stages:
        group = plan.placement[stage.id]
        kept[stage.id] = tuple(
            device for replica, device in enumerate(stage.devices) if PlanWorker(group, replica) not in lost
        )
        if not kept[stage.id]:
            return None
    return _on(plan, kept)


def with_replicas(plan: Plan, stage: int, replicas: int) -> Plan:
    """Return the plan with `replicas` replicas of a stage, and of stages on its devices; new replicas get new devices.

    Args:
        plan: not changed.
        stage: the id of the stage.
        replicas: the number of replicas that it shall have, at least 1.

    Raises:
        PlanInvalid: there is no such stage, or it would have no replicas.
    """
    if not 0 <= stage < len(plan.stages):
        raise PlanInvalid(f"there is no stage {stage}; the plan has stages 0 to {len(plan.stages) - 1}")
    if replicas < 1:
        raise PlanInvalid(f"stage {stage} needs at least 1 replica, not {replicas}")
    devices = plan.stages[stage].devices[:replicas]
    first_free = 1 + max(device for one in plan.stages for device in one.devices)
    devices += tuple(range(first_free, first_free + replicas - len(devices)))
    return _on(plan, dict.fromkeys(plan.groups[plan.placement[stage]], devices))


def merged(plan: Plan, lost: int) -> Plan:
    """Return the plan with the operators of a stage given to the neighbour that has fewer; of equal ones, to the first.

    Args:
        plan: a plan with one stage for each group of devices.
        lost: the id of the stage to remove.

    Raises:
        PlanInvalid: stages share workers, or there is no other stage.
    """
    if len(plan.groups) != len(plan.stages):
        raise PlanInvalid(
            f"stages {plan.groups[plan.placement[lost]]} share the worker that was lost, and cannot be merged with "
            f"neighbours under a schedule that places several stages on each worker"
        )
    if len(plan.stages) == 1:
        raise PlanInvalid("the only stage of the plan was lost, and there is no other to take over")
    neighbours = [stage for stage in (lost - 1, lost + 1) if 0 <= stage < len(plan.stages)]
    heir = min(neighbours, key=lambda stage: (len(plan.stages[stage].operators), stage))
    first = min(lost, heir)

    def number(stage: int) -> int:
        return stage if stage <= first else stage - 1

    before, after = plan.stages[first], plan.stages[first + 1]
    one = Stage(
        first,
        before.operators + after.operators,
        plan.stages[heir].devices,
        before.recompute or after.recompute,
    )
    stages = [one if stage.id == first else replace(stage, id=number(stage.id)) for stage in plan.stages
              if stage.id != first + 1]  # fmt: skip
    edges: list[Edge] = []
    for edge in plan.edges:
        source = number(edge.source)
        targets = tuple(sorted({number(target) for target in edge.targets} - {source}))
        if targets:
            edges.append(replace(edge, source=source, targets=targets))
    ties: list[Tie] = []
    for tie in plan.tied:
        holders = tuple(sorted({number(stage) for stage in tie.stages}))
        if len(holders) > 1:
            ties.append(replace(tie, stages=holders))
    return Plan(tuple(stages), tuple(edges), tuple(ties), plan.schedule, plan.micro_batches)


def for_fewer(plan: Plan, before: Plan, gone: Collection[PlanWorker], num: int) -> Plan:
    """Return the plan with stages merged, as far as needed for `num` processes.

    Args:
        plan: a plan with one stage for each group of devices.
        before: the plan whose workers are gone; it has the same stages.
        gone: those workers; their stages are given to neighbours.
        num: the number of processes that there are.

    Raises:
        PlanInvalid: stages cannot be merged.
    """
    for group in sorted({worker.group for worker in gone}, reverse=True):  # once, however many replicas it had
        if len(plan.workers) > num:
            for stage in reversed(before.groups[group]):
                plan = merged(plan, stage)
    return plan


def _on(plan: Plan, devices: Mapping[int, tuple[int, ...]]) -> Plan:
    stages = tuple(replace(stage, devices=devices.get(stage.id, stage.devices)) for stage in plan.stages)
    return Plan(stages, plan.edges, plan.tied, plan.schedule, plan.micro_batches)
