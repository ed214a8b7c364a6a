"""`RunStore`: a store of runs that is open.

    StoreWriter ─▶ apply(records) ─────▶ ┌──────────┐ ◀── runs, run, series, points, ... ── page, command line, search
                                         │ database │
    owner of a run ◀─ requests, answer ─ └──────────┘ ◀── request, archive, delete ──────── page, command line

Any number of processes may have one store open, and write to it; each transaction is short. A store may be used from
several threads, and in a forked child.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from sqlalchemy import Engine, delete, update
from sqlalchemy.exc import DataError, IntegrityError, StatementError

from ropewalk.errors import RunStillRunning
from ropewalk.quantities import listed
from ropewalk.tracking.records import RUNNING, RunRecord
from ropewalk.tracking.store.applying import RecordWriter
from ropewalk.tracking.store.column_values import to_json, to_text
from ropewalk.tracking.store.databases import translated, writing
from ropewalk.tracking.store.open_requests import answer_if_over
from ropewalk.tracking.store.run_folders import RemovedFolder
from ropewalk.tracking.store.schema import REQUESTS, RUNS
from ropewalk.tracking.store.stored_runs import StoredRuns

_log = logging.getLogger(__name__)

_REFUSED_RECORD = (DataError, IntegrityError, ValueError, TypeError, OverflowError)
"""What a record can raise that no database takes, such as a number above 64 bits."""
_PAGES_FREED = 4096
"""How many pages of a file are given back to its disk after a deletion: 16 MiB, some milliseconds."""


class RunStore(StoredRuns):
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
        super().__init__(engine, where, folder=folder, clock=clock)
        self.backup = backup
        self._writer = RecordWriter(clock)
        self._applying = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; may be called twice."""
        self._engine.dispose()

    def _forget_parent(self) -> None:
        super()._forget_parent()
        self._applying = threading.Lock()
        self._writer.forget()

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
        """Ask the process that owns a run for something; if it has ended meanwhile, the request is answered at once.

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
            key = connection.execute(REQUESTS.insert(), row).inserted_primary_key
            assert key is not None
            answer_if_over(connection, int(key[0]), run, self._clock())
        return int(key[0])

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
        the artifacts and checkpoints of the run are deleted. If the store is a database, in which another user may have
        written the path of the folder, nothing is deleted outside of this user's folder of runs.

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
                f"run {listed(running, 1)} of {run} cannot be deleted "
                f"while it is running; stop it first: ropewalk runs stop {running[0]}",
                runs=tuple(running),
            )
        within = None if self._engine.dialect.name == "sqlite" else self.folder
        removed = [RemovedFolder(one.id, one.folder, self._files(one.id), within) for one in family]
        ids = [one.id for one in family]
        with writing(self._engine, self.where) as connection:
            connection.execute(delete(RUNS).where(RUNS.c.id.in_(ids)))
        for folder in removed:
            folder.remove(self.where)
        self._give_back_pages()
        return ids

    def _files(self, run: str) -> list[str]:
        """Return the paths of a run's files that may be deleted one by one."""
        if self._engine.dialect.name != "sqlite":
            return []
        return [file.path for file in (*self.artifacts(run), *self.checkpoints(run))]

    def _give_back_pages(self) -> None:
        if self._engine.dialect.name != "sqlite":
            return
        with translated(self.where), contextlib.closing(self._engine.raw_connection()) as connection:
            # A step of the statement frees one page, and `execute` takes one step.
            cast("sqlite3.Connection", connection.driver_connection).executescript(
                f"PRAGMA incremental_vacuum({_PAGES_FREED})"
            )
