"""Which runs of a database a command may go on with: others may write there what they like."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.tracking.store import own_runs as module
from ropewalk.tracking.store.own_runs import own_runs
from tests.other_users import MALLORY, needs_root


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "_told", set())
    (tmp_path / "runs").mkdir()
    return SimpleNamespace(where="postgresql://host/runs", folder=tmp_path / "runs")


def row(folder: Path, id: str = "") -> Any:
    return SimpleNamespace(id=id or folder.name, name="mine", folder=str(folder))


def test_a_run_whose_folder_is_one_of_this_users_counts(
    store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (store.folder / "aa11", tmp_path / "elsewhere" / "bb22", tmp_path / "thesis"):
        folder.mkdir(parents=True)
    (store.folder / "link").symlink_to(tmp_path / "thesis")
    (tmp_path / "same").symlink_to(store.folder)
    own = [row(store.folder / "aa11"), row(tmp_path / "same" / "aa11")]
    others = [
        row(tmp_path / "elsewhere" / "bb22"),  # it is there, but not among this user's runs
        row(store.folder / "cc33"),  # it is not there
        row(store.folder / "link"),
        row(tmp_path / "thesis"),
        row(store.folder / "aa11", id="dd44"),
        row(store.folder / "../thesis", id="../thesis"),
        row(Path("aa11")),
        row(Path("/\0")),
    ]
    assert list(own_runs(store, [*others, *own])) == own
    assert list(own_runs(store, others, tmp_path / "elsewhere")) == others[:1]
    assert not any((tmp_path / name).exists() for name in ("runs/cc33", "aa11"))
    [told] = [record.getMessage() for record in caplog.records if "bb22" in record.getMessage()]
    assert "mine (bb22) in postgresql://host/runs does not go on here" in told and "give folder=" in told
    store.where = str(tmp_path / "runs.db")
    assert list(own_runs(store, others)) == others, "a file of this user says nothing else"


@needs_root
def test_a_folder_of_another_user_is_none_of_ours(store: Any) -> None:
    (store.folder / "aa11").mkdir()
    os.chown(store.folder / "aa11", MALLORY, MALLORY)
    assert list(own_runs(store, [row(store.folder / "aa11")])) == []
