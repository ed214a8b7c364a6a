"""The actions of a plan whose timeline shows the rate in the long run: of one step, or of enough micro-batches."""

from __future__ import annotations

from math import lcm

from ropewalk.pipeline.actions import Action
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.resuming import round_of
from ropewalk.pipeline.schedules import Schedule

_ROUNDS = 12
"""Micro-batches for each worker, without a flush: until the pipeline has long been full."""
_UPDATES = 3
"""Updates of each stage, without a flush: `Timeline.step_s` looks at the second half, which then has a whole one."""


def steady_actions(plan: Plan, schedule: Schedule) -> dict[PlanWorker, list[Action]]:
    """Return the actions of one step or, without a flush, of enough micro-batches to show the steady rate.

    The plan itself stays as it is: under `pipedream_2bw` a step of more micro-batches would have fewer updates.

    Args:
        plan: the plan to run.
        schedule: its schedule.

    Raises:
        ScheduleInvalid: the plan is out of the schedule's range.
    """
    if schedule.flushes:
        return schedule.actions(plan)
    largest = max(schedule.round_size(plan, stage.id) for stage in plan.stages)
    num = max(plan.micro_batches, _ROUNDS * len(plan.workers), _UPDATES * largest)
    period = lcm(round_of(plan, schedule), *(stage.replicas for stage in plan.stages))
    if period < num:
        num = max(num, 2 * period + 1)  # the second half has a whole period
    return schedule.actions(plan, num_micro_batches=num)
