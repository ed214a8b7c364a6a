"""Facts of a view in words: the key says the unit, `tasks_per_s: 93.2` is shown as "tasks/s" and "93.2"."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ropewalk.escaping import escaped
from ropewalk.quantities import shown_duration, shown_size

_SHARES = frozenset({"goodput", "utilization", "bubble"})


def shown_facts(facts: Mapping[str, float | int | str]) -> list[tuple[str, str]]:
    """Return the facts as pairs of a label and a value, without control characters.

    Example:
        >>> shown_facts({"tasks_per_s": 93.21, "peak_memory_bytes": 2**31, "goodput": 0.971, "mode": "threads"})
        [('tasks/s', '93.2'), ('peak memory', '2.0 GiB'), ('goodput', '97.1 %'), ('mode', 'threads')]
    """
    return [_shown(escaped(name), value) for name, value in facts.items()]


def shown_number(value: float) -> str:
    """Format a number with three digits, and separators between thousands.

    Example:
        >>> [shown_number(value) for value in (0.01234, 93.21, 1234.5, 7, 1234567, float("nan"))]
        ['0.0123', '93.2', '1,234', '7', '1,234,567', 'nan']
    """
    if isinstance(value, int) or (math.isfinite(value) and abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _shown(name: str, value: float | int | str) -> tuple[str, str]:
    if isinstance(value, str):
        return name.replace("_", " "), escaped(value)
    for ending, unit in (("_bytes_per_s", shown_size), ("_bytes", shown_size)):
        if name.endswith(ending):
            rate = "/s" if ending == "_bytes_per_s" else ""
            return _words(name, ending), f"{unit(value)}{rate}"
    if name.endswith("_per_s"):
        return f"{_words(name, '_per_s')}/s", shown_number(value)
    if name.endswith("_s"):
        return _words(name, "_s"), shown_duration(value)
    if name in _SHARES or name.endswith(("_share", "_fraction")):
        return name.replace("_", " "), f"{100 * value:.3g} %"
    return _words(name, ""), shown_number(value)


def _words(name: str, ending: str) -> str:
    return name.removesuffix(ending).removeprefix("num_").replace("_", " ")


__all__ = ["shown_facts", "shown_number"]
