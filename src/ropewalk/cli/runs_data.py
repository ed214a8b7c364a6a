"""What `ropewalk runs` prints with `--json`, and what it exports: plain values that JSON can represent."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import (
        ArtifactRow,
        AttemptRow,
        CheckpointRow,
        EventRow,
        NoteRow,
        RunRow,
        RunStore,
        SeriesRow,
    )

COLUMNS = ("run", "group", "name", "step", "time", "value")
"""Columns of exported metrics."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """All that a store has of a run, but the points of its curves."""

    run: RunRow
    facts: dict[str, Any]
    series: list[SeriesRow]
    attempts: list[AttemptRow]
    checkpoints: list[CheckpointRow]
    artifacts: list[ArtifactRow]
    events: list[EventRow]
    notes: list[NoteRow]
    children: list[RunRow]
    curves: dict[tuple[str, str], list[float]] = field(default_factory=dict[tuple[str, str], list[float]])
    """Some values of each series, by group and name, to draw them."""

    @classmethod
    def of(cls, store: RunStore, run: RunRow, num_drawn: int = 0) -> RunReport:
        """Read the report of a run.

        Args:
            store: the store.
            run: the run.
            num_drawn: how many values of each series to read for its curve.
        """
        series = store.series(run.id)
        curves: dict[tuple[str, str], list[float]] = {}
        for one in series if num_drawn else []:
            points = store.points(run.id, one.name, one.group, max_points=num_drawn)
            curves[one.group, one.name] = points.values.tolist()
        return cls(
            run,
            store.facts(run.id),
            series,
            store.attempts(run.id),
            store.checkpoints(run.id),
            store.artifacts(run.id),
            store.events(run.id),
            store.notes(run.id),
            store.children(run.id),
            curves,
        )


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several runs beside each other.

    Attributes:
        runs: the runs.
        config: values of each setting that differs, by dotted name, one for each run; None where a run lacks it.
        metrics: last values of each metric, one for each run; None where a run lacks it.
    """

    runs: list[RunRow]
    config: dict[str, list[Any]]
    metrics: dict[str, list[float | None]]

    @classmethod
    def of(cls, runs: list[RunRow], last: Mapping[str, Mapping[str, float]], *, everything: bool) -> Comparison:
        """Compare runs.

        Args:
            runs: the runs.
            last: last values of their metrics, by run and name.
            everything: also settings that all of them have in common.
        """
        flat = [flattened(run.config) for run in runs]
        names = dict.fromkeys(name for one in flat for name in one)
        config = {name: [one.get(name) for one in flat] for name in names}
        if not everything:
            config = {name: values for name, values in config.items() if any(v != values[0] for v in values[1:])}
        measured = sorted({name for run in runs for name in last[run.id]})
        return cls(runs, config, {name: [last[run.id].get(name) for run in runs] for name in measured})

    def to_json(self) -> dict[str, Any]:
        """Return the comparison for programs."""
        runs = [{"id": run.id, "name": run.name, "state": run.state} for run in self.runs]
        return {"runs": runs, "config": self.config, "metrics": self.metrics}


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name.

    Example:
        >>> flattened({"lr": 0.1, "model": {"depth": 2, "act": {}}})
        {'lr': 0.1, 'model.depth': 2, 'model.act': {}}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def points_of(store: RunStore, runs: Iterable[RunRow], group: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield all points of runs, in the order of `COLUMNS`; of one group, or of all for None."""
    for run in runs:
        for series in store.series(run.id):
            if group in (None, series.group):
                points = store.points(run.id, series.name, series.group)
                for row in zip(points.steps.tolist(), points.times.tolist(), points.values.tolist(), strict=True):
                    yield run.id, series.group, series.name, *row


def csv_lines(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the lines of a CSV file; NaN and infinities are written as Python and numpy read them."""
    for row in chain([COLUMNS], rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(row)
        yield line.getvalue()


def json_lines(rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """Yield a JSON object for each point."""
    return (to_json(dict(zip(COLUMNS, row, strict=True)), indent=None) for row in rows)
