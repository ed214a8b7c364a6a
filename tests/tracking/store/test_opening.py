"""Opening of stores: where they are, who may have written them, and files that are none."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import FileNotTrusted, StoreCorrupt, StoreError, StoreMissing, StoreTooNew
from ropewalk.tracking.checkpoints import read_checkpoint
from ropewalk.tracking.records import NoteAdded, StateIs
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.schema import REVISIONS, VERSION_TABLE
from tests.forked_process import ForkedProcess
from tests.other_users import ADA, MALLORY, as_user, needs_root
from tests.tracking.store.making import NOW, begin, logged, new_store, of


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- where it is ------------------------------------------------------------------------------------------------------


def test_a_new_store_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_store(tmp_path / "a" / "b" / "runs.db") as store:
            begin(store)
            assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)
            files = list((tmp_path / "a" / "b").iterdir())
            assert len(files) == 3 and {mode(file) for file in files} == {0o600}  # with the log and its index
            assert store.folder == tmp_path / "a" / "b" / "runs"
    finally:
        os.umask(before)
    assert os.listdir(tmp_path / "a" / "b") == ["runs.db"]


def test_a_store_that_is_open_is_not_taken_for_the_name_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Search(store=open_store(...)) wrote all of its trials into a file "<RunStore /home/ada/runs.db>".
    monkeypatch.chdir(tmp_path)
    with new_store(tmp_path) as store:
        wrong: Any = store
        with pytest.raises(TypeError, match="store is of type RunStore; give the path or URL of a store"):
            open_store(wrong)
        with open_store(store.where) as again:
            assert again.where == store.where
    assert [path for path in os.listdir(tmp_path) if path.startswith("<")] == []


def test_the_setting_says_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("ROPEWALK_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    with open_store() as store:
        assert store.where == str(tmp_path / "data" / "ropewalk" / "runs.db")
    for value in (str(tmp_path / "x.db"), "x.db", f"sqlite:///{tmp_path}/x.db"):
        monkeypatch.setenv("ROPEWALK_STORE", value)
        with open_store() as store:
            assert store.where == str(tmp_path / "x.db")


@pytest.mark.parametrize("name", ["a b", "100%", "q?mode=memory", "sharp#", "é"])
def test_a_path_may_have_any_character(tmp_path: Path, name: str) -> None:
    with open_store(tmp_path / name) as store:
        begin(store)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:secret@h/x", "SQLite file or a PostgreSQL database .*, not mysql://"),
        ("sqlite://", "not sqlite://"),
        ("postgresql://u:secret@h:port/x", "the URL of the store cannot be read; its form is"),
    ],
)
def test_other_databases_are_refused_without_their_passwords(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_store_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match=r"no store at .*runs.db yet; the first run makes it"):
        open_store(tmp_path / "runs.db", create=False)
    assert os.listdir(tmp_path) == []


def test_a_store_that_cannot_be_made_is_not_called_missing() -> None:
    with pytest.raises(
        StoreError, match=r"/proc/none/runs.db cannot be made or opened: .*No such file.* ROPEWALK_STORE"
    ):
        open_store("/proc/none/runs.db")


# --- whose it is ------------------------------------------------------------------------------------------------------


def test_a_store_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        path = Path(store.where)
    path.chmod(0o666)
    with pytest.raises(FileNotTrusted, match="chmod go-w"):
        open_store(path)
    path.chmod(0o600)
    tmp_path.chmod(0o777)
    with pytest.raises(FileNotTrusted):
        open_store(path)
    with pytest.raises(FileNotTrusted):
        open_store(tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


@needs_root
def test_the_store_of_another_user_is_refused(everybodys: Path) -> None:
    path = everybodys / "runs.db"
    as_user(MALLORY, lambda: open_store(_own(everybodys / "m") / "runs.db").close())
    (everybodys / "m" / "runs.db").rename(path)
    path.chmod(0o644)
    with pytest.raises(FileNotTrusted, match=f"belongs to user {MALLORY}"):
        as_user(ADA, lambda: open_store(path).close())


@needs_root
def test_a_log_that_another_user_puts_beside_a_store_is_never_read(everybodys: Path) -> None:
    """In a sticky folder, SQLite took the pages in it for those of the store: that user chose what `rerun` executes."""
    with new_store(_own(everybodys / "ada")) as store:
        begin(store)
    path = everybodys / "runs.db"
    Path(store.where).rename(path)
    as_user(MALLORY, lambda: (everybodys / "runs.db-wal").write_bytes(b"pages"))
    for name in ("runs.db", "new.db"):
        with pytest.raises(FileNotTrusted, match=f"1777, and must not let other users put files beside.* {everybodys}"):
            open_store(everybodys / name)
    assert not (everybodys / "new.db").exists()
    assert (everybodys / "runs.db-wal").read_bytes() == b"pages"


def _own(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


# --- what it is -------------------------------------------------------------------------------------------------------


def test_a_store_of_a_newer_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        path = Path(store.where)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match=rf"revision '9999'.* up to {REVISIONS[-1]}.* pip install -U") as caught:
        open_store(path)
    assert (caught.value.revision, caught.value.where) == ("9999", str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000, b"x"])
def test_a_file_that_is_no_database_is_refused_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StoreCorrupt, match=r"damaged or is not a store.* was not changed.* (ROPEWALK_STORE|\.recover)"):
        open_store(path)
    assert path.read_bytes() == content


def test_the_database_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE experiments (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a Ropewalk store: it has tables such as experiments"):
        open_store(path)
    assert path.read_bytes() == before


def test_a_store_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        path = Path(store.where)
        begin(store, "r1", *logged("x", range(5000)))
    size = path.stat().st_size
    os.truncate(path, size // 2)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="damaged"):
        open_store(path).points("r1", "x")
    assert path.read_bytes() == before


def test_damage_that_is_found_later_is_named(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        path = Path(store.where)
        begin(store, "r1", *logged("x", range(5000)))
    with path.open("r+b") as file:
        file.seek(-16 * 4096, os.SEEK_END)  # blocks of points
        file.write(b"\xff" * 16 * 4096)
    with open_store(path) as store, pytest.raises(StoreCorrupt, match=r"was not changed; copy what can be read"):
        store.points("r1", "x")


# --- places that cannot be written ------------------------------------------------------------------------------------


@contextmanager
def files_no_larger_than(size_bytes: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_loses_nothing_that_was_stored_and_the_batch_can_be_applied_again(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        begin(store, "r1", *logged("x", range(100)))
        batch = of("r1", *logged("x", range(20_000), first=101))
        log = Path(f"{store.where}-wal")
        with files_no_larger_than(max(log.stat().st_size, Path(store.where).stat().st_size) + 8192):
            for _ in range(2):
                with pytest.raises(StoreError, match=r"cannot be used: .*; (free some space|check that its disk)"):
                    store.apply(batch)
            assert len(store.points("r1", "x")) == 100
        store.apply(batch)
        assert len(store.points("r1", "x")) == 20_100


@needs_root
def test_in_a_folder_that_cannot_be_written_a_store_can_still_be_read(everybodys: Path) -> None:
    folder = everybodys / "ada"

    def prepare() -> None:
        with open_store(_own(folder) / "runs.db") as store:
            begin(store)
        (folder / "runs.db").chmod(0o400)
        folder.chmod(0o500)

    def read() -> tuple[list[str], str]:
        with open_store(folder / "runs.db") as store:
            with pytest.raises(StoreError, match=r"cannot be used: .*readonly.* ROPEWALK_STORE") as caught:
                store.apply(of("r1", NoteAdded("x", NOW)))
            return [run.id for run in store.runs()], str(caught.value)

    as_user(ADA, prepare)
    found, message = as_user(ADA, read)
    assert found == ["r1"] and str(folder) in message
    with pytest.raises(StoreError, match="cannot be made or opened"):
        as_user(ADA, lambda: open_store(folder / "new" / "runs.db"))
    as_user(ADA, lambda: folder.chmod(0o700))


@needs_root
def test_a_store_that_is_open_goes_on_when_its_folder_becomes_read_only(everybodys: Path) -> None:
    def work() -> int:
        folder = _own(everybodys / "ada")
        with open_store(folder / "runs.db") as store:
            begin(store)
            (folder / "runs.db").chmod(0o400)
            folder.chmod(0o500)
            store.apply(of("r1", *logged("x", [1])))
            folder.chmod(0o700)
        with open_store(folder / "runs.db") as store:
            return len(store.points("r1", "x"))

    assert as_user(ADA, work) == 1


# --- several at once --------------------------------------------------------------------------------------------------


def test_processes_that_open_a_new_store_at_once_make_it_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def work(run: str) -> None:
        with open_store(path) as store:
            begin(store, run, StateIs("done", NOW))

    with ForkedProcess(lambda: work("a")) as first, ForkedProcess(lambda: work("b")) as second:
        work("c")
        first.wait_until_done()
        second.wait_until_done()
    with open_store(path) as store:
        assert sorted(run.id for run in store.runs(states=["done"])) == ["a", "b", "c"]
    assert os.listdir(tmp_path) == ["runs.db"]


def test_two_that_choose_the_journal_of_a_new_file_at_once_both_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite fails one of them at once, whatever its timeout is: each has what the other one waits for."""
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    failures = [busy, busy]

    class Contended(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if "journal_mode" in sql and failures:
                raise failures.pop()
            return super().execute(sql, *arguments)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: real(*args, factory=Contended, **options))
    with open_store(tmp_path / "runs.db") as store:
        begin(store)
    assert not failures
    with real(tmp_path / "runs.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_opening_a_store_again_in_one_process_does_not_unlock_it(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the locks that its process has on it, those of SQLite, too.

    The next process that closes the file would take itself for the last one then, and remove the log that is in use.
    """
    code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM ropewalk_runs'); c.close()"
    with new_store(tmp_path) as store:
        begin(store)
        open_store(store.where).close()
        subprocess.run([sys.executable, "-c", code, store.where], check=True)
        assert Path(f"{store.where}-wal").exists()


def test_the_copy_of_a_store_has_the_files_that_were_copied_with_it(tmp_path: Path) -> None:
    # It named those of the original, and to delete a run of the copy deleted the folder of the original.
    with rw.track("digits", store=tmp_path / "here" / "runs.db", system=False) as run:
        for step in run.steps(2):
            run.checkpoint({"step": step})
        run.image("square", np.ones((2, 2)))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    with open_store(tmp_path / "there" / "runs.db") as copy:
        (checkpoint,), (row,), within = copy.checkpoints(run.id), copy.runs(), tmp_path / "there" / "runs" / run.id
        images = [one.path for one in copy.artifacts(run.id) if one.kind == "image"]
        assert (row.folder, copy.run(run.id).folder) == (str(within), str(within))
        assert images == [str(within / "images" / "square-2.png")]
        assert checkpoint.path == str(within / "checkpoints" / "step-2")
        assert read_checkpoint(checkpoint.path).state == {"step": 2}
        copy.delete(run.id)
    assert run.folder.is_dir() and not within.exists()


def test_a_folder_that_a_run_was_given_elsewhere_stays_its_own(tmp_path: Path) -> None:
    with rw.track("digits", store=tmp_path / "runs.db", folder=tmp_path / "elsewhere", system=False) as run:
        pass
    with open_store(tmp_path / "runs.db") as store:
        assert store.run(run.id).folder == str(tmp_path / "elsewhere" / run.id)
