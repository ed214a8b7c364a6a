"""Which journal a file gets, by the file system that it is on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ropewalk.tracking.store import databases
from ropewalk.tracking.store.databases import file_system
from ropewalk.tracking.store.opening import open_store
from tests.tracking.store.making import begin, logged, of

MOUNTS = """\
overlay / overlay rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/ada/fast tmpfs rw 0 0
lustre /my\\040data lustre rw 0 0
odd
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp/runs.db", "overlay"),
        ("/home/ada/runs.db", "nfs4"),
        ("/home/ada/fast/runs.db", "tmpfs"),
        ("/home/ada/faster/runs.db", "nfs4"),
        ("/my data/runs.db", "lustre"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system(path, MOUNTS) == kind


def test_of_no_mounts_nothing_is_known() -> None:
    assert file_system("/x", "") == ""


@pytest.mark.parametrize(("kind", "journal"), [("nfs4", "delete"), ("ext4", "wal")])
def test_a_file_that_several_hosts_may_open_has_no_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, journal: str
) -> None:
    (tmp_path / "mounts").write_text(f"x / {kind} rw 0 0\n")
    monkeypatch.setattr(databases, "_MOUNTS", tmp_path / "mounts")
    with open_store(tmp_path / "runs.db") as store:
        begin(store)
        with open_store(tmp_path / "runs.db") as other:
            other.apply(of("r1", *logged("x", [1])))
        assert len(store.points("r1", "x")) == 1
        connection = sqlite3.connect(tmp_path / "runs.db")
        assert connection.execute("PRAGMA journal_mode").fetchone() == (journal,)
        connection.close()
        assert (tmp_path / "runs.db-shm").exists() == (journal == "wal")


def test_a_deletion_gives_pages_back_to_the_disk(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as store:
        begin(store, "r1", *logged("x", range(20_000)))
        with store._engine.connect() as connection:
            full = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        store.delete("r1")
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA freelist_count").scalar_one() == 0
            assert connection.exec_driver_sql("PRAGMA page_count").scalar_one() < full / 2
