"""Schedules by name, one file each.

Who brings another hands it over itself, or lists it with `register_schedule` or by an entry point of the group
`ropewalk.schedules`.
"""

from __future__ import annotations

from typing import Any

from ropewalk.errors import ScheduleInvalid
from ropewalk.families import Family
from ropewalk.pipeline.schedules.gpipe import GPipe
from ropewalk.pipeline.schedules.interleaved import Interleaved
from ropewalk.pipeline.schedules.one_f_one_b import OneFOneB
from ropewalk.pipeline.schedules.pipedream import PipeDream
from ropewalk.pipeline.schedules.pipedream_2bw import PipeDream2BW
from ropewalk.pipeline.schedules.schedule import Schedule, Task
from ropewalk.pipeline.schedules.streams import ActionStream
from ropewalk.pipeline.schedules.zb_h1 import ZeroBubbleH1
from ropewalk.pipeline.schedules.zb_h2 import ZeroBubbleH2
from ropewalk.pipeline.schedules.zb_v import ZeroBubbleV

#: Every schedule by its name; the conformance suite runs over all of them.
SCHEDULES: Family[type[Schedule]] = Family(
    "schedule",
    {
        kind.name: kind
        for kind in (GPipe, OneFOneB, PipeDream, PipeDream2BW, Interleaved, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV)
    },
    group="ropewalk.schedules",
    unknown=ScheduleInvalid,
    added_by="register_schedule",
)


def make_schedule(wanted: str | Schedule, **options: Any) -> Schedule:
    """Make a schedule from its name and options, or take an object that is one already.

    Raises:
        ScheduleInvalid: no schedule has this name, or it has no such option; says which there are.
    """
    if isinstance(wanted, Schedule):
        if options:
            raise ScheduleInvalid(f"{wanted!r} is configured already; it takes no {', '.join(options)}")
        return wanted
    return SCHEDULES.make(wanted, options)


def register_schedule(kind: type[Schedule]) -> type[Schedule]:
    """List a schedule under its `name`, for plans and the command line; usable as a decorator.

    Raises:
        ScheduleInvalid: another schedule has this name.
    """
    SCHEDULES.add(kind.name, kind)
    return kind


__all__ = ["SCHEDULES", "ActionStream", "Schedule", "Task", "make_schedule", "register_schedule"]
