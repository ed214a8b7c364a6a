"""Where a run is behind what was admitted, without its actions: what `stream.position` says in the stage processes."""

from __future__ import annotations

from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut


def is_empty(position: Cut) -> bool:
    """Whether a drain there would have nothing to do."""
    return not position.num_since and not position.num_accumulated


def behind(plan: Plan, schedule: Schedule, position: Cut, num: int, *, drains: bool) -> Cut:
    """The position behind so many more micro-batches, and perhaps a drain."""
    if schedule.flushes:
        position = position.behind_step(schedule.accumulate) if num else position
        return position.behind_update() if drains and position.num_accumulated else position
    num_since = position.num_since + num
    if not drains:
        return Cut(position.num_before, num_since, position.versions)
    rounds = (-(-num_since // schedule.round_size(plan, stage.id)) for stage in plan.stages)
    versions = tuple(version + more for version, more in zip(position.versions, rounds, strict=True))
    return Cut(position.num_before + num_since, 0, versions)
