"""Schedules by name, one file each.

To use a schedule of your own, pass the object itself, or register its class with `register_schedule` or by an entry
point of the group `ropewalk.schedules`.
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
"""Every schedule by its name; the conformance suite tests all of them."""


def make_schedule(wanted: str | Schedule, **options: Any) -> Schedule:
    """Make a schedule from its name and options; a schedule object is returned unchanged.

    Args:
        wanted: a name, or a schedule.
        options: arguments of the schedule; only with a name.

    Raises:
        ScheduleInvalid: no schedule has this name, the schedule has no such option, or options come with an object;
            the message lists the valid names or options.
    """
    return SCHEDULES.of(wanted, options, Schedule)


def register_schedule(name: str, kind: type[Schedule]) -> None:
    """Register a schedule class under its `name`, for plans and the command line.

    Args:
        name: the name.
        kind: the class.

    Raises:
        ScheduleInvalid: the name is taken, or the class has another one.
    """
    SCHEDULES.add(name, kind)


__all__ = ["SCHEDULES", "ActionStream", "Schedule", "Task", "make_schedule", "register_schedule"]
