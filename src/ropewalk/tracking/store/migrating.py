"""Migration of a store to the newest tables: one transaction, a backup of the file before it, and nothing by halves.

    no tables of ours ────────────────▶ made       unless a file has other tables: it is not a store
    an older revision ──▶ backup ─────▶ migrated
    the newest revision
    a revision that is not known ─────▶ StoreTooNew

Several processes may open a store at once: the first one migrates it, and the others wait and find it done.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from ropewalk.atomic_files import StagedFile
from ropewalk.errors import StoreCorrupt, StoreError, StoreTooNew
from ropewalk.tracking.store.databases import prepare_file, reading, translated, writing
from ropewalk.tracking.store.schema import REVISIONS, RUNS, VERSION_TABLE
from ropewalk.version import VERSION

_MIGRATIONS = Path(__file__).with_name("migrations")
_ADVISORY_LOCK = 0x726F7065
"""Number of the lock that a migration takes on PostgreSQL, where tables that are not there yet cannot be locked."""


def migrate(engine: Engine, where: str, path: Path | None) -> Path | None:
    """Bring the tables to the newest revision, if they are not there.

    Args:
        engine: the database.
        where: the store, as messages name it.
        path: the file; None on a server, whose administrator makes backups.

    Returns:
        The backup, if there was something to migrate.

    Raises:
        StoreTooNew: a newer version has written it.
        StoreCorrupt: it has tables, and none of ours.
        StoreError: it cannot be read or written; nothing was changed.
    """
    with reading(engine, where) as connection:
        revision = _revision(connection, where, is_file=path is not None)
    if revision == REVISIONS[-1]:
        return None
    if path and revision is None:
        with translated(where):
            prepare_file(str(path))
    with writing(engine, where) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
        revision = _revision(connection, where, is_file=path is not None)  # another process may have migrated it
        if revision == REVISIONS[-1]:
            return None
        backup = _back_up(path, revision, where) if path and revision else None
        _upgrade(connection)
    return backup


def _revision(connection: Connection, where: str, *, is_file: bool) -> str | None:
    """Return the revision of the tables; None if there are none.

    Raises:
        StoreTooNew, StoreCorrupt: as `migrate`.
    """
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        if RUNS.name in tables or (is_file and tables):
            raise StoreCorrupt(
                f"{where} is a database, but not a Ropewalk store: it has tables such as {min(tables)}, and no "
                f"{VERSION_TABLE}; it was not changed; name another file with ROPEWALK_STORE",
                where=where,
            )
        return None
    revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if revision in REVISIONS:
        return str(revision)
    raise StoreTooNew(
        f"the store {where} has tables of revision {revision!r}, and Ropewalk {VERSION} knows those up to "
        f"{REVISIONS[-1]}: a newer version has written it; upgrade with: pip install -U ropewalk, or choose another "
        f"store with ROPEWALK_STORE",
        where=where,
        revision=str(revision),
    )


def _upgrade(connection: Connection) -> None:
    from alembic import command  # imported here because a store that is up to date does not need it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _back_up(path: Path, revision: str, where: str) -> Path:
    """Copy the file, whole or not at all, to a new name beside it, which only this user can read.

    Raises:
        StoreError: there is no room for it.
    """
    backup, number = path.with_name(f"{path.name}.backup-{revision}"), 1
    while backup.exists():  # of a migration that failed afterwards, or of a store that was put back
        number += 1
        backup = path.with_name(f"{path.name}.backup-{revision}-{number}")
    try:
        with StagedFile(backup) as staged:
            with contextlib.closing(sqlite3.connect(path)) as source:
                with contextlib.closing(sqlite3.connect(staged.staged)) as target:
                    source.backup(target)
            staged.commit()
    except OSError as error:
        raise StoreError(
            f"the store {where} is of an older version and is not migrated, because a backup cannot be written to "
            f"{backup}: {error}; make room for it",
            where=where,
        ) from error
    return backup
