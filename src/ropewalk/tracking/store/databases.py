"""Databases: connections to SQLite and PostgreSQL that behave alike, and their errors as ours.

| | SQLite | PostgreSQL |
|---|---|---|
| two writers | `BEGIN IMMEDIATE`, and the second one waits for up to 30 s | row locks |
| readers | see the last commit and wait for nobody (WAL) | the same |
| a file system of several hosts | no WAL, whose index is shared memory: a rollback journal and its locks | - |
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Insert, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from ropewalk.errors import StoreCorrupt, StoreError

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another one, which holds the file for milliseconds."""
_PAUSE_S = 0.005
"""Seconds between two tries to change what SQLite does not wait for."""
_ASK_CLOCK_S = 300.0
_READS = "ropewalk_reads"
_SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "cifs", "smb3", "9p", "fuse.sshfs")
)
"""File systems that several hosts may have mounted."""
_MOUNTS = Path("/proc/self/mounts")
_ADVICE = {
    sqlite3.SQLITE_FULL: "free some space on its disk",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable, or choose another store with ROPEWALK_STORE",
    sqlite3.SQLITE_BUSY: f"another process has been writing for {BUSY_TIMEOUT_S:.0f} s; find it with: fuser FILE",
    sqlite3.SQLITE_LOCKED: f"another process has been writing for {BUSY_TIMEOUT_S:.0f} s; find it with: fuser FILE",
    sqlite3.SQLITE_CANTOPEN: "check that the file and its folder can be opened and written",
    sqlite3.SQLITE_IOERR: "check that its disk works and has room, and the limits of this process (ulimit -f)",
    sqlite3.SQLITE_CORRUPT: "copy what can be read with: sqlite3 FILE .recover, or move the file away",
    sqlite3.SQLITE_NOTADB: "name another store with ROPEWALK_STORE, or move the file away",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def file_engine(path: str) -> Engine:
    """Return an engine for a SQLite file, which must exist; nothing is opened yet.

    Args:
        path: physical path of the file.
    """
    is_writable = os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)
    options = "mode=rw" if is_writable else _read_only(path)
    synchronous = "NORMAL" if journal_mode(path) == "WAL" else "FULL"

    def connect() -> sqlite3.Connection:
        connection = _connect(path, options)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            # In WAL mode, a loss of power may take the last transactions with it, but damages nothing.
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute("PRAGMA journal_size_limit = 67108864")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=2, max_overflow=30)
    event.listen(engine, "begin", _begin)
    return engine


def prepare_file(path: str) -> None:
    """Choose the properties of a SQLite file that has no tables yet."""
    end = time.monotonic() + BUSY_TIMEOUT_S
    connection = _connect(path, "mode=rw")
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        while True:
            try:
                connection.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
                return
            except sqlite3.OperationalError as error:
                # Two that change the mode at once wait for each other: SQLite then fails one, without its timeout.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(_PAUSE_S)
    finally:
        connection.close()


def journal_mode(path: str) -> str:
    """Return the journal mode for a file: "WAL", or "DELETE" on a file system that several hosts may have mounted."""
    return "DELETE" if file_system(path, _MOUNTS.read_text(errors="replace")) in _SHARED else "WAL"


def _connect(path: str, options: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(path)}?{options}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # the statement of `_begin` begins transactions, those with new tables included
        check_same_thread=False,
    )


def server_engine(url: URL) -> Engine:
    """Return an engine for a PostgreSQL database; nothing connects yet."""
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=2,
        max_overflow=30,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10},
    )


class ServerClock:
    """The clock of a database's server: hosts whose own clocks differ agree by it on what was heard when.

    It is asked every few minutes, and in between counted on by a clock that nobody sets.

    Args:
        engine: engine of the database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offset_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._asked = -math.inf
        self._pid = os.getpid()

    def __call__(self) -> float:
        """Return the seconds since the epoch."""
        here = time.clock_gettime(time.CLOCK_BOOTTIME)
        if here - self._asked > _ASK_CLOCK_S and self._pid == os.getpid():  # a forked child has no connection yet
            self._asked = here
            with contextlib.suppress(SQLAlchemyError), self._engine.connect() as connection:
                there = connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one()
                self._offset_s = float(there) - time.clock_gettime(time.CLOCK_BOOTTIME)
        return here + self._offset_s


def _read_only(path: str) -> str:
    """Return the options for a file that cannot be written: without its log, nobody else can be writing it."""
    log = f"{path}-wal"
    return "mode=ro" if os.path.exists(log) and os.path.getsize(log) else "mode=ro&immutable=1"


def _begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READS)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def file_system(path: str, mounts: str) -> str:
    """Return the type of the file system of a path, from the text of /proc/self/mounts; empty if it is not known."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = fields[1].encode().decode("unicode_escape", "replace")
        if len(place) >= len(best) and f"{path}/".startswith(place.rstrip("/") + "/"):
            best, kind = place, fields[2]
    return kind


@contextlib.contextmanager
def reading(engine: Engine, where: str) -> Generator[Connection]:
    """Open a connection for statements that only read.

    Raises:
        StoreError: the database cannot be read.
    """
    with translated(where), engine.connect().execution_options(**{_READS: True}) as connection:
        yield connection


@contextlib.contextmanager
def writing(engine: Engine, where: str) -> Generator[Connection]:
    """Open a connection whose statements are one transaction.

    Raises:
        StoreError: the database cannot be written; nothing of the transaction was.
    """
    with translated(where), engine.begin() as connection:
        yield connection


def insert(connection: Connection, table: Table) -> Any:
    """Return an INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`, which both databases have."""
    made: Insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
    return made


# --- errors -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translated(where: str) -> Generator[None]:
    """Raise errors of the database as `StoreError` and `StoreCorrupt`.

    Args:
        where: the store, as messages name it.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise _translate(error, where) from error
    except sqlite3.Error as error:  # while it connects
        raise _of_sqlite(error, where) from error


def _translate(error: SQLAlchemyError, where: str) -> StoreError:
    cause = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause, where)
    words = " ".join(str(cause or error).split())
    return StoreError(f"the store {where} cannot be used: {words}; check the server and the URL", where=where)


def _of_sqlite(error: sqlite3.Error, where: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says where in SQLite
    advice = _ADVICE.get(code, "if it happens again, it is a fault of Ropewalk: please report it").replace(
        "FILE", where
    )
    if code in _DAMAGED:
        return StoreCorrupt(
            f"the store {where} is damaged or is not a store ({error}); it was not changed; {advice}", where=where
        )
    return StoreError(f"the store {where} cannot be used: {error}; {advice}", where=where)
