"""`ReportDocument`: what a report shows; and its HTML, one file that needs neither a server nor a network.

    header: name, state, facts, last failure
    charts                   options of ECharts, as JSON that is no script
    tables                   sorted by a click on a heading
    ECharts, and a script    the only two scripts that may run: the file's own policy names their digests

All strings are data. In HTML they are escaped; in JSON nothing is left that could end a script element; and where both
failed, the Content-Security-Policy would still let no other script run and nothing be loaded from anywhere.
Source: W3C, Content Security Policy Level 3, sections 2.3.1 (hash sources) and 3.3 (the meta element).
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.html_table import Cell, StateCell, html_lines, html_text, state_dot
from ropewalk.page.report_script import REPORT_SCRIPT, report_css
from ropewalk.page.style import Option, Style

_MOST_CHARACTERS = 2000
"""Of a cell."""
_LONG = 40
"""Cells with more characters are shown in several lines."""


@dataclass(frozen=True, slots=True)
class ReportChart:
    """A picture.

    Attributes:
        title: above it.
        option: makes the option of ECharts in a style.
        height: in pixels.
        help: how to read it.
        wide: whether it takes the whole width.
    """

    title: str
    option: Callable[[Style], Option]
    height: int = 280
    help: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table.

    Attributes:
        title: above it.
        head: the headings.
        rows: the cells of each row.
        right: indices of columns of numbers.
        keys: for columns that are sorted by something else than their text: the number of each row.
        help: a remark below the title.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: frozenset[int] = frozenset()
    keys: Mapping[int, Sequence[float]] | None = None
    help: str = ""


@dataclass(frozen=True, slots=True)
class ReportText:
    """A text of several lines, as it is."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """What a report shows.

    Attributes:
        name: of what it is about.
        kind: of that, in a word.
        state: of that; "" for none.
        facts: pairs of a label and a value, for the header.
        failure: the last one; "".
        made: when the report was made, in words.
        parts: from the top; charts that follow each other stand beside each other, and empty parts are left out.
    """

    name: str
    kind: str
    state: str
    facts: Sequence[tuple[str, str]]
    failure: str
    made: str
    parts: Sequence[ReportChart | ReportTable | ReportText]


def report_html(document: ReportDocument, echarts: str) -> Iterator[str]:
    """Yield the pieces of the file.

    Args:
        document: what it shows.
        echarts: the script that sets `echarts`.
    """
    parts = [_drawn(part) if isinstance(part, ReportChart) else part for part in document.parts]
    charts = [part for part in parts if isinstance(part, _DrawnChart) and part.option]
    title = html_text(f"{document.name} · Ropewalk")
    yield "<!DOCTYPE html>\n"
    yield '<html lang="en"><head><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_policy(echarts, REPORT_SCRIPT))}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<meta name="referrer" content="no-referrer">\n<title>{title}</title>\n'
    yield f"<style>{report_css(Style(False), Style(True))}</style></head>\n<body>\n"
    yield from _header(document)
    yield "<main>\n"
    for is_chart, group in itertools.groupby(parts, lambda part: isinstance(part, _DrawnChart)):
        inside = "".join(itertools.chain.from_iterable(map(_part_html, group)))
        yield f'<div class="charts">\n{inside}</div>\n' if is_chart and inside else inside
    yield f"</main>\n<footer>{html_text(document.made)}</footer>\n"
    data = [{"light": one.option, "dark": one.dark} for one in charts]
    yield f'<script type="application/json" id="charts">{json_in_html(data)}</script>\n'
    yield f"<script>{echarts}</script>\n<script>{REPORT_SCRIPT}</script>\n</body></html>\n"


def json_in_html(value: object) -> str:
    r"""Return JSON for an element `script`, in which no text can end it; what JSON lacks is null.

    Example:
        >>> json_in_html({"a": "</script>", "b": float("nan")})
        '{"a":"\\u003c/script\\u003e","b":null}'
    """
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, default=str)  # U+2028 and others: ASCII
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in cast("Sequence[object]", value)]
    return value


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


# --- charts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DrawnChart:
    """A chart with its option in the light style, and the differences of the dark one."""

    chart: ReportChart
    option: Option
    dark: list[Any] | None


def _drawn(chart: ReportChart) -> _DrawnChart:
    light, dark = chart.option(Style(False)), chart.option(Style(True))
    return _DrawnChart(chart, light, differences(light, dark))


def differences(old: Any, new: Any) -> list[Any] | None:
    """Return what makes one value of JSON from another: most of two options is data, and the same.

    Returns:
        None where they are the same, `["=", value]` for another value, and `["+", {key or index: differences}]`.

    Example:
        >>> differences({"a": [1, 2], "b": 3}, {"a": [1, 5], "b": 3})
        ['+', {'a': ['+', {1: ['=', 5]}]}]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        left, right = cast("dict[str, object]", old), cast("dict[str, object]", new)
        if left.keys() == right.keys():
            return _changes((key, differences(left[key], right[key])) for key in left)
    elif isinstance(old, list) and isinstance(new, list):
        first, second = cast("list[object]", old), cast("list[object]", new)
        if len(first) == len(second):
            pairs = enumerate(zip(first, second, strict=True))
            return _changes((index, differences(*pair)) for index, pair in pairs)
    is_same = old == new or (old != old and new != new)  # NaN is the same as NaN
    return None if is_same else ["=", new]


