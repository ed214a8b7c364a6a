"""Stores on a disk that is full, for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropewalk.errors import StoreError
from ropewalk.tracking.store import migrating
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.schema import REVISIONS
from tests.tracking.store.making import begin, logged, of


def fill(disk: Path) -> Path:
    """A file that takes all the room that there is."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_a_run_goes_on_when_there_is_room_again(small_disk: Path) -> None:
    with open_store(small_disk / "runs.db") as store:
        begin(store, "r1", *logged("x", range(100)))
        ballast = fill(small_disk)
        batch = of("r1", *logged("x", range(5000), first=101))
        for _ in range(2):
            with pytest.raises(StoreError, match=r"disk is full; free some space on its disk"):
                store.apply(batch)
        assert len(store.points("r1", "x")) == 100
        ballast.unlink()
        store.apply(batch)
        assert len(store.points("r1", "x")) == 5100
    with open_store(small_disk / "runs.db") as store:
        assert store.points("r1", "x").values.tolist() == [*range(100), *range(5000)]


def test_a_store_that_cannot_be_made_is_made_later(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(StoreError):
        open_store(small_disk / "runs.db")
    ballast.unlink()
    with open_store(small_disk / "runs.db") as store:
        begin(store)


def test_without_room_for_a_backup_nothing_is_migrated(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(small_disk / "runs.db") as store:
        begin(store, "r1", *logged("x", range(3000)))
    ballast = fill(small_disk)
    os.truncate(ballast, ballast.stat().st_size - 100_000)  # room for the log, and not for a copy of the file
    assert (small_disk / "runs.db").stat().st_size > 150_000
    before = (small_disk / "runs.db").read_bytes()
    monkeypatch.setattr(migrating, "REVISIONS", (*REVISIONS, "0002"))
    monkeypatch.setattr(migrating, "_upgrade", lambda _: pytest.fail("migrated"))
    with pytest.raises(StoreError, match=r"disk is full"):
        open_store(small_disk / "runs.db")
    ballast.unlink()
    monkeypatch.undo()
    assert (small_disk / "runs.db").read_bytes() == before
    assert [path.name for path in small_disk.iterdir() if "backup" in path.name] == []
    with open_store(small_disk / "runs.db") as store:
        assert len(store.points("r1", "x")) == 3000
