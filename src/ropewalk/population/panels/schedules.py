"""The panel "schedules": with which hyperparameters each member of a population was trained, and what came of it."""

from __future__ import annotations

from typing import Any

from ropewalk.control.columns import finite
from ropewalk.population.algorithms.pbt_history import History

MOST_INTERVALS = 5000
"""Intervals in one answer; the next one goes on after them."""


def schedules_panel(history: History, cursor: int = 0) -> dict[str, Any]:
    """Return the intervals after a cursor, in the order in which they ended.

    The form is `{"cursor": number of intervals so far, "left": number of intervals after those, "member": [...],
    "start": [...], "end": [...], "score": [...], "donor": [...], "values": {name: [...]}}`. Lists are of one length, at
    most 5000: with more, `left` is not 0, and the next answer goes on. `start` and `end` are steps. `donor` is the
    member whose state the interval began with, if that is another one, and -1 if it went on from its own: there the
    member's line jumps from the donor's. Values are numbers, texts or booleans.

    Args:
        history: of the run; another thread may append to it.
        cursor: that of the last answer, or 0.
    """
    num = len(history)
    chosen = range(max(0, cursor), min(num, max(0, cursor) + MOST_INTERVALS))
    found = [history.stretch(place) for place in chosen]
    names = list(found[0].hyperparameters) if found else []
    parents = [history.parent(place) for place in chosen]
    donors = [
        history.member(parent) if parent >= 0 else each.member for parent, each in zip(parents, found, strict=True)
    ]
    return {
        "cursor": chosen.stop if found else min(cursor, num),
        "left": num - chosen.stop if found else 0,
        "member": [each.member for each in found],
        "start": [each.steps for each in found],
        "end": [each.end for each in found],
        "score": [finite(each.score) for each in found],
        "donor": [-1 if donor == each.member else donor for donor, each in zip(donors, found, strict=True)],
        "values": {name: [shown(each.hyperparameters.get(name)) for each in found] for name in names},
    }


def shown(value: object) -> float | str | bool | None:
    """Return a hyperparameter as JSON has it: a number, a text or a boolean; other values as text."""
    if isinstance(value, bool | str) or value is None:
        return value
    return finite(value) if isinstance(value, int | float) else str(value)


__all__ = ["MOST_INTERVALS", "schedules_panel", "shown"]
