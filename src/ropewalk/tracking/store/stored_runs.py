"""`StoredRuns`: the queries of a store that is open."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, Executable, Select, bindparam, case, func, select, text

from ropewalk.argument_kinds import check_texts
from ropewalk.quantities import counted
from ropewalk.tracking.records import RUNNING
from ropewalk.tracking.store import queries
from ropewalk.tracking.store.blocks import Points
from ropewalk.tracking.store.column_values import from_json, from_number
from ropewalk.tracking.store.databases import reading
from ropewalk.tracking.store.decimation import decimated
from ropewalk.tracking.store.owners import LocalProcesses
from ropewalk.tracking.store.rows import (
    LOST,
    ArtifactRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    NoteRow,
    RequestRow,
    RunRow,
    SeriesRow,
    html_of_runs,
)
from ropewalk.tracking.store.run_folders import folder_now
from ropewalk.tracking.store.schema import (
    ARTIFACTS,
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    FACTS,
    LABELS,
    NOTES,
    REQUESTS,
    RUNS,
    SERIES,
)

_FileRow = TypeVar("_FileRow", ArtifactRow, CheckpointRow)
_SHOWN_RUNS = 20
"""The latest runs, which a notebook shows of a store."""
_FEW = 500
"""Up to this number of runs, a query names them; above, it reads the rows of all runs, which is faster."""
# Made once, because every run asks for it twice a second, and making it takes as long as executing it.
_OPEN_REQUESTS = (
    select(REQUESTS)
    .where(REQUESTS.c.run.in_(bindparam("runs", expanding=True)), REQUESTS.c.answered.is_(None))
    .order_by(REQUESTS.c.number)
)


class StoredRuns:
    """Finds runs and what they have; its methods change nothing.

    Args:
        engine: the database, whose tables are up to date.
        where: the store, as messages name it: a path, or a URL without its password.
        folder: folder in which runs get their folders, unless they name another.
        clock: returns the seconds since the epoch.
    """

    def __init__(self, engine: Engine, where: str, *, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.where: str = where
        self.folder: Path = folder
        self._moved_to = folder if engine.dialect.name == "sqlite" else None  # a database stays where it is
        self._database = engine
        self._clock = clock
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where}>"

    @property
    def _engine(self) -> Engine:
        """The database, from this process."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._forget_parent()
        return self._database

    def _forget_parent(self) -> None:
        """In a forked child: leave the connections to the parent, whose they are."""
        self._database.dispose(close=False)

    def runs(
        self,
        project: str | None = None,
        states: Collection[str] | None = None,
        kind: str | None = None,
        parent: str | None = None,
        labels: Collection[str] = (),
        text: str | None = None,
        archived: bool | None = False,
        order: str = "created",
        limit: int | None = None,
        heard_since: float | None = None,
        user: str | None = None,
    ) -> list[RunRow]:
        """Find runs.

        Args:
            project: only those of this project.
            states: only those in one of these states; "lost" is one.
            kind: only those of this kind.
            parent: only those that belong to this run; "" for those that belong to none.
            labels: only those that have all of these labels.
            text: only those in whose id, name, project, configuration, cause or labels this text is.
            archived: False for those that are not archived, True for those that are, None for all.
            order: "created", "changed", "name", "project" or "state"; after a minus, in the opposite order.
            limit: how many to return at most, the first ones of the order.
            heard_since: only those that were heard at this time or later, in seconds since the epoch.
            user: only those that this user began; see `users`.

        Raises:
            ValueError: a state or an order is unknown.
            TypeError: states or labels are one text.
            StoreError: the store cannot be read.
        """
        check_texts("states", states)
        check_texts("labels", labels)
        query = queries.runs_query(
            project=project, states=states, kind=kind, parent=parent, labels=labels, text=text, archived=archived,
            order=order, heard_since=heard_since,
        )  # fmt: skip
        is_certain = states is None or {RUNNING, LOST}.isdisjoint(states) or {RUNNING, LOST} <= set(states)
        is_certain = is_certain and user is None
        found = self._runs(query.limit(limit) if is_certain and limit is not None else query)
        if user is not None:
            users = self.users(found)
            found = [run for run in found if users[run.id] == user]
        return [run for run in found if states is None or run.state in states][:limit]

    def _runs(self, query: Select[Any]) -> list[RunRow]:
        processes, now = LocalProcesses(), self._clock()
        with reading(self._engine, self.where) as connection:
            rows = connection.execute(query).all()
            few = [row.id for row in rows] if len(rows) < _FEW else None
            labels = queries.labels_of(connection, few) if rows else {}
        return [self._placed(queries.to_run(row, labels, processes, now)) for row in rows]

    def run(self, ref: str) -> RunRow:
        """Find one run.

        Args:
            ref: its id, its name, or a beginning that no other id has.

        Raises:
            RunNotFound: no run has it, or several; names the near ones.
            StoreError: the store cannot be read.
        """
        with reading(self._engine, self.where) as connection:
            row = queries.find_run(connection, ref)
            labels = queries.labels_of(connection, [row.id])
        return self._placed(queries.to_run(row, labels, LocalProcesses(), self._clock()))

    def _placed(self, run: RunRow) -> RunRow:
        folder = folder_now(run.folder, run.id, self._moved_to)
        return run if folder == run.folder else replace(run, folder=folder)

    def children(self, run: str) -> list[RunRow]:
        """Return the runs that belong to a run, or were forked from it, archived ones included, oldest first."""
        return self.runs(parent=run, archived=None)

    def _family(self, ref: str) -> list[RunRow]:
        """Return a run and the runs that belong to it; a fork is a run of its own."""
        found = [self.run(ref)]
        for one in found:
            found += [child for child in self.children(one.id) if child.parent_step is None]
        return found

    def users(self, runs: Sequence[RunRow]) -> dict[str, str]:
        """Return who began each of some runs, by id: the name at its host; of a trial, that of its search; or "".

        A database says what its users have written: the name proves nothing.
        """
        asked = {run.id for run in runs} | {run.parent for run in runs if run.kind == "trial"}
        with reading(self._engine, self.where) as connection:
            found = queries.users_of(connection, sorted(asked) if len(asked) < _FEW else None)
        return {run.id: found.get(run.id) or (found.get(run.parent, "") if run.kind == "trial" else "") for run in runs}

    def facts(self, run: str) -> dict[str, Any]:
        """Return what was kept of the code, the packages, the host and the like of a run."""
        with reading(self._engine, self.where) as connection:
            found = connection.execute(select(FACTS.c.facts).where(FACTS.c.run == run)).scalar()
        return from_json(found or "{}")

    def series(self, run: str) -> list[SeriesRow]:
        """Return the series of a run, without their points, ordered by group and name."""
        query = select(SERIES).where(SERIES.c.run == run)
        return sorted(map(queries.to_series, self._rows(query)), key=lambda series: (series.group, series.name))

    def last_values(self, runs: Collection[str], group: str | None = "") -> dict[str, dict[str, float]]:
        """Return the last value of each metric of many runs, by run and name.

        Args:
            runs: ids of the runs.
            group: the group of the metrics; None for all, whose names are GROUP/NAME then.
        """
        query = select(SERIES.c.run, SERIES.c.group, SERIES.c.name, SERIES.c.last)
        if group is not None:
            query = query.where(SERIES.c.group == group)
        if len(runs) < _FEW:
            query = query.where(SERIES.c.run.in_(runs))
        found: dict[str, dict[str, float]] = {run: {} for run in runs}
        for run, own, name, last in self._rows(query):
            if run in found:
                found[run][f"{own}/{name}" if group is None and own else name] = from_number(last)
        return found

    def points(self, run: str, name: str, group: str = "", max_points: int | None = None, *, after: int = 0) -> Points:
        """Return the points of a series, in the order in which they were logged.

        Args:
            run: id of the run.
            name: name of the metric.
            group: its group.
            max_points: how many points to return at most, at least 5; extremes, gaps and both ends are kept. None
                returns all.
            after: how many points to leave out, those that were stored first: who has them reads only the new ones.

        Returns:
            The points; none if there is no such series.
        """
        with reading(self._engine, self.where) as connection:
            points = queries.read_points(connection, run, group, name, after)
        return points if max_points is None else points[decimated(points.values, max_points)]

    def attempts(self, run: str) -> list[AttemptRow]:
        """Return the attempts of a run, the first one first."""
        query = select(ATTEMPTS).where(ATTEMPTS.c.run == run).order_by(ATTEMPTS.c.number)
        return [AttemptRow(*row[1:]) for row in self._rows(query)]

    def events(self, run: str) -> list[EventRow]:
        """Return the time line of a run, in the order in which it was told."""
        query = select(EVENTS).where(EVENTS.c.run == run).order_by(EVENTS.c.id)
        return [EventRow(row.kind, row.text, row.time, from_json(row.data)) for row in self._rows(query)]

    def notes(self, run: str) -> list[NoteRow]:
        """Return the notes of a run, the first one first."""
        query = select(NOTES).where(NOTES.c.run == run).order_by(NOTES.c.id)
        return [NoteRow(row.text, row.time) for row in self._rows(query)]

    def artifacts(self, run: str) -> list[ArtifactRow]:
        """Return the artifacts of a run, in the order in which they were kept."""
        query = select(ARTIFACTS).where(ARTIFACTS.c.run == run).order_by(ARTIFACTS.c.id)
        return self._with_paths(run, [ArtifactRow(*row[2:]) for row in self._rows(query)])

    def checkpoints(self, run: str) -> list[CheckpointRow]:
        """Return the checkpoints of a run, by step."""
        query = select(CHECKPOINTS).where(CHECKPOINTS.c.run == run).order_by(CHECKPOINTS.c.step)
        return self._with_paths(run, [CheckpointRow(*row[1:]) for row in self._rows(query)])

    def _with_paths(self, run: str, found: list[_FileRow]) -> list[_FileRow]:
        """Return records of files of a run with the paths that the files have now."""
        before = next((row.folder for row in self._rows(select(RUNS.c.folder).where(RUNS.c.id == run))), "")
        now = folder_now(before, run, self._moved_to)
        if not found or now == before:
            return found
        return [
            replace(one, path=now + one.path.removeprefix(before)) if one.path.startswith(f"{before}/") else one
            for one in found
        ]

    def requests(self, runs: Collection[str]) -> list[RequestRow]:
        """Return the open requests to runs, the oldest one first; their owner asks for them every half second."""
        return [_to_request(row) for row in self._rows(_OPEN_REQUESTS, {"runs": list(runs)})]

    def requested(self, number: int) -> RequestRow | None:
        """Return a request with its answer; None if there is no such request, or its run was deleted."""
        rows = self._rows(select(REQUESTS).where(REQUESTS.c.number == number))
        return _to_request(rows[0]) if rows else None

    def pulse(self) -> tuple[int, int, int, float, float]:
        """Return numbers that change when runs do, at a small cost: a reader compares them with those of before.

        Returns:
            How many runs there are, how many are archived, how many labels they have, and the latest times at which one
            took its state and was heard.
        """
        runs = select(func.count(), func.sum(case((RUNS.c.archived, 1), else_=0)), func.max(RUNS.c.changed),
                      func.max(RUNS.c.heard))  # fmt: skip
        with reading(self._engine, self.where) as connection:
            num, archived, changed, heard = connection.execute(runs).one()
            labels = connection.execute(select(func.count()).select_from(LABELS)).scalar_one()
        return num, archived or 0, labels, changed or 0.0, heard or 0.0

    def describe(self) -> str:
        """Describe the store in one line: where it is, and how many runs it has."""
        return f"{self.where}: {counted(self._num_runs(), 'run')}"

    def _num_runs(self) -> int:
        with reading(self._engine, self.where) as connection:
            return connection.execute(text(f"SELECT count(*) FROM {RUNS.name}")).scalar_one()

    def _repr_html_(self) -> str:
        latest = self.runs(order="-created", archived=None, limit=_SHOWN_RUNS)
        return html_of_runs(latest, self.where, self._num_runs())

    def _rows(self, query: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Any]:
        with reading(self._engine, self.where) as connection:
            return connection.execute(query, values).all()


def _to_request(row: Any) -> RequestRow:
    ok = None if row.ok is None else bool(row.ok)
    return RequestRow(row.number, row.run, row.action, from_json(row.data), row.asked, row.answered, ok, row.answer)
