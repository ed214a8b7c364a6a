"""Partitioners and schedules that installed packages add, by entry points.

The groups are `ropewalk.partitioners` and `ropewalk.schedules`; an entry is a name and
`module:Class`.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any, Literal

from ropewalk.errors import PlanInvalid


def installed(family: Literal["partitioners", "schedules"]) -> dict[str, importlib.metadata.EntryPoint]:
    """What packages of others add to a family, by name; nothing is imported."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=f"ropewalk.{family}")}


def load(entry: importlib.metadata.EntryPoint) -> Any:
    """The class behind an entry.

    Raises:
        PlanInvalid: it cannot be imported; says which entry, and why.
    """
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise PlanInvalid(f"{entry.name!r} of {entry.group} cannot be loaded from {entry.value}: {error}") from error
