"""Which rows of the table of runs a browser sees, and in which order: text, filters, groups and sorting; pure.

rows ──▶ filter ──▶ group ──▶ sort ──▶ the browser gets the block that it shows
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.page.runs.row_filters import passes

CONFIG, METRIC = "config.", "metric."
"""How the names of settings and metrics begin in a row."""
Row = dict[str, Any]
"""A row of the table: values by id of the column."""


@dataclass(frozen=True, slots=True)
class TableQuery:
    """What a browser wants to see of the table.

    Attributes:
        text: only rows in which all of its words are, in any case of letters.
        filters: model of the filter of each column; see `row_filters`.
        sort: columns to sort by, each with whether it is descending.
        group: column to group by; "" for none.
        opened: values of the groups whose rows are shown.
        archived: whether archived runs are shown, and not the others.
        trials: whether trials of searches are shown, too.
    """

    text: str = ""
    filters: Mapping[str, Any] | None = None
    sort: tuple[tuple[str, bool], ...] = ()
    group: str = ""
    opened: frozenset[str] = frozenset()
    archived: bool = False
    trials: bool = False


def selected(rows: Sequence[Row], query: TableQuery) -> list[Row]:
    """Return the rows that a query finds, in its order; without one, that of the rows."""
    found = [row for row in rows if _is_wanted(row, query)]
    if not query.group:
        return _ordered(found, query.sort)
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(_text(row.get(query.group)), []).append(row)
    heads = [group_row(value, members, is_open=value in query.opened) for value, members in groups.items()]
    heads.sort(key=lambda head: (-head["num"], head["group"]))
    result: list[Row] = []
    for head in _ordered(heads, query.sort):
        result.append(head)
        if head["is_open"]:
            result += _ordered(groups[head["group"]], query.sort)
    return result


def group_row(value: str, members: Sequence[Row], *, is_open: bool) -> Row:
    """Return the row of a group: how many runs it has, in which states, and the means of its numbers."""
    states = Counter(row["state"] for row in members)
    head: Row = {
        "id": f"group {value}",
        "group": value,
        "num": len(members),
        "is_open": is_open,
        "name": value,
        "state": ", ".join(f"{num} {state}" for state, num in states.most_common()),
        "created": max(row["created"] for row in members),
    }
    names = {name for row in members for name in row if name.startswith((METRIC, CONFIG)) or name == "took"}
    for name in names:
        numbers = [row[name] for row in members if is_number(row.get(name))]
        if numbers and 2 * len(numbers) >= len(members):
            head[name] = math.fsum(number / len(numbers) for number in numbers)  # losses that diverge have great sums
    return head


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can be; an integer may be greater, and is sorted as a text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_wanted(row: Row, query: TableQuery) -> bool:
    if row["archived"] != query.archived:
        return False
    if row["kind"] == "trial" and not query.trials:
        return False
    if query.text and not all(word in _haystack(row) for word in query.text.lower().split()):
        return False
    return all(passes(model, row.get(name)) for name, model in (query.filters or {}).items())


def _haystack(row: Row) -> str:
    words = [str(row[name]) for name in ("id", "name", "project", "kind", "state", "labels", "why", "host")]
    words += [f"{name.removeprefix(CONFIG)}={value}" for name, value in row.items() if name.startswith(CONFIG)]
    return "\n".join(words).lower()


def _ordered(rows: list[Row], sort: Sequence[tuple[str, bool]]) -> list[Row]:
    """Return rows in an order; those without a value come last in both directions."""
    for name, descending in reversed(sort):
        known = [row for row in rows if _has_value(row.get(name))]
        unknown = [row for row in rows if not _has_value(row.get(name))]
        rows = sorted(known, key=lambda row: _sort_key(row[name]), reverse=descending) + unknown
    return rows


def _sort_key(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if is_number(value) else (1, 0.0, _text(value).lower())


def _has_value(value: Any) -> bool:
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


__all__ = ["CONFIG", "METRIC", "Row", "TableQuery", "group_row", "is_number", "selected"]
