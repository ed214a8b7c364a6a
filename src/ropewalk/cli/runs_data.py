"""What `ropewalk runs` prints with `--json`, and what it exports: plain values that JSON can represent."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from ropewalk.escaping import escaped, safe_cell
from ropewalk.tracking.run_reports import RunReport

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunRow, RunStore

COLUMNS = ("run", "group", "name", "step", "time", "value")
"""Columns of exported metrics."""


def plain(value: object) -> Any:
    """Return a value with nothing that JSON lacks: NaN is null, and infinities are texts."""
    if isinstance(value, float):
        return None if math.isnan(value) else value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("Sequence[object]", value)]
    return value if isinstance(value, str | int | None) else str(value)


def to_json(value: object, *, indent: int | None = 2) -> str:
    """Return JSON that every reader takes; see `plain`."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def run_json(run: RunRow, metrics: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return a run for programs, with the last values of its metrics if they are given."""
    owner = run.owner and {"host": run.owner.host, "pid": run.owner.pid}
    found = {**{name: getattr(run, name) for name in run.__slots__}, "labels": list(run.labels), "owner": owner}
    return found if metrics is None else {**found, "metrics": dict(metrics)}


def report_json(report: RunReport) -> dict[str, Any]:
    """Return all that a store has of a run, for programs; without the points of its curves."""
    lists = ("series", "attempts", "checkpoints", "artifacts", "events", "notes")
    return {
        **run_json(report.run),
        "facts": report.facts,
        **{name: [asdict(one) for one in getattr(report, name)] for name in lists},
        "children": [child.id for child in report.children],
    }


def points_of(store: RunStore, runs: Iterable[RunRow], group: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield all points of runs, in the order of `COLUMNS`; of one group, or of all for None."""
    for run in runs:
        for series in store.series(run.id):
            if group in (None, series.group):
                points = store.points(run.id, series.name, series.group)
                for row in zip(points.steps.tolist(), points.times.tolist(), points.values.tolist(), strict=True):
                    yield run.id, series.group, series.name, *row


def csv_lines(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the lines of a CSV file; NaN and infinities are written as Python and numpy read them.

    Names are escaped, and are no formulas: they may be of another user of a database, and the file may be printed, or
    opened in a spreadsheet.
    """
    for row in chain([COLUMNS], rows):
        line = io.StringIO()
        cells = (safe_cell(escaped(value)) if isinstance(value, str) else value for value in row)
        csv.writer(line, lineterminator="").writerow(cells)
        yield line.getvalue()


def json_lines(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield a JSON object for each point."""
    return (to_json(dict(zip(COLUMNS, row, strict=True)), indent=None) for row in rows)
