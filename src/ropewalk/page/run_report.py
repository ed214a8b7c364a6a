"""The report of a run or a search of the store: its curves, its configuration, and how it went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.html_table import Cell, StateCell
from ropewalk.page.pictures.curves import curves
from ropewalk.page.report_document import ReportChart, ReportDocument, ReportTable, ReportText
from ropewalk.page.runs.curve_data import CurveReader, CurveRun, CurveView
from ropewalk.page.style import Option, Style
from ropewalk.page.view_report import made_at
from ropewalk.quantities import shown_duration, shown_moment, shown_size
from ropewalk.tracking.records import QUEUED, RUNNING, SYSTEM, TRAINING
from ropewalk.tracking.run_reports import RunReport, flattened
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.rows import RunRow, SeriesRow
from ropewalk.tracking.store.store import RunStore

_MOST_POINTS = 1500
"""Of a curve: more than twice the pixels that it has."""
_MOST_CHARTS = 48
_MOST_CHILDREN = 500
_DECISION = "decision"
"""Kind of the events that are lines of the book of a search; the table of its trials has what they led to."""

Part = ReportChart | ReportTable | ReportText


def run_document(ref: str, where: str | Path | None = None, now: float | None = None) -> ReportDocument:
    """Return the report of a run.

    Args:
        ref: its id, the beginning of it, or its name.
        where: path or URL of the store; None: the setting `store`.
        now: Unix time in seconds; None: of this machine.

    Raises:
        RunNotFound: there is no such run.
        StoreError: the store cannot be read.
    """
    now = time.time() if now is None else now
    with open_store(where, create=False) as store:
        run = store.run(ref)
        report = RunReport.of(store, run)
        charts, system = (_curve_charts(store, report, is_system=is_system) for is_system in (False, True))
    parts, found = _search_parts(run.id, where) if run.kind == "search" else ([], [])
    parts += [*charts, *_tables(report), *system]
    labels = [("labels", ", ".join(run.labels))] if run.labels else []
    attempts = [("attempts", str(len(report.attempts)))] if report.attempts else []
    facts = [
        ("run", run.id), ("project", run.project), ("began", shown_moment(run.created)),
        ("running for" if run.state in (QUEUED, RUNNING) else "took", shown_duration(run.lasted_s(now))),
        *attempts, *found, *labels,
    ]  # fmt: skip
    return ReportDocument(run.name, run.kind, run.state, facts, run.why, made_at(now), parts)


def _search_parts(search: str, where: str | Path | None) -> tuple[list[Part], list[tuple[str, str]]]:
    """Return what a search has beside other runs: pictures and the table of its trials; and facts for the header."""
    from ropewalk.page.search_report import search_charts, trial_table  # searches take 0.7 s to import, and runs do not
    from ropewalk.search.loading import read_results
    from ropewalk.search.store_keeper import lines_of

    with open_store(where, create=False) as store:
        results, lines = read_results(store, search), lines_of(store, search)
    best = next((one for one in results.ranked() if one.best is not None), None)
    facts = [("trials", f"{len(results):,}")]
    if best is not None:
        facts += [(f"best {results.metrics[0]}", f"{best.best:.5g}"), ("best trial", str(best.number))]
    return [*search_charts(results, lines), trial_table(results)], facts


# --- curves -----------------------------------------------------------------------------------------------------------


def _curve_charts(store: RunStore, report: RunReport, *, is_system: bool) -> list[ReportChart]:
    """Return a chart for each metric, in which its groups are lines; those of the training come first."""
    names: dict[str, list[SeriesRow]] = {}
    for series in sorted(report.series, key=lambda one: (one.group != TRAINING, one.group, one.name)):
        if (series.group == SYSTEM) == is_system and (series.count > 1 or not is_system):
            names.setdefault(series.name, []).append(series)
    return [
        ReportChart(
            f"{SYSTEM}/{name}" if is_system else name,
            _option_of(_curve_data(store, report.run, found, is_system=is_system)),
            height=200 if is_system else 240,
        )
        for name, found in list(names.items())[:_MOST_CHARTS]
    ]


def _curve_data(store: RunStore, run: RunRow, found: Sequence[SeriesRow], *, is_system: bool) -> dict[str, Any]:
    lines = [
        (CurveRun(run.id, series.group or "training", run.created, color), series) for color, series in enumerate(found)
    ]
    return CurveReader().chart(store, lines, CurveView(x="time" if is_system else "step"), None, _MOST_POINTS)


def _option_of(data: dict[str, Any]) -> Any:
    def option(style: Style) -> Option:
        return curves(data, style)

    return option


# --- tables -----------------------------------------------------------------------------------------------------------


def _tables(report: RunReport) -> list[Part]:
    settings = flattened(report.run.config)
    parts: list[Part] = [ReportText(f"Note of {shown_moment(note.time)}", note.text) for note in report.notes]
    parts.append(ReportTable("Configuration", ("setting", "value"), [(k, str(v)) for k, v in settings.items()]))
    parts += [_metrics(report), _attempts(report), _checkpoints(report), _artifacts(report), _events(report)]
    parts += [_children(report), *_facts(report)]
    return parts


def _metrics(report: RunReport) -> ReportTable:
    rows = [
        (one.group or "training", one.name, *map(_number, (one.last, one.last_step, one.min, one.max, one.mean)),
         f"{one.count:,}", str(one.num_nan or ""))
        for one in report.series
    ]  # fmt: skip
    head = ("group", "metric", "last", "step", "min", "max", "mean", "points", "NaN")
    more = len(report.series) - _MOST_CHARTS
    help = f"the first {_MOST_CHARTS} are drawn" if more > 0 else ""
    return ReportTable("Metrics", head, rows, frozenset(range(2, 9)), help=help)


def _attempts(report: RunReport) -> ReportTable:
    rows: list[list[Cell]] = []
    for one in report.attempts:
        took = shown_duration(round(one.ended - one.began, 1)) if one.ended is not None else ""
        rows.append(
            [str(one.number), StateCell(one.outcome or "running"), one.host, str(one.pid or ""), _number(one.from_step),
             _number(one.at_step), shown_moment(one.began), took, one.cause.strip()]
        )  # fmt: skip
    head = ("attempt", "outcome", "host", "pid", "from step", "to step", "began", "took", "cause")
    return ReportTable("Attempts", head, rows, frozenset({0, 3, 4, 5}))


def _checkpoints(report: RunReport) -> ReportTable:
    found = report.checkpoints
    rows = [(_number(c.step), shown_size(c.size_bytes), _number(c.score), shown_moment(c.time), c.path) for c in found]
    keys = {1: [float(c.size_bytes) for c in found]}
    return ReportTable("Checkpoints", ("step", "size", "score", "written", "path"), rows, frozenset({0, 1, 2}), keys)


def _artifacts(report: RunReport) -> ReportTable:
    found = report.artifacts
    rows = [(a.name, a.kind, shown_size(a.size_bytes), _number(a.step), a.path) for a in found]
    keys = {2: [float(a.size_bytes) for a in found]}
    return ReportTable("Artifacts", ("name", "kind", "size", "step", "path"), rows, frozenset({2, 3}), keys)


def _events(report: RunReport) -> ReportTable:
    told = [one for one in reversed(report.events) if one.kind != _DECISION]
    rows = [(shown_moment(one.time), one.kind, one.text) for one in told]
    return ReportTable("Events", ("time", "kind", "what happened"), rows, help="the latest first")


def _children(report: RunReport) -> ReportTable:
    if report.run.kind == "search":  # its trials have a table of their own
        return ReportTable("Runs that belong to it", (), ())
    shown = report.children[:_MOST_CHILDREN]
    rows: list[list[Cell]] = [
        [one.id, one.name, one.kind, StateCell(one.state), shown_moment(one.created), one.why] for one in shown
    ]
    more = len(report.children) - len(shown)
    help = f"and {more} more" if more else ""
    return ReportTable("Runs that belong to it", ("id", "name", "kind", "state", "began", "why"), rows, help=help)


def _facts(report: RunReport) -> list[Part]:
    """Return what is known of code, host and packages; texts of several lines, such as a difference, by themselves."""
    flat = {name: str(value) for name, value in flattened(report.facts).items()}
    long = {name: text for name, text in flat.items() if "\n" in text.strip()}
    rows = [(name, text) for name, text in flat.items() if name not in long]
    facts: list[Part] = [ReportTable("Code, host and packages", ("fact", "value"), rows)]
    return [*facts, *(ReportText(name, text) for name, text in long.items())]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


__all__ = ["run_document"]
