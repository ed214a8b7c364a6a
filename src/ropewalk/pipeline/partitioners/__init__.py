"""Partitioners, one file each: they choose where to cut a model, and on how many devices to run each stage.

A third party's partitioner is any object with `partition(request)`. Pass the object itself,
or register a name for it with `register_partitioner` or by an entry point of the group
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
    """Import a partitioner at its first use, since some need numpy."""

    def make(**options: Any) -> Partitioner:
        return getattr(import_module(f"ropewalk.pipeline.partitioners.{module}"), name)(**options)

    return make


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
"""The function or class that makes each partitioner, by its name."""


def register_partitioner(name: str, make: Callable[..., Partitioner]) -> None:
    """Register a partitioner under a name for `make_partitioner`, `plan(...)` and the command line.

    Args:
        name: the name.
        make: makes the partitioner from its options.

    Raises:
        PlanInvalid: the name is taken.
    """
    PARTITIONERS.add(name, make)


def make_partitioner(which: str | Partitioner, **options: Any) -> Partitioner:
    """Make a partitioner from its name and options; a partitioner object is returned unchanged.

    Args:
        which: a name, or an object with the method `partition`.
        options: arguments of the partitioner; only with a name.

    Raises:
        PlanInvalid: no partitioner has this name, the object has no `partition`, or options come with an object.
    """
    if not isinstance(which, str):
        if not callable(getattr(which, "partition", None)):
            raise PlanInvalid(f"{which!r} is not a partitioner: it has no method partition(request)")
        if options:
            raise PlanInvalid(f"{which!r} is made already; give {', '.join(sorted(options))} where it is made")
        return which
    return PARTITIONERS.member(which)(**options)
