"""Filters of columns, as AG Grid writes them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ropewalk.page.runs.row_filters import passes


def text(kind: str, given: str = "") -> dict[str, Any]:
    return {"filterType": "text", "type": kind, "filter": given}


def number(kind: str, given: float | None = None, to: float | None = None) -> dict[str, Any]:
    return {"filterType": "number", "type": kind, "filter": given, "filterTo": to}


@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        (text("contains", "OTT"), "brisk-otter", True),
        (text("notContains", "ott"), "brisk-otter", False),
        (text("equals", "Adam"), "adam", True),
        (text("notEqual", "adam"), "sgd", True),
        (text("startsWith", "br"), "brisk", True),
        (text("endsWith", "br"), "brisk", False),
        (text("contains", "x"), None, False),
        (text("blank"), None, True),
        (text("notBlank"), "", False),
        (number("equals", 3), 3.0, True),
        (number("notEqual", 3), None, True),
        (number("greaterThan", 3), 3, False),
        (number("greaterThanOrEqual", 3), 3, True),
        (number("lessThan", 3), 2, True),
        (number("lessThanOrEqual", 3), 4, False),
        (number("inRange", 1, 2), 1.5, True),
        (number("inRange", 1, 2), 2.5, False),
        (number("lessThan", 3), math.nan, False),
        (number("lessThan", 3), None, False),
        (number("blank"), math.nan, True),
        (number("lessThan"), 3, True),
        (text("unheard of", "x"), "y", True),
    ],
)
def test_a_value_passes_a_filter(model: dict[str, Any], value: object, expected: bool) -> None:
    assert passes(model, value) is expected


def test_two_conditions_are_joined() -> None:
    conditions = [number("greaterThan", 1), number("lessThan", 3)]
    assert passes({"operator": "AND", "conditions": conditions}, 2)
    assert not passes({"operator": "AND", "conditions": conditions}, 4)
    assert passes({"operator": "OR", "conditions": conditions}, 4)
