"""`RunTable`: the rows of the table of runs, in memory, and what has changed of them in the store.

The first refresh reads all runs, and the next ones only those that were heard since, or are under way.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ropewalk.last_line import last_line
from ropewalk.page.runs.row_selection import CONFIG, METRIC, Row, TableQuery, selected
from ropewalk.tracking.run_reports import flattened
from ropewalk.tracking.store.rows import LOST, RunRow

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_HEARD_EVERY_S = 12.0
"""A run that has new records was heard within this time; see `RunRow.heard`."""
_MOST_COLUMNS = 200
_USUAL = 4
"""How many columns of metrics, and of settings, are shown unless the user chose."""
_FEW = 100
"""A metric or a setting that this factor fewer runs have than another one is not shown unless the user chose it."""
_TRIALS = 1000
"""A run counts as much as this number of trials, which the table hides unless the user chose, for usual columns."""
_MOVING = ("running", "queued")
"""States of runs that change without a record: they last longer, and become lost. A lost run that goes on is heard."""


@dataclass(frozen=True, slots=True)
class RunColumn:
    """A column of the table.

    Attributes:
        id: begins with `CONFIG` or `METRIC` for settings and metrics.
        name: shown above it.
        is_number: whether its values are numbers.
        is_usual: whether it is shown unless the user chose.
    """

    id: str
    name: str
    is_number: bool = False
    is_usual: bool = True


FIRST_COLUMNS = (
    RunColumn("name", "Name"),
    RunColumn("state", "State"),
    RunColumn("project", "Project"),
    RunColumn("created", "Started", is_number=True),
    RunColumn("took", "Duration", is_number=True),
)
"""The first columns; those of metrics and settings follow."""
LAST_COLUMNS = (
    RunColumn("labels", "Labels"),
    RunColumn("kind", "Kind"),
    RunColumn("why", "Why it ended", is_usual=False),
    RunColumn("host", "Host", is_usual=False),
    RunColumn("parent", "Parent", is_usual=False),
    RunColumn("id", "Id", is_usual=False),
)


class RunTable:
    """The table of all runs of a store; may be used from several threads.

    Args:
        clock: returns the seconds since the epoch.

    Attributes:
        version: another number whenever a row has changed.
        columns: `FIRST_COLUMNS`, metrics and settings with the most frequent ones first, and `LAST_COLUMNS`.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._pulse: tuple[float, ...] = ()
        self._selected: tuple[tuple[TableQuery, int], list[Row]] | None = None
        self.columns: tuple[RunColumn, ...] = (*FIRST_COLUMNS, *LAST_COLUMNS)
        self.version: int = 0

    def refresh(self, store: RunStore) -> int:
        """Read what has changed; returns the version of the table."""
        with self._lock:
            now, pulse = self._clock(), store.pulse()
            is_moving = any(row["state"] in _MOVING for row in self._rows.values())
            if pulse == self._pulse and not is_moving:
                return self.version
            same_runs = pulse[:3] == self._pulse[:3]  # none came, went, or was archived or labelled
            changed = self._read_some(store, now) if same_runs else self._read_all(store, now)
            if len(self._rows) != pulse[0]:  # one came while another one went
                changed = self._read_all(store, now) or changed
            self._pulse = pulse
            self.version += changed
            return self.version

    def _read_all(self, store: RunStore, now: float) -> bool:
        found = store.runs(archived=None, order="-created")
        before = self._rows
        self._rows = {run.id: before.get(run.id, {}) for run in found}
        return self._take(store, found, now) or len(self._rows) != len(before)

    def _read_some(self, store: RunStore, now: float) -> bool:
        heard = self._pulse[-1]  # the latest time at which one was heard: the clock of the store may be another one
        found = store.runs(archived=None, heard_since=heard - _HEARD_EVERY_S)
        asked = {run.id for run in found}
        found += [run for run in store.runs(archived=None, states=(*_MOVING, LOST)) if run.id not in asked]
        return self._take(store, found, now)

    def _take(self, store: RunStore, found: Sequence[RunRow], now: float) -> bool:
        """Take over the rows of runs; returns whether one has changed."""
        last = store.last_values([run.id for run in found], None)
        changed = has_new_names = False
        for run in found:
            before, row = self._rows.get(run.id, {}), row_of(run, last[run.id], now)
            if row != before:
                self._rows[run.id] = row
                changed = True
                has_new_names = has_new_names or row.keys() != before.keys()
        if has_new_names:
            self.columns = columns_of(self._rows.values())
        return changed

    def trial_states(self) -> dict[str, list[str]]:
        """Return the states of the trials of each search, by the id of the search."""
        states: dict[str, list[str]] = {}
        with self._lock:
            for row in self._rows.values():
                if row["kind"] == "trial":
                    states.setdefault(row["parent"], []).append(row["state"])
        return states

    def select(self, query: TableQuery) -> list[Row]:
        """Return all rows that a query finds, in its order; rows of groups have an entry `group`."""
        with self._lock:
            key = (query, self.version)
            if self._selected is None or self._selected[0] != key:
                self._selected = key, selected(list(self._rows.values()), query)
            return self._selected[1]


