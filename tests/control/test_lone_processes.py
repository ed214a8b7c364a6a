"""Processes, managers and depots, which no pool and no program shows, are seen from other terminals."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.control.launchers import Launcher, RequestFailed, find_launchers
from ropewalk.control.server import Act, ActionDone, Look, Stacks, StacksAre, ViewIs
from ropewalk.control.view import View
from ropewalk.processes.shared_sessions import default_session
from tests.control.looking import within
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("shared_session")


def wait_for(path: str) -> None:
    Path(f"{path}.began").touch()
    while not os.path.exists(path):
        time.sleep(0.005)


def shown() -> list[Launcher]:
    found = find_launchers([default_session().folder.parent])
    return [each for each in found if each.kind == "processes" and each.pid == os.getpid()]


def test_a_process_is_seen_while_it_runs_and_can_be_killed(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    first, second = (rw.Process(target=wait_for, args=(gate,), name=name) for name in ("first-1", "second-1"))
    first.start()
    second.start()
    assert within(PATIENCE_S, shown)
    (launcher,) = shown()
    with launcher.connect() as conversation:

        def look() -> View:
            return conversation.ask(Look(), ViewIs).view

        assert within(PATIENCE_S, lambda: os.path.exists(f"{gate}.began"))
        view = look()
        assert (view.kind, view.state, view.facts["processes"]) == ("processes", "running", 2)
        assert launcher.name.endswith("processes")
        rows = {process.pid: process for process in view.processes}
        assert list(rows) == [first.pid, second.pid]
        assert {(row.kind, row.state) for row in rows.values()} == {("process", "running")}
        name = view.processes[0].name
        assert within(PATIENCE_S, lambda: "in wait_for" in stack_of(launcher, name))
        with pytest.raises(RequestFailed, match="has no process 'nobody'"):
            conversation.ask(Act("kill", "nobody"), ActionDone)
        with pytest.raises(RequestFailed, match="can be asked to kill, not to 'restart'"):
            conversation.ask(Act("restart", name), ActionDone)
        assert conversation.ask(Act("kill", name), ActionDone).text == f"{name} is killed"
        first.join(PATIENCE_S)
        assert first.exitcode == -signal.SIGKILL
        assert [process.pid for process in look().processes] == [second.pid]
    Path(gate).touch()
    second.join(PATIENCE_S)
    assert within(PATIENCE_S, lambda: not shown()), "nothing is left to be shown"


def stack_of(launcher: Launcher, name: str) -> str:
    with launcher.connect() as conversation:
        return conversation.ask(Stacks(name, PATIENCE_S), StacksAre, PATIENCE_S).stacks.get(name, "")


@pytest.mark.cold  # a manager's links live as long as the session
def test_a_manager_is_seen_and_a_pool_shows_its_workers_itself() -> None:
    with rw.Manager() as manager, rw.Pool(1) as pool:
        assert pool.apply(abs, (-1,)) == 1 and manager.dict() is not None
        assert within(PATIENCE_S, shown)
        (launcher,) = shown()
        with launcher.connect() as conversation:
            kinds = [process.kind for process in conversation.ask(Look(), ViewIs).view.processes]
    assert kinds == ["manager"]
    assert within(PATIENCE_S, lambda: not shown())
