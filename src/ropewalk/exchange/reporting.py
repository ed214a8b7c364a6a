"""Costs and effects of an exchange: collected by a `Ledger`, shown as a table or as JSON.

exchange ── phase, sent, note ──▶ Ledger ── finish ──▶ ExchangeReport of the step
                                    └───── report ──▶ ExchangeReport of all steps ──▶ report_table, report_json
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.exchange import ExchangeReport, StepRecord
from ropewalk.exchange.groups.group import Group as MemberGroup
from ropewalk.exchange.observers import Observer
from ropewalk.exchange.traffic import ring_bytes
from ropewalk.quantities import counted, shown_duration, shown_size

_NOTES = 100
"""Number of notes that are kept, the latest ones."""

_LAYERS = 10
"""Number of parameters that a table shows, those with the most bytes sent."""


class _Sums:
    """Sums over a step, or over all steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0
        self.samples = 0.0
        self.all_joined = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self.header_bytes = 0
        self.dense_bytes = 0
        self.num_values = 0
        self.of_values = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.layers: Counter[str] = Counter()
        self.modes: Counter[str] = Counter()
        self.notes: list[str] = []

    def add(self, step: _Sums) -> None:
        self.steps += step.steps
        self.skipped += step.skipped
        self.samples = step.samples
        self.all_joined = step.all_joined
        self.sent_bytes += step.sent_bytes
        self.received_bytes += step.received_bytes
        self.header_bytes += step.header_bytes
        self.dense_bytes += step.dense_bytes
        self.num_values += step.num_values
        self.of_values += step.of_values
        for phase, seconds in step.seconds.items():
            self.seconds[phase] += seconds
        self.layers.update(step.layers)
        self.modes.update(step.modes)
        self.notes = [*self.notes, *step.notes][-_NOTES:]

    def report(self, error_norm: float) -> ExchangeReport:
        return ExchangeReport(
            steps=self.steps,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            header_bytes=self.header_bytes,
            dense_bytes=self.dense_bytes,
            density=self.num_values / self.of_values if self.of_values else 1.0,
            error_norm=error_norm,
            seconds=dict(self.seconds),
            layers=dict(self.layers),
            modes=dict(self.modes),
            notes=tuple(self.notes),
            samples=self.samples,
            skipped=self.skipped,
            all_joined=self.all_joined,
        )


