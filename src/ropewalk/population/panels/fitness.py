"""The panel "fitness": how the fitness of each generation is spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.control.columns import columns, places
from ropewalk.population.rows import Row

_NAMES = {
    "generation": "generation",
    "evaluations": "evaluations",
    "worst": "min",
    "lower_quartile": "lower_quartile",
    "median": "median",
    "upper_quartile": "upper_quartile",
    "best": "max",
    "mean": "mean",
    "best_so_far": "best",
    "test": "test",
}
"""Columns of rows by their names in the panel."""


def fitness_panel(rows: Sequence[Row], cursor: int = 0) -> dict[str, Any]:
    """Return the spread of the fitness of each generation after a cursor.

    The form is `{"cursor": number of rows, "generation": [...], "evaluations": [...], "worst": [...],
    "lower_quartile": [...], "median": [...], "upper_quartile": [...], "best": [...], "mean": [...],
    "best_so_far": [...], "test": [...]}`: lists of one length, of at most 2000 generations at equal distances and the
    last. None stands for a value that is infinite, or that a generation does not have, such as a test.

    Args:
        rows: the table of the run; another thread may append to it.
        cursor: that of the last answer, or 0.
    """
    num = len(rows)
    chosen = [rows[place] for place in places(cursor, num)]
    found = columns(chosen, _NAMES.values())
    return {"cursor": num, **{name: found[column] for name, column in _NAMES.items()}}


__all__ = ["fitness_panel"]
