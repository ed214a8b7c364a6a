"""What `ropewalk runs` shows to people: tables and sparklines, as text for logs and with colours for a terminal.

Names, labels, notes and causes come from processes, and are escaped. Those of several lines are indented, so that none
of their lines looks like one of ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ropewalk.escaping import escaped, escaped_lines
from ropewalk.last_line import last_line
from ropewalk.quantities import counted, shown_duration, shown_moment, shown_size
from ropewalk.sparkline import sparkline
from ropewalk.text_table import text_table
from ropewalk.tracking.records import BEST_TRIAL
from ropewalk.tracking.run_reports import Comparison, RunReport, flattened

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunRow

SPARK_WIDTH = 32
"""Characters of a curve."""
_STATES = {
    "running": "green", "done": "", "failed": "bold red", "lost": "bold red", "paused": "yellow", "queued": "cyan",
    "stopped": "yellow",
}  # fmt: skip
_FEW_METRICS = 3
"""How many metrics a list shows, unless they are named."""
_LAST_EVENTS = 12
_FOLDED_FROM = 24
"""Columns of a terminal that a cell always gets; only a longer one is folded."""
_MOST_FACTS = 8
_MOST_CHARACTERS = 60
"""Longest value of a setting that is shown as a whole."""


def number(value: float | None) -> str:
    """Return a number with five digits; "-" if there is none."""
    if value is None:
        return "-"
    return str(value) if not math.isfinite(value) else f"{value:.5g}"


# --- lists ------------------------------------------------------------------------------------------------------------

_Rows = tuple[list[tuple[str, ...]], set[int]]
"""Rows with their heading, and which columns are numbers."""
Part = tuple[str, str | _Rows]
"""A part of a report with its heading: a text, or the rows of a table."""


def list_rows(
    runs: Sequence[RunRow],
    metrics: Mapping[str, Mapping[str, float]],
    names: Sequence[str],
    now: float,
    users: Mapping[str, str] | None = None,
) -> _Rows:
    """Return the rows of a list of runs.

    Args:
        runs: the runs.
        metrics: last values of their metrics, by run and name.
        names: metrics with a column of their own; without any, a column shows the first ones of each run.
        now: seconds since the epoch.
        users: who began them, by run, for a column of its own at the end.
    """
    head = ("id", "name", "project", "kind", "state", "begun", "took")
    last = ("labels", "user") if users else ("labels",)
    rows: list[tuple[str, ...]] = [(*head, *(map(escaped, names) if names else ["metrics"]), *last)]
    for run in runs:
        found = metrics.get(run.id, {})
        some = [f"{escaped(name)} {number(found[name])}" for name in sorted(found, key=_plain_first)[:_FEW_METRICS]]
        values = [number(found.get(name)) for name in names] or [" ".join(some)]
        facts = (run.id, run.name, run.project, run.kind, run.state)
        times = shown_moment(run.created), shown_duration(run.lasted_s(now))
        who = [escaped(users[run.id])] if users else []
        rows.append((*map(escaped, facts), *times, *values, escaped(", ".join(run.labels)), *who))
    return rows, {6, *(range(7, 7 + len(names)) if names else ())}


def _plain_first(name: str) -> tuple[bool, str]:
    return "/" in name, name


def as_text(rows: _Rows) -> str:
    """Return rows for logs and files."""
    return "\n".join(text_table(rows[0], right=rows[1]))


def as_table(rows: _Rows) -> RenderableType:
    """Return rows for a terminal; on one that is too narrow for a table they are lines, so that ids stay whole."""
    return _FittingTable(rows)


@dataclass(frozen=True, slots=True)
class _FittingTable:
    """Rows that find out how wide the terminal is when they are printed."""

    rows: _Rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(cell_len, column)) for column in zip(*self.rows[0], strict=True)]
        needed = sum(min(width, _FOLDED_FROM) + 2 for width in widths)
        yield Text(as_text(self.rows)) if needed > options.max_width else self._table(widths)

    def _table(self, widths: Sequence[int]) -> Table:
        (head, *body), right = self.rows
        table = Table(box=None, padding=(0, 1), header_style="dim")
        for number, (heading, width) in enumerate(zip(head, widths, strict=True)):
            justify = "right" if number in right else "left"
            table.add_column(Text(heading), justify=justify, overflow="fold", min_width=min(width, _FOLDED_FROM))
        for row in body:
            table.add_row(*(Text(cell, style=_STATES.get(cell, "")) for cell in row))
        return table


# --- one run ----------------------------------------------------------------------------------------------------------


def show_parts(report: RunReport, now: float, more: Sequence[Part] = ()) -> Iterator[Part]:
    """Yield the parts of a report, those of `more` after the metrics."""
    run = report.run
    yield "", "\n".join(_headlines(report, now))
    if run.config:
        settings = flattened(run.config).items()
        yield "config", ([("setting", "value"), *((escaped(k), _short(v)) for k, v in settings)], set[int]())
    if report.series:
        yield "metrics", (_series_rows(report), {3, 4, 5, 6, 7})
    yield from more
    if report.attempts:
        yield "attempts", (_attempt_rows(report), {0, 3, 4})
        if traced := [one for one in report.attempts if "\n" in one.cause.strip()]:
            yield f"cause of attempt {traced[-1].number}", escaped_lines(traced[-1].cause.rstrip())
    if report.checkpoints:
        rows = [(f"{c.step:g}", shown_size(c.size_bytes), number(c.score), shown_moment(c.time), escaped(c.path))
                for c in report.checkpoints]  # fmt: skip
        yield "checkpoints", ([("step", "size", "score", "written", "path"), *rows], {0, 1, 2})
    if report.artifacts:
        rows = [(escaped(a.name), escaped(a.kind), shown_size(a.size_bytes), number(a.step), escaped(a.path))
                for a in report.artifacts]  # fmt: skip
        yield "artifacts", ([("name", "kind", "size", "step", "path"), *rows], {2, 3})
    if report.events:
        told = [e for e in report.events if e.text]  # decisions of a search are for its replay, and have no words
        lines = [f"{shown_moment(e.time)}  {escaped(e.kind)}: {escaped(e.text)}" for e in told[-_LAST_EVENTS:]]
        others = [f"{num} more"] if (num := len(told) - len(lines)) else []
        others += [f"{counted(num, 'decision')} of the search"] if (num := len(report.events) - len(told)) else []
        yield "events", "\n".join([f"{' and '.join(others)}: --json shows all", *lines] if others else lines)
    for note in report.notes:
        yield f"note, {shown_moment(note.time)}", escaped_lines(note.text)


def _headlines(report: RunReport, now: float) -> Iterator[str]:
    run, facts = report.run, report.facts
    yield escaped(f"{run.id}  {run.name}  ({run.kind} of {run.project})")
    why = f": {run.why}" if run.why else ""
    why = _indented(escaped_lines(why)).lstrip(" ")
    yield f"{run.state} since {shown_moment(run.changed)}{', archived' if run.archived else ''}{why}"
    yield f"begun {shown_moment(run.created)}, {shown_duration(run.lasted_s(now))}"
    if run.owner:
        yield escaped(f"process {run.owner.pid} on {run.owner.host}, last heard {shown_moment(run.heard)}")
    if run.labels:
        yield escaped(f"labels: {', '.join(run.labels)}")
    if run.parent:
        step = "" if run.parent_step is None else f", forked at step {run.parent_step:g}"
        yield escaped(f"parent: {run.parent}{step}")
    if report.children:
        counts: dict[str, int] = {}
        for child in report.children:
            counts[child.state] = counts.get(child.state, 0) + 1
        states = ", ".join(f"{num} {state}" for state, num in sorted(counts.items()))
        yield f"runs that belong to it: {states} (ropewalk runs list --parent {escaped(run.id)})"
    if run.folder:
        yield escaped(f"folder: {run.folder}")
    shown = {name: value for name, value in facts.items() if value != {} and not _is_long(value)}
    for name, value in flattened(shown).items():
        yield escaped(f"{name}: {_short(value)}")


def _is_long(value: object) -> bool:
    """Whether a fact is too long for an overview, such as the list of all packages."""
    return isinstance(value, Mapping) and len(cast("Mapping[str, Any]", value)) > _MOST_FACTS


def _short(value: object) -> str:
    """Return a value as one line that is not long."""
    text = " ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
    return escaped(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}...")


def _series_rows(report: RunReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("group", "name", "curve", "last", "step", "min", "max", "mean", "points")]
    for one in report.series:
        curve = sparkline(report.curves.get((one.group, one.name), []), SPARK_WIDTH)
        numbers = (one.last, one.last_step, one.min, one.max, one.mean)
        if report.run.kind == "search" and one.name == BEST_TRIAL:
            curve, numbers = "", (one.last, one.last_step, None, None, None)
        count = f"{one.count}{f' ({one.num_nan} NaN)' if one.num_nan else ''}"
        rows.append((escaped(one.group), escaped(one.name), curve, *map(number, numbers), count))
    return rows


def _attempt_rows(report: RunReport) -> list[tuple[str, ...]]:
    rows = [("attempt", "outcome", "host", "pid", "from step", "begun", "took", "cause")]
    for one in report.attempts:
        took = "" if one.ended is None else shown_duration(one.lasted_s(one.ended))
        last = last_line(one.cause)  # the exception of a traceback
        rows.append(
            (str(one.number), escaped(one.outcome or "running"), escaped(one.host), str(one.pid or "-"),
             f"{one.from_step:g}", shown_moment(one.began), took, _short(last))
        )  # fmt: skip
    return rows


def show_text(report: RunReport, now: float, more: Sequence[Part] = ()) -> str:
    """Return a report for logs and files."""
    blocks: list[str] = []
    for heading, part in show_parts(report, now, more):
        text = part if isinstance(part, str) else as_text(part)
        blocks.append(f"{heading}\n{_indented(text)}" if heading else text)
    return "\n\n".join(blocks)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def show_table(report: RunReport, now: float, more: Sequence[Part] = ()) -> RenderableType:
    """Return a report for a terminal."""
    blocks: list[RenderableType] = []
    for heading, part in show_parts(report, now, more):
        if heading:
            blocks.append(Text(f"\n{heading}", style="bold"))
        if isinstance(part, str):
            blocks.append(Text(_indented(part) if heading else part))
        else:
            blocks.append(as_table(part))
    return Group(*blocks)


# --- several runs -----------------------------------------------------------------------------------------------------


def compare_rows(comparison: Comparison) -> _Rows:
    """Return the rows of a comparison: one for each setting that differs and each metric, one column for each run."""
    runs = comparison.runs
    rows = [("", *(escaped(run.id) for run in runs)), ("name", *(escaped(run.name) for run in runs))]
    rows.append(("state", *(run.state for run in runs)))
    rows += [(escaped(name), *map(_cell, values)) for name, values in comparison.config.items()]
    rows += [(escaped(name), *map(number, values)) for name, values in comparison.metrics.items()]
    return rows, set(range(1, len(runs) + 1))


def _cell(value: Any) -> str:
    return "-" if value is None else number(value) if isinstance(value, float) else _short(value)
