"""Migrations: whole or not at all, with a backup, and what they leave is what the queries expect."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from ropewalk.errors import StoreError
from ropewalk.tracking.store import migrating
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.schema import METADATA, REVISIONS, VERSION_TABLE
from tests.forked_process import ForkedProcess
from tests.tracking.store.making import begin, logged, new_store

ADD_A_COLUMN = "op.execute(\"ALTER TABLE ropewalk_runs ADD COLUMN colour VARCHAR DEFAULT 'red' NOT NULL\")"


def test_the_revisions_are_those_of_the_scripts() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrating._MIGRATIONS))
    found = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(found)) == REVISIONS


def test_migrations_leave_the_tables_that_queries_expect(tmp_path: Path) -> None:
    with new_store(tmp_path) as store, store._engine.connect() as connection:
        options = {"compare_type": True, "version_table": VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), METADATA) == []


def test_a_store_that_is_up_to_date_opens_without_alembic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_store(tmp_path) as store:
        where = store.where
    monkeypatch.setattr(migrating, "_upgrade", lambda _: pytest.fail("migrated"))
    open_store(where).close()


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let this version have one more revision, which does what it is given as source code."""

    def install(code: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(migrating._MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / "0002_next.py").write_text(
            "import os, signal\nfrom alembic import op\n"
            f"revision, down_revision = '0002', '{REVISIONS[-1]}'\nbranch_labels = depends_on = None\n"
            f"def upgrade():\n    {code}\n"
        )
        monkeypatch.setattr(migrating, "_MIGRATIONS", folder)
        monkeypatch.setattr(migrating, "REVISIONS", (*REVISIONS, "0002"))

    return install


def content(path: Path) -> tuple[list[tuple[str, ...]], list[str]]:
    connection = sqlite3.connect(path)
    try:
        runs = connection.execute("SELECT * FROM ropewalk_runs").fetchall()
        return runs, connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    finally:
        connection.close()


def old_store(tmp_path: Path) -> Path:
    with new_store(tmp_path) as store:
        begin(store, "r1", *logged("x", range(10)))
        return Path(store.where)


def test_an_older_store_is_migrated_after_a_backup(tmp_path: Path, next_version: Callable[[str], None]) -> None:
    path = old_store(tmp_path)
    before = content(path)
    next_version(ADD_A_COLUMN)
    with open_store(path) as store:
        backup = store.backup
        assert backup == path.with_name(f"{path.name}.backup-{REVISIONS[-1]}")
        assert len(store.points("r1", "x")) == 10
    assert content(path) == ([(*before[0][0], "red")], ("0002",))
    assert backup and content(backup) == before
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with open_store(path) as store:
        assert store.backup is None


def test_a_backup_is_never_overwritten(tmp_path: Path, next_version: Callable[[str], None]) -> None:
    path = old_store(tmp_path)
    (first := path.with_name(f"{path.name}.backup-{REVISIONS[-1]}")).write_text("precious")
    next_version(ADD_A_COLUMN)
    with open_store(path) as store:
        assert store.backup == path.with_name(f"{first.name}-2")
    assert first.read_text() == "precious"


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_store(tmp_path)
    before = content(path)
    with monkeypatch.context():
        next_version(f"{ADD_A_COLUMN}; op.execute('DROP TABLE nowhere')")
        with pytest.raises(StoreError, match="no such table: nowhere"):
            open_store(path)
    assert content(path) == before
    monkeypatch.undo()
    with open_store(path) as store:
        assert len(store.points("r1", "x")) == 10


def test_a_migration_that_is_killed_leaves_the_store_as_it_was(
    tmp_path: Path, next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_store(tmp_path)
    before = content(path)
    next_version(f"{ADD_A_COLUMN}; os.kill(os.getpid(), signal.SIGKILL)")
    process = ForkedProcess(lambda: open_store(path))
    _, status = os.waitpid(process.pid, 0)
    os.close(process._read)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert content(path) == before
    monkeypatch.undo()
    with open_store(path) as store:
        assert len(store.points("r1", "x")) == 10


def test_processes_that_migrate_at_once_do_it_once(tmp_path: Path, next_version: Callable[[str], None]) -> None:
    path = old_store(tmp_path)
    next_version(ADD_A_COLUMN)
    with ForkedProcess(lambda: open_store(path).close()) as other:
        open_store(path).close()
        other.wait_until_done()
    assert content(path)[1] == ("0002",)
    assert len(list(tmp_path.glob("*.backup-*"))) == 1


def test_without_room_for_a_backup_nothing_is_migrated(
    tmp_path: Path, next_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_store(tmp_path)
    before = content(path)
    next_version(ADD_A_COLUMN)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        open_store(path)
    assert content(path) == before
    assert not list(tmp_path.glob("*.backup-*"))