def _changes(found: Iterator[tuple[str | int, list[Any] | None]]) -> list[Any] | None:
    changed = {key: one for key, one in found if one is not None}
    return ["+", changed] if changed else None


def _part_html(part: _DrawnChart | ReportTable | ReportText) -> Iterator[str]:
    if isinstance(part, _DrawnChart):
        if part.option:
            yield _chart_html(part)
    elif isinstance(part, ReportTable):
        if part.rows:
            yield from _table_html(part)
    elif part.text:
        yield f"<section><h2>{html_text(part.title)}</h2><pre>{html_lines(part.text)}</pre></section>\n"


def _chart_html(one: _DrawnChart) -> str:
    chart = one.chart
    help = f"<span>{html_text(chart.help)}</span>" if chart.help else ""
    save = f'{_csv_button(chart.title)}<button type="button" class="png" title="save as PNG">PNG</button>'
    return (
        f'<section class="{"wide" if chart.wide else "narrow"}"><h2>{html_text(chart.title)}{help}{save}</h2>'
        f'<div class="chart" style="height:{int(chart.height)}px" data-name="{html_text(chart.title)}"></div>'
        "</section>\n"
    )


# --- texts ------------------------------------------------------------------------------------------------------------


def _header(document: ReportDocument) -> Iterator[str]:
    yield f'<header><div class="title"><h1>{html_text(document.name)}</h1><span>{html_text(document.kind)}</span>'
    yield f"<span>{state_dot(document.state)}</span>" if document.state else ""
    yield '<button type="button" id="theme" title="light or dark" aria-label="light or dark">&#9680;</button></div>\n'
    yield '<dl class="facts">'
    for label, value in document.facts:
        yield f"<div><dt>{html_text(label)}</dt><dd>{html_text(value)}</dd></div>"
    yield "</dl>\n"
    yield f'<pre class="failure">{html_lines(document.failure)}</pre>\n' if document.failure else ""
    yield "<noscript>The pictures need JavaScript, which is in this file.</noscript></header>\n"


def _table_html(table: ReportTable) -> Iterator[str]:
    help = f"<span>{html_text(table.help)}</span>" if table.help else ""
    yield f"<section><h2>{html_text(table.title)}{help}{_csv_button(table.title)}</h2>"
    yield '<div class="scroll"><table><thead><tr>'
    for at, name in enumerate(table.head):
        yield f'<th{_right(table, at)} tabindex="0">{html_text(name)}</th>'
    yield "</tr></thead><tbody>\n"
    for number, row in enumerate(table.rows):
        cells = (_cell_html(table, number, at, cell) for at, cell in enumerate(row))
        yield f"<tr>{''.join(cells)}</tr>\n"
    yield "</tbody></table></div></section>\n"


def _csv_button(title: str) -> str:
    return f'<button type="button" class="csv" title="save as CSV" data-name="{html_text(title)}">CSV</button>'


def _right(table: ReportTable, at: int) -> str:
    return ' class="right"' if at in table.right else ""


def _cell_html(table: ReportTable, number: int, at: int, cell: Cell) -> str:
    key = f' data-key="{float(table.keys[at][number])!r}"' if table.keys and at in table.keys else ""
    if isinstance(cell, StateCell):
        return f"<td{key}>{state_dot(cell.state)}</td>"
    text = cell if len(cell) <= _MOST_CHARACTERS else f"{cell[: _MOST_CHARACTERS - 1]}…"
    kind = ' class="long"' if len(text) > _LONG else _right(table, at)
    return f"<td{kind}{key}>{html_lines(text) if len(text) > _LONG else html_text(text)}</td>"


__all__ = ["ReportChart", "ReportDocument", "ReportTable", "ReportText", "differences", "json_in_html", "report_html"]
