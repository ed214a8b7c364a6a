"""`RunStore`: a store of runs that is open.

    StoreWriter ─▶ apply(records) ─────▶ ┌──────────┐ ◀── runs, run, series, points, ... ── page, command line, search
                                         │ database │
    owner of a run ◀─ requests, answer ─ └──────────┘ ◀── request, archive, delete ──────── page, command line

Any number of processes may have one store open, and write to it; each transaction is short. A store may be used from
several threads, and in a forked child.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine, Select, delete, select, text, update
from sqlalchemy.exc import DataError, IntegrityError, StatementError

from ropewalk.errors import RunStillRunning
from ropewalk.quantities import counted
from ropewalk.tracking.records import RUNNING, RunRecord
from ropewalk.tracking.store import queries
from ropewalk.tracking.store.applying import RecordWriter
from ropewalk.tracking.store.blocks import Points
from ropewalk.tracking.store.column_values import from_json, to_json, to_text
from ropewalk.tracking.store.databases import reading, translated, writing
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
)
from ropewalk.tracking.store.run_folders import RemovedFolder
from ropewalk.tracking.store.schema import (
    ARTIFACTS,
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    FACTS,
    NOTES,
    REQUESTS,
    RUNS,
    SERIES,
)

_log = logging.getLogger(__name__)

_REFUSED_RECORD = (DataError, IntegrityError, ValueError, TypeError, OverflowError)
"""What a record can raise that no database takes, such as a number above 64 bits."""
_PAGES_FREED = 4096
"""How many pages of a file are given back to its disk after a deletion: 16 MiB, some milliseconds."""


class RunStore:
    """A store of runs; `open_store` makes it.

    Args:
        engine: the database, whose tables are up to date.
        where: the store, as messages name it: a path, or a URL without its password.
        folder: folder in which runs get their folders, unless they name another.
        backup: the copy of the file that was made before its tables were migrated just now.
        clock: returns the seconds since the epoch.
    """

    def __init__(
        self,
        engine: Engine,
        where: str,
        *,
        folder: Path,
        backup: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.where = where
        self.folder = folder
        self.backup = backup
        self._database = engine
        self._clock = clock
        self._writer = RecordWriter(clock)
        self._applying = threading.Lock()
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; may be called twice."""
        self._engine.dispose()

    @property
    def _engine(self) -> Engine:
        if self._pid != os.getpid():  # a forked child; the connections stay its parent's
            self._pid = os.getpid()
            self._database.dispose(close=False)
            self._applying = threading.Lock()
            self._writer.forget()
        return self._database

    # --- writing --------------------------------------------------------------------------------------------------

    def apply(self, batch: Sequence[RunRecord]) -> None:
        """Store records, in one transaction. A record that no database takes is left out, and logged.

        Args:
            batch: records in the order in which they were made, of any runs.

        Raises:
            StoreError: the store cannot be written now. Nothing of the batch was stored; it may be applied again.
        """
        if not batch:
            return
        engine = self._engine
        with self._applying, translated(self.where):
            try:
                with engine.begin() as connection:
                    self._writer.apply(connection, batch)
            except _REFUSED_RECORD:
                self._writer.forget()
                self._apply_each(engine, batch)
            except BaseException:
                self._writer.forget()
                raise

    def _apply_each(self, engine: Engine, batch: Sequence[RunRecord]) -> None:
        """Store the records that can be stored, still in one transaction."""
        try:
            with engine.begin() as connection:
                for record in batch:
                    try:
                        with connection.begin_nested():
                            self._writer.apply(connection, [record])
                    except _REFUSED_RECORD as error:
                        self._writer.forget()
                        cause = error.orig if isinstance(error, StatementError) else error
                        _log.warning("a record of run %s is left out: %s: %.300r", record.run, cause, record.record)
        except BaseException:
            self._writer.forget()
            raise

    def request(self, run: str, action: str, data: Mapping[str, Any] | None = None) -> int:
        """Ask the process that owns a run for something.

        Args:
            run: id of the run.
            action: "pause", "stop" or the like.
            data: whatever the action needs, as JSON can represent it.

        Returns:
            The number of the request.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the store cannot be written.
        """
        self.run(run)
        row = {
            "run": run,
            "action": to_text(action),
            "data": to_json(dict(data or {})),
            "asked": self._clock(),
            "answer": "",
        }
        with writing(self._engine, self.where) as connection:
            return int(connection.execute(REQUESTS.insert().returning(REQUESTS.c.number), row).scalar_one())

    def answer(self, number: int, ok: bool, text: str = "") -> None:
        """Answer a request; the first answer counts.

        Args:
            number: number of the request.
            ok: whether it was done.
            text: what to tell the user.

        Raises:
            StoreError: the store cannot be written.
        """
        open_one = update(REQUESTS).where(REQUESTS.c.number == number, REQUESTS.c.answered.is_(None))
        with writing(self._engine, self.where) as connection:
            connection.execute(open_one.values(answered=self._clock(), ok=ok, answer=to_text(text)))

    def archive(self, run: str) -> None:
        """Leave a run, and those that belong to it, out of lists; raises as `run`."""
        self._set_archived(run, archived=True)

    def unarchive(self, run: str) -> None:
        """Show a run in lists again, and those that belong to it; raises as `run`."""
        self._set_archived(run, archived=False)

    def _set_archived(self, ref: str, *, archived: bool) -> None:
        ids = [run.id for run in self._family(ref)]
        with writing(self._engine, self.where) as connection:
            connection.execute(update(RUNS).where(RUNS.c.id.in_(ids)).values(archived=archived))

    def delete(self, run: str) -> list[str]:
        """Delete a run and those that belong to it, such as the trials of a search, with their folders.

        A folder is deleted if its name is the id of the run. Of another folder, which may hold more than this run, only
        the artifacts and checkpoints of the run are deleted.

        Args:
            run: id of the run.

        Returns:
            The ids of the runs that were deleted.

        Raises:
            RunNotFound: there is no such run.
            RunStillRunning: one of them is running.
            StoreError: the store or a folder cannot be changed.
        """
        family = self._family(run)
        if running := [one.id for one in family if one.state == RUNNING]:
            raise RunStillRunning(
                f"run {running[0]}{f' and {len(running) - 1} more' if running[1:] else ''} of {run} cannot be deleted "
                f"while it is running; stop it first: ropewalk runs stop {running[0]}",
                runs=tuple(running),
            )
        files = {one.id: [*self.artifacts(one.id), *self.checkpoints(one.id)] for one in family}
        removed = [RemovedFolder(one.id, one.folder, [file.path for file in files[one.id]]) for one in family]
        ids = [one.id for one in family]
        with writing(self._engine, self.where) as connection:
            connection.execute(delete(RUNS).where(RUNS.c.id.in_(ids)))
        for folder in removed:
            folder.remove(self.where)
        self._give_back_pages()
        return ids

    def _give_back_pages(self) -> None:
        if self._engine.dialect.name != "sqlite":
            return
        with translated(self.where), self._engine.connect() as connection:
            cursor = connection.exec_driver_sql(f"PRAGMA incremental_vacuum({_PAGES_FREED})")
            cursor.all()

    # --- reading --------------------------------------------------------------------------------------------------

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

        Raises:
            ValueError: a state or an order is unknown.
            StoreError: the store cannot be read.
        """
        query = queries.runs_query(
            project=project, states=states, kind=kind, parent=parent, labels=labels, text=text, archived=archived,
            order=order,
        )  # fmt: skip
        is_certain = states is None or {RUNNING, LOST}.isdisjoint(states) or {RUNNING, LOST} <= set(states)
        found = self._runs(query.limit(limit) if is_certain and limit is not None else query)
        return [run for run in found if states is None or run.state in states][:limit]

    def _runs(self, query: Select[Any]) -> list[RunRow]:
        processes, now = LocalProcesses(), self._clock()
        with reading(self._engine, self.where) as connection:
            rows = connection.execute(query).all()
            few = [row.id for row in rows] if len(rows) < 500 else None
            labels = queries.labels_of(connection, few) if rows else {}
        return [queries.to_run(row, labels, processes, now) for row in rows]

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
        return queries.to_run(row, labels, LocalProcesses(), self._clock())

    def children(self, run: str) -> list[RunRow]:
        """Return the runs that belong to a run, or were forked from it, archived ones included, oldest first."""
        return self.runs(parent=run, archived=None)

    def _family(self, ref: str) -> list[RunRow]:
        """Return a run and the runs that belong to it; a fork is a run of its own."""
        found = [self.run(ref)]
        for one in found:
            found += [child for child in self.children(one.id) if child.parent_step is None]
        return found

    def facts(self, run: str) -> dict[str, Any]:
        """Return what was kept of the code, the packages, the host and the like of a run."""
        with reading(self._engine, self.where) as connection:
            found = connection.execute(select(FACTS.c.facts).where(FACTS.c.run == run)).scalar()
        return from_json(found or "{}")

    def series(self, run: str) -> list[SeriesRow]:
        """Return the series of a run, without their points, ordered by group and name."""
        query = select(SERIES).where(SERIES.c.run == run)
        return sorted(map(queries.to_series, self._rows(query)), key=lambda series: (series.group, series.name))

    def last_values(self, runs: Collection[str], group: str = "") -> dict[str, dict[str, float]]:
        """Return the last value of each metric of many runs, by run and name.

        Args:
            runs: ids of the runs.
            group: the group of the metrics.
        """
        query = select(SERIES.c.run, SERIES.c.name, SERIES.c.last).where(SERIES.c.group == group)
        if len(runs) < 500:
            query = query.where(SERIES.c.run.in_(runs))
        found: dict[str, dict[str, float]] = {run: {} for run in runs}
        for run, name, last in self._rows(query):
            if run in found:
                found[run][name] = float("nan") if last is None else last
        return found

    def points(self, run: str, name: str, group: str = "", max_points: int | None = None) -> Points:
        """Return the points of a series, in the order in which they were logged.

        Args:
            run: id of the run.
            name: name of the metric.
            group: its group.
            max_points: how many points to return at most, at least 5; extremes, gaps and both ends are kept. None
                returns all.

        Returns:
            The points; none if there is no such series.
        """
        with reading(self._engine, self.where) as connection:
            points = queries.read_points(connection, run, group, name)
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
        return [ArtifactRow(*row[2:]) for row in self._rows(query)]

    def checkpoints(self, run: str) -> list[CheckpointRow]:
        """Return the checkpoints of a run, by step."""
        query = select(CHECKPOINTS).where(CHECKPOINTS.c.run == run).order_by(CHECKPOINTS.c.step)
        return [CheckpointRow(*row[1:]) for row in self._rows(query)]

    def requests(self, runs: Collection[str]) -> list[RequestRow]:
        """Return the open requests to runs, the oldest one first; their owner asks for them every half second."""
        open_ones = select(REQUESTS).where(REQUESTS.c.run.in_(runs), REQUESTS.c.answered.is_(None))
        return [_to_request(row) for row in self._rows(open_ones.order_by(REQUESTS.c.number))]

    def requested(self, number: int) -> RequestRow | None:
        """Return a request with its answer; None if there is no such request, or its run was deleted."""
        rows = self._rows(select(REQUESTS).where(REQUESTS.c.number == number))
        return _to_request(rows[0]) if rows else None

    def describe(self) -> str:
        """Describe the store in one line: where it is, and how many runs it has."""
        with reading(self._engine, self.where) as connection:
            num = connection.execute(text(f"SELECT count(*) FROM {RUNS.name}")).scalar_one()
        return f"{self.where}: {counted(num, 'run')}"

    def _rows(self, query: Select[Any]) -> Sequence[Any]:
        with reading(self._engine, self.where) as connection:
            return connection.execute(query).all()


def _to_request(row: Any) -> RequestRow:
    ok = None if row.ok is None else bool(row.ok)
    return RequestRow(row.number, row.run, row.action, from_json(row.data), row.asked, row.answered, ok, row.answer)