def row_of(run: RunRow, metrics: Mapping[str, float], now: float) -> Row:
    """Return the row of a run.

    Args:
        run: the run.
        metrics: last values by name.
        now: seconds since the epoch.
    """
    row: Row = {
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "project": run.project,
        "kind": run.kind,
        "labels": ", ".join(run.labels),
        "created": run.created,
        "took": run.lasted_s(now),
        "why": last_line(run.why),
        "host": run.owner.host if run.owner else "",
        "parent": run.parent,
        "archived": run.archived,
    }
    for name, value in flattened(run.config).items():
        row[f"{CONFIG}{name}"] = value if value is None or isinstance(value, int | float | str) else _as_text(value)
    for name, value in metrics.items():
        if not name.startswith("system/"):
            row[f"{METRIC}{name}"] = value
    return row


def _as_text(value: Any) -> str:
    return ", ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)


def columns_of(rows: Iterable[Row]) -> tuple[RunColumn, ...]:
    """Return the columns of rows: those that are always there, then metrics and settings, the most frequent first.

    A setting or a project that all runs have in common is not shown unless the user chose it, and of many settings
    only the first are.
    """
    counts: Counter[str] = Counter()
    numeric: dict[str, bool] = {}
    values: dict[str, Any] = {}
    varied: set[str] = set()
    projects: set[Any] = set()
    for row in rows:
        projects.add(row["project"])
        for name, value in row.items():
            if name.startswith((METRIC, CONFIG)):
                is_own = row["kind"] == "search" and name.startswith(CONFIG)  # those of `Search`, not of a training
                counts[name] += 1 if row["kind"] == "trial" or is_own else _TRIALS
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                numeric[name] = numeric.get(name, True) and is_number
                if values.setdefault(name, value) != value:
                    varied.add(name)
    found = [name for name, _ in counts.most_common(_MOST_COLUMNS)]
    metrics = [name for name in found if name.startswith(METRIC)]
    settings = [name for name in found if name.startswith(CONFIG)]
    frequent = [name for name in metrics if counts[name] * _FEW >= counts[metrics[0]]]
    varying = [name for name in settings if name in varied and counts[name] * _FEW >= counts[settings[0]]]
    has_projects = len(projects) > 1
    first = [replace(one, is_usual=has_projects) if one.id == "project" else one for one in FIRST_COLUMNS]
    usual = {*frequent[:_USUAL], *varying[:_USUAL]}
    return (
        *first,
        *(RunColumn(name, name.removeprefix(METRIC), True, name in usual) for name in metrics),
        *(RunColumn(name, name.removeprefix(CONFIG), numeric[name], name in usual) for name in settings),
        *LAST_COLUMNS,
    )


__all__ = ["FIRST_COLUMNS", "LAST_COLUMNS", "RunColumn", "RunTable", "columns_of", "row_of"]
