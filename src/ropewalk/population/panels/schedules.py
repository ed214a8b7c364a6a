"""The panel "schedules": with which hyperparameters each member of a population was trained, and what came of it."""

from __future__ import annotations

from typing import Any

from ropewalk.control.columns import finite
from ropewalk.population.algorithms.pbt_history import History

MOST_INTERVALS = 5000
"""Intervals in one answer; the next one goes on after them."""


def schedules_panel(history: History, cursor: int = 0) -> dict[str, Any]:
    """Return the intervals after a cursor, in the order in which they ended.

    The form is `{"cursor": number of intervals so far, "left": number of intervals after those, "intervals":
    [{"member", "start", "end", "score", "donor", "values": {name: value}}]}`. There are at most 5000 intervals: with
    more, `left` is not 0, and the next answer goes on. `start` and `end` are steps. `donor` is the member whose state
    the interval began with, if that is another one, and -1 if it went on from its own: there the member's line jumps
    from the donor's. Values are numbers, texts or booleans.

    Args:
        history: of the run; another thread may append to it.
        cursor: that of the last answer, or 0.
    """
    num = len(history)
    first = min(max(0, cursor), num)
    end = min(num, first + MOST_INTERVALS)
    return {"cursor": end, "left": num - end, "intervals": [_interval(history, place) for place in range(first, end)]}


def _interval(history: History, place: int) -> dict[str, Any]:
    trained, parent = history.stretch(place), history.parent(place)
    before = history.member(parent) if parent >= 0 else trained.member
    return {
        "member": trained.member,
        "start": trained.steps,
        "end": trained.end,
        "score": finite(trained.score),
        "donor": -1 if before == trained.member else before,
        "values": {name: shown(value) for name, value in trained.hyperparameters.items()},
    }


def shown(value: object) -> float | str | bool | None:
    """Return a hyperparameter as JSON has it: a number, a text or a boolean; other values as text."""
    if isinstance(value, bool | str) or value is None:
        return value
    return finite(value) if isinstance(value, int | float) else str(value)


__all__ = ["MOST_INTERVALS", "schedules_panel", "shown"]
