"""Partitioners, one file each: where to cut a model, and on how many devices to run each piece.

A third party's partitioner is any object with `partition(request)`: hand it over as it
is, or give it a name with `register_partitioner`, or by an entry point of the group
`ropewalk.partitioners`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
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


def _ours(module: str, name: str) -> Callable[..., Partitioner]:
    """Import a partitioner when it is asked for: some need numpy."""

    def make(**options: Any) -> Partitioner:
        return getattr(import_module(f"ropewalk.pipeline.partitioners.{module}"), name)(**options)

    return make


#: What makes each partitioner, by its name.
PARTITIONERS: Family[Callable[..., Partitioner]] = Family(
    "partitioner",
    {
        "exact": _ours("exact", "Exact"),
        "balanced": _ours("balanced", "Balanced"),
        "pipedream": _ours("pipedream", "PipeDreamPartitioner"),
        "fixed": _ours("fixed", "Fixed"),
    },
    group="ropewalk.partitioners",
    unknown=PlanInvalid,
    added_by="register_partitioner",
)


def register_partitioner(name: str, make: Callable[..., Partitioner]) -> None:
    """Give a partitioner a name for `make_partitioner`, `plan(...)` and the command line.

    Raises:
        PlanInvalid: the name is taken.
    """
    PARTITIONERS.add(name, make)


def make_partitioner(which: str | Partitioner, **options: Any) -> Partitioner:
    """The partitioner of this name, made with these options; an object that has `partition` is returned as it is.

    Raises:
        PlanInvalid: no partitioner has this name, or options come with an object.
    """
    if not isinstance(which, str):
        if not callable(getattr(which, "partition", None)):
            raise PlanInvalid(f"{which!r} is no partitioner: it has no method partition(request)")
        if options:
            raise PlanInvalid(f"{which!r} is made already; give {', '.join(sorted(options))} where it is made")
        return which
    return PARTITIONERS.member(which)(**options)
