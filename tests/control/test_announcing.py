"""What runs in this process is found by others, with a session and without one; in a worker only with one."""

from __future__ import annotations

import logging
import os
import types
from pathlib import Path

import pytest

from ropewalk.control.announcing import announced
from ropewalk.control.launchers import Launcher, find_launchers
from ropewalk.control.server import Look, ViewIs
from ropewalk.processes import bootstrap
from ropewalk.processes.session import Session
from tests.control.pretend import Pretence


def found(name: str) -> list[Launcher]:
    return [each for each in find_launchers([Path(os.environ["XDG_RUNTIME_DIR"])]) if each.name == name]


def test_what_has_no_session_is_announced_while_the_block_runs() -> None:
    folders = set(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir())
    target = Pretence("evolve")
    target.kind = "population"
    with announced(target):
        (launcher,) = found("evolve")
        assert (launcher.kind, launcher.id, launcher.pid) == ("population", target.id, os.getpid())
        with launcher.connect() as conversation:
            assert conversation.ask(Look(), ViewIs).view == target.now
    assert found("evolve") == []
    assert set(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir()) == folders


def test_what_has_a_session_is_announced_in_its_folder() -> None:
    with Session() as session, announced(Pretence("search"), session):
        (launcher,) = found("search")
        assert launcher.file.parent == session.folder
        with launcher.connect() as conversation:
            conversation.ask(Look(), ViewIs)
    assert found("search") == []


def test_in_a_worker_only_what_has_a_session_is_announced_within_that_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session() as session:
        monkeypatch.setattr(bootstrap, "current", types.SimpleNamespace(name="pool-1.3"))
        with announced(Pretence("nested")):
            assert found("nested") == []
        with announced(Pretence("nested"), session):
            (launcher,) = found("nested")
            assert launcher.within == "pool-1.3"
        monkeypatch.undo()


def test_what_cannot_be_announced_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ROPEWALK_RUN_FOLDER", str(tmp_path / "missing"))
    with caplog.at_level(logging.WARNING), announced(Pretence("hidden")):
        assert found("hidden") == []
    assert "program hidden is not shown by ropewalk ps and the page" in caplog.text


def test_an_error_of_the_block_is_the_callers() -> None:
    with pytest.raises(KeyError, match="its own"), announced(Pretence("raises")):
        raise KeyError("its own")
    assert found("raises") == []
