"""Figures of population runs, drawn with matplotlib: archives, schedules, lineages."""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals(), {"matplotlib": "population"})

with _lazy:
    from ropewalk.population.pictures.heat_map import draw_heat_map as draw_heat_map
    from ropewalk.population.pictures.lineage import draw_lineage as draw_lineage
    from ropewalk.population.pictures.schedule import draw_schedule as draw_schedule
