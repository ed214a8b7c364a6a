"""Pictures of what populations found, by matplotlib: archives, schedules, lineages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy_names import lazy_names

if TYPE_CHECKING:
    from ropewalk.population.pictures.heat_map import draw_heat_map
    from ropewalk.population.pictures.lineage import draw_lineage
    from ropewalk.population.pictures.schedule import draw_schedule

_HOMES = {"draw_heat_map": "heat_map", "draw_lineage": "lineage", "draw_schedule": "schedule"}

__all__ = ["draw_heat_map", "draw_lineage", "draw_schedule"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, {"matplotlib": "population"})
