"""Filters of columns, in the form in which AG Grid has them: https://www.ag-grid.com/javascript-data-grid/filter-api/.

A filter has a type, such as "contains" or "greaterThan", and one or two values; or two such conditions joined by "AND"
or "OR".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

_OF_TEXT: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda own, given: given in own,
    "notContains": lambda own, given: given not in own,
    "equals": lambda own, given: own == given,
    "notEqual": lambda own, given: own != given,
    "startsWith": lambda own, given: own.startswith(given),
    "endsWith": lambda own, given: own.endswith(given),
}
_OF_NUMBERS: dict[str, Callable[[float, float, float], bool]] = {
    "equals": lambda own, given, _: own == given,
    "notEqual": lambda own, given, _: own != given,
    "greaterThan": lambda own, given, _: own > given,
    "greaterThanOrEqual": lambda own, given, _: own >= given,
    "lessThan": lambda own, given, _: own < given,
    "lessThanOrEqual": lambda own, given, _: own <= given,
    "inRange": lambda own, given, end: given <= own <= end,
}


def passes(model: Mapping[str, Any], value: object) -> bool:
    """Return whether a value passes a filter; a filter of an unknown type lets everything pass."""
    conditions = model.get("conditions")
    if isinstance(conditions, list):
        results = [passes(one, value) for one in cast("list[Mapping[str, Any]]", conditions)]
        return any(results) if model.get("operator") == "OR" else all(results)
    kind = str(model.get("type"))
    is_blank = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
    if kind in ("blank", "notBlank"):
        return is_blank == (kind == "blank")
    if model.get("filterType") == "number":
        return _passes_number(model, kind, value)
    check = _OF_TEXT.get(kind)
    given = str(model.get("filter") or "").lower()
    return check is None or check("" if value is None else str(value).lower(), given)


def _passes_number(model: Mapping[str, Any], kind: str, value: object) -> bool:
    check = _OF_NUMBERS.get(kind)
    given, end = model.get("filter"), model.get("filterTo")
    if check is None or not isinstance(given, int | float) or (kind == "inRange" and not isinstance(end, int | float)):
        return True
    if not isinstance(value, int | float):
        return kind == "notEqual"
    try:
        own = float(value)
    except OverflowError:  # an integer that is greater than all floats
        own = math.inf if value > 0 else -math.inf
    if math.isnan(own):
        return kind == "notEqual"
    return check(own, float(given), float(end) if isinstance(end, int | float) else math.inf)


__all__ = ["passes"]
