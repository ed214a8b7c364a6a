"""Routes with the rows of the table of runs: as JSON, a block at a time, and as CSV.

GET /data/runs?start=0&end=100&text=...&filters={...}&sort=[...]&group=...&open=[...]
GET /data/runs.csv?...&columns=name,metric.loss
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from fastapi import Response
from nicegui import app, run
from starlette.requests import Request

from ropewalk.escaping import safe_cell
from ropewalk.page.runs.row_selection import Row, TableQuery
from ropewalk.page.runs.run_table import RunTable
from ropewalk.page.runs.store_reader import StoreReader, StoreUnreadable

_MOST_ROWS = 1000
"""Rows of one answer."""
_MOST_CHARACTERS = 300
"""Of one cell; the page of the run shows the whole."""
_HEADERS = {"Cache-Control": "no-store"}


def add_table_routes(reader: StoreReader, table: RunTable) -> None:
    """Serve the rows of a table.

    Args:
        reader: reads the store.
        table: its table of runs.
    """

    @app.get("/data/runs")
    async def rows(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        try:
            found = await _selected(reader, table, request)
        except StoreUnreadable as error:
            return Response(str(error), 503, _HEADERS, "text/plain; charset=utf-8")
        start = _number(request, "start")
        block = found[start : min(_number(request, "end"), start + _MOST_ROWS)]
        content = json.dumps({"rows": [shortened(row) for row in block], "num": len(found)}, allow_nan=False)
        return Response(content, 200, _HEADERS, "application/json")

    @app.get("/data/runs.csv")
    async def as_file(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        try:
            found = await _selected(reader, table, request)
        except StoreUnreadable as error:
            return Response(str(error), 503, _HEADERS, "text/plain; charset=utf-8")
        names = [name for name in request.query_params.get("columns", "").split(",") if name]
        content = await run.io_bound(rows_csv, found, ["id", *(name for name in names if name != "id")])
        return Response(
            content, 200, {**_HEADERS, "Content-Disposition": 'attachment; filename="runs.csv"'}, "text/csv"
        )


async def _selected(reader: StoreReader, table: RunTable, request: Request) -> list[Row]:
    query = query_of(request.query_params)

    def select(store: Any) -> list[Row]:
        if not table.version:
            table.refresh(store)
        return table.select(query)

    return await reader.read(select)


def query_of(given: Mapping[str, str]) -> TableQuery:
    """Return the query of a URL; parts of it that cannot be read are left out."""
    filters, sort, opened = (_json(given.get(name)) for name in ("filters", "sort", "open"))
    return TableQuery(
        text=given.get("q", ""),
        filters=cast("dict[str, Any]", filters) if _is_model(filters) else None,
        sort=tuple(_sorts(sort)),
        group=given.get("group", ""),
        opened=frozenset(map(str, cast("list[Any]", opened))) if isinstance(opened, list) else frozenset(),
        archived=given.get("archived") == "1",
        trials=given.get("trials") == "1",
    )


def rows_csv(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """Return rows as CSV, those of groups left out."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(map(safe_cell, columns))
    for row in rows:
        if "group" not in row:
            writer.writerow([safe_cell(row.get(name, "")) for name in columns])
    return lines.getvalue()


def shortened(row: Row) -> Row:
    """Return a row as JSON can represent it, without long texts."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return f"{value[:_MOST_CHARACTERS]}…"
    return value


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _json(text: str | None) -> object:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _is_model(value: object) -> bool:
    models = cast("dict[str, Any]", value).values() if isinstance(value, dict) else [None]
    return all(isinstance(model, dict) for model in models)


def _sorts(value: object) -> Iterable[tuple[str, bool]]:
    for one in cast("list[Any]", value) if isinstance(value, list) else []:
        if isinstance(one, dict):
            given = cast("dict[str, Any]", one)
            yield str(given.get("colId")), given.get("sort") == "desc"


__all__ = ["add_table_routes", "query_of", "rows_csv", "shortened"]
