"""The query of the table of runs in its address, and its rows as JSON and CSV."""

from __future__ import annotations

import json
import math

from ropewalk.page.runs.table_data import query_of, rows_csv, shortened


def test_an_address_holds_the_whole_query() -> None:
    filters = {"metric.loss": {"filterType": "number", "type": "lessThan", "filter": 1}}
    sort = [{"colId": "metric.loss", "sort": "desc"}, {"colId": "name", "sort": "asc"}]
    given = {"q": "otter", "filters": json.dumps(filters), "sort": json.dumps(sort), "group": "project",
             "open": '["x"]', "trials": "1"}  # fmt: skip
    query = query_of(given)
    assert (query.text, query.filters, query.group, query.opened) == ("otter", filters, "project", frozenset(["x"]))
    assert query.sort == (("metric.loss", True), ("name", False)) and query.trials and not query.archived


def test_what_cannot_be_read_of_an_address_is_left_out() -> None:
    query = query_of({"filters": "{", "sort": '{"a": 1}', "open": "7"})
    assert (query.filters, query.sort, query.opened) == (None, (), frozenset())
    assert query_of({"filters": '{"a": 1}'}).filters is None
    assert query_of({"filters": "[" * 100_000}).filters is None


def test_cells_are_json_and_not_long() -> None:
    row = shortened({"id": "a", "metric.x": math.nan, "why": "x" * 1000})
    assert row["metric.x"] == "nan" and len(row["why"]) < 400


def test_no_cell_of_a_file_is_a_formula() -> None:
    rows = [{"id": "a", "name": "=1+1", "metric.loss": 0.5}, {"id": "group x", "group": "x", "name": "x"}]
    lines = rows_csv(rows, ["id", "name", "metric.loss"]).splitlines()
    assert lines == ["id,name,metric.loss", "a,'=1+1,0.5"]