class Ledger(Observer):
    """Adds up what happens in an exchange. Bytes are those that the group counted, those of failed steps included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = _Sums()
        self._step = _Sums()
        self._error_norm = 0.0
        self._layouts: tuple[Layout, ...] = ()
        self._group: MemberGroup | None = None
        self._before = (0, 0, 0, Counter[str]())

    def bind(self, layouts: Sequence[Layout], group: MemberGroup) -> None:
        with self._lock:
            self._layouts = tuple(layouts)
            if group is not self._group:
                self._group = group
                self._before = self._counted()

    def begin(self, record: StepRecord) -> None:
        with self._lock:
            self._total.add(self._close())  # bytes of a step that failed, or between steps

    def phase(self, name: str, bucket: int, began: float, ended: float) -> None:
        with self._lock:
            self._step.seconds[name] += ended - began

    def sent(self, bucket: int, mode: str, num_values: int) -> None:
        with self._lock:
            layout = self._layouts[bucket]
            self._step.modes[mode] += 1
            self._step.num_values += num_values
            self._step.of_values += layout.numel
            self._step.dense_bytes += ring_bytes(layout.size_bytes, self._group.size if self._group else 1)

    def note(self, text: str) -> None:
        with self._lock:
            self._step.notes.append(text)

    def finish(
        self,
        *,
        samples: float,
        skipped: bool = False,
        error_norm: float | None = None,
        all_joined: bool | None = None,
    ) -> ExchangeReport:
        """Close a step that has succeeded.

        Args:
            samples: sum of all members' samples.
            skipped: whether all members skip this step.
            error_norm: Euclidean norm of what compression keeps back; None where it was not measured: the last one
                holds.
            all_joined: whether all members had joined; None where members do not tell, and no samples count as joined.

        Returns:
            The report of this step.
        """
        with self._lock:
            if error_norm is not None:
                self._error_norm = error_norm
            step = self._close()
            step.steps, step.skipped, step.samples = 1, int(skipped), samples
            step.all_joined = samples == 0 if all_joined is None else all_joined
            self._total.add(step)
            return step.report(self._error_norm)

    def report(self) -> ExchangeReport:
        """Return the report of all steps so far."""
        with self._lock:
            return self._total.report(self._error_norm)

    def _close(self) -> _Sums:
        """Return the sums since the last call."""
        step, self._step = self._step, _Sums()
        sent, received, headers, layers = self._counted()
        step.sent_bytes = sent - self._before[0]
        step.received_bytes = received - self._before[1]
        step.header_bytes = headers - self._before[2]
        step.layers = layers - self._before[3]
        self._before = (sent, received, headers, layers)
        return step

    def _counted(self) -> tuple[int, int, int, Counter[str]]:
        if self._group is None:
            return 0, 0, 0, Counter()
        traffic = self._group.traffic
        return traffic.sent_bytes, traffic.received_bytes, traffic.headers_sent, Counter(traffic.layers)


def report_json(report: ExchangeReport) -> str:
    """Return a report as JSON, one entry per field, for logs and dashboards.

    Args:
        report: report of one step or of all.
    """
    return msgspec.json.encode(report).decode()


def print_report(report: ExchangeReport, console: Console | None = None) -> None:
    """Print a report to the terminal, or to `console`.

    Args:
        report: report of one step or of all.
        console: where to print; None for a new console on standard output.
    """
    (console or Console()).print(report_table(report))


def report_table(report: ExchangeReport) -> RenderableType:
    """Return a report as tables: bytes sent against dense, time by phase, and the parameters that sent most.

    Args:
        report: report of one step or of all.
    """
    parts: list[RenderableType] = [_summary(report)]
    if report.seconds:
        parts.append(_times(report))
    if report.layers:
        parts.append(_layers(report))
    parts.extend(Text(f"note: {note}", style="yellow") for note in report.notes[-5:])
    if len(report.notes) > 5:
        parts.append(Text(f"and {len(report.notes) - 5} notes before these", style="dim"))
    return Group(*parts)


def _summary(report: ExchangeReport) -> Table:
    table = Table(
        "", "total", "per step", title=f"Gradient exchange, {counted(report.steps, 'step')}", title_justify="left"
    )
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, size_bytes in (
        ("sent", report.sent_bytes),
        ("received", report.received_bytes),
        ("headers", report.header_bytes),
        ("dense ring all-reduce", report.dense_bytes),
    ):
        table.add_row(name, shown_size(size_bytes), shown_size(size_bytes / max(report.steps, 1)))
    table.add_section()
    for name, value in _facts(report):
        table.add_row(name, value, "")
    return table


def _facts(report: ExchangeReport) -> Iterator[tuple[str, str]]:
    if report.dense_bytes:
        yield "sent against dense", f"{100 * report.sent_bytes / report.dense_bytes:.3g} %"
    yield "components sent", f"{100 * report.density:.3g} %"
    if report.error_norm:
        yield "kept back (norm)", f"{report.error_norm:.3g}"
    if report.modes:
        yield "buckets", ", ".join(f"{count} {mode}" for mode, count in sorted(report.modes.items()))
    if report.skipped:
        yield "skipped", counted(report.skipped, "step")


def _times(report: ExchangeReport) -> Table:
    table = Table(
        "phase", "per step", "share", "", title="Time by phase (phases of buckets overlap)", title_justify="left"
    )
    table.columns[1].justify = table.columns[2].justify = "right"
    whole = sum(report.seconds.values()) or 1.0
    for name, seconds in sorted(report.seconds.items(), key=lambda item: -item[1]):
        bar = "█" * max(1, round(20 * seconds / whole))
        table.add_row(name, shown_duration(seconds / max(report.steps, 1)), f"{100 * seconds / whole:.0f} %", bar)
    return table


def _layers(report: ExchangeReport) -> Table:
    most = sorted(report.layers.items(), key=lambda item: -item[1])
    rest = most[_LAYERS:]
    table = Table("parameter", "sent", "share", title="Who sends most", title_justify="left")
    table.columns[1].justify = table.columns[2].justify = "right"
    whole = sum(report.layers.values()) or 1
    for name, size_bytes in [
        *most[:_LAYERS],
        *([(f"{len(rest)} others", sum(size for _, size in rest))] if rest else []),
    ]:
        table.add_row(name, shown_size(size_bytes), f"{100 * size_bytes / whole:.0f} %")
    return table
