"""`RunReport`, all that a store has of a run; and `Comparison`, several runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ropewalk.tracking.store.rows import (
    ArtifactRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    NoteRow,
    RunRow,
    SeriesRow,
)

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking.store.stored_runs import StoredRuns


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
    def of(cls, store: StoredRuns, run: RunRow, num_drawn: int = 0) -> RunReport:
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
