"""The position of a run after a number of micro-batches, without its actions; agrees with `stream.position`."""

from __future__ import annotations

from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut


def is_empty(position: Cut) -> bool:
    """Whether a drain at this position would have nothing to do."""
    return not position.num_since and not position.num_accumulated


def behind(plan: Plan, schedule: Schedule, position: Cut, num: int, *, drains: bool) -> Cut:
    """Return the position after `num` more micro-batches and, if `drains`, a drain."""
    if schedule.flushes:
        position = position.behind_step(schedule.accumulate) if num else position
        return position.behind_update() if drains and position.num_accumulated else position
    num_since = position.num_since + num
    if not drains:
        return Cut(position.num_before, num_since, position.versions)
    rounds = (-(-num_since // schedule.round_size(plan, stage.id)) for stage in plan.stages)
    versions = tuple(version + more for version, more in zip(position.versions, rounds, strict=True))
    return Cut(position.num_before + num_since, 0, versions)
