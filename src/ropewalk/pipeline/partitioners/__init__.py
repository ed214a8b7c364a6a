"""Partitioners, one file each: they choose where to cut a model, and on how many devices to run each stage.

A third party's partitioner is any object with `partition(request)`. Pass the object itself,
or register a name for it with `register_partitioner` or by an entry point of the group
`ropewalk.partitioners`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ropewalk.errors import PlanInvalid
from ropewalk.families import Family
from ropewalk.pipeline.partitioners.partitioner import CostedSchedule, Partition, Partitioner, PlanRequest

__all__ = [
    "PARTITIONERS",
    "CostedSchedule",
    "Partition",
    "Partitioner",
    "PlanRequest",
    "make_partitioner",
    "register_partitioner",
]


_HERE = "ropewalk.pipeline.partitioners"

PARTITIONERS: Family[Callable[..., Partitioner] | str] = Family(
    "partitioner",
    {
        "exact": f"{_HERE}.exact:Exact",
        "balanced": f"{_HERE}.balanced:Balanced",
        "pipedream": f"{_HERE}.pipedream:PipeDreamPartitioner",
        "fixed": f"{_HERE}.fixed:Fixed",
    },
    group="ropewalk.partitioners",
    unknown=PlanInvalid,
    added_by="register_partitioner",
)
"""What makes each partitioner, by its name; a text is imported at its first use, since some need numpy."""


def register_partitioner(name: str, make: Callable[..., Partitioner]) -> None:
    """Register a partitioner under a name for `make_partitioner`, `plan(...)` and the command line.

    Args:
        name: the name.
        make: makes the partitioner from its options.

    Raises:
        PlanInvalid: the name is taken, or a class has another one.
    """
    PARTITIONERS.add(name, make)


def make_partitioner(which: str | Partitioner, **options: Any) -> Partitioner:
    """Make a partitioner from its name and options; a partitioner object is returned unchanged.

    Args:
        which: a name, or an object with the method `partition`.
        options: arguments of the partitioner; only with a name.

    Raises:
        PlanInvalid: no partitioner has this name or such an option, the object has no `partition`, or options come with
            an object.
    """
    if not isinstance(which, str) and not callable(getattr(which, "partition", None)):
        raise PlanInvalid(f"{which!r} is not a partitioner: it has no method partition(request)")
    return PARTITIONERS.of(which, options, object)
