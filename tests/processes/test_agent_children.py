"""An agent tells its own processes from what dead ones left behind, also while a fork server has not answered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import psutil
import pytest

from ropewalk.descendants import descendants, kill, own_children
from ropewalk.processes.agent_children import AgentChildren
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.transport import kernel

SLEEPS = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(600)"]


class Process:
    """What these tests need of a `HostedProcess`."""

    num_looks = 0
    """How often the process id of any was asked for."""

    def __init__(self, id: str) -> None:
        self._pid: int | None = None
        self.ended_by = ""
        self.start: Any = type("start", (), {"name": "pool-1.0", "id": id})

    @property
    def pid(self) -> int | None:
        Process.num_looks += 1
        return self._pid

    @pid.setter
    def pid(self, pid: int) -> None:
        self._pid = pid


class Children:
    """The children of this process, of which each test starts a few."""

    def __init__(self) -> None:
        self.processes: dict[str, Any] = {}
        self.channel: Any = type("channel", (), {"pid": 0, "ended": lambda *_: False})()
        self.table = AgentChildren(self.processes, [self.channel])
        self.started: list[subprocess.Popen[bytes]] = []

    def forking(self, id: str) -> HostedProcess:
        process = self.processes[id] = cast(HostedProcess, Process(id))
        return process

    def popen(self, *, leads: bool = True) -> int:
        child = subprocess.Popen(SLEEPS, start_new_session=leads, stdout=subprocess.PIPE)
        assert child.stdout
        child.stdout.readline()  # it is up
        child.stdout.close()
        self.started.append(child)
        return child.pid

    def has_ended(self, pid: int) -> bool:
        """Wait for the end of a child that was killed; it is not reaped here."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return True

    def close(self) -> None:
        for child in self.started:
            child.kill()
            child.wait()


@pytest.fixture
def children() -> Any:
    found = Children()
    before = {child.pid for child in psutil.Process().children()}
    assert not before, "these tests end all children of this process that they do not know"
    yield found
    found.close()


def test_orphans_are_ended_with_the_group_of_their_process(children: Children) -> None:
    dead, orphan = children.popen(), children.popen()
    alive = children.popen()
    for id, pid in (("1", dead), ("2", alive)):
        children.table.started(children.forking(id), pid)
    children.table.end_groups([children.processes["1"]])
    assert children.has_ended(dead)
    assert children.has_ended(orphan)
    assert psutil.pid_exists(alive)
    assert children.table.by_pid == {alive: children.processes["2"]}


def test_a_child_is_left_alone_while_a_fork_is_awaited_and_it_may_be_that_one(children: Children) -> None:
    dead, unknown = children.popen(), children.popen()
    children.table.started(children.forking("1"), dead)
    children.forking("2")
    children.table.end_groups([children.processes.pop("1")])
    os.kill(unknown, 0)
    assert psutil.Process(unknown).status() != psutil.STATUS_ZOMBIE
    children.table.started(children.processes["2"], children.popen())  # the fork was another child
    children.table.forks_answered()
    assert children.has_ended(unknown)


def test_the_end_of_a_process_before_its_fork_is_known_is_remembered(children: Children) -> None:
    process, pid = children.forking("1"), children.popen()
    os.kill(pid, signal.SIGTERM)
    children.has_ended(pid)
    assert children.table.reap() == []
    children.table.started(process, pid)
    assert children.table.early_exit(pid) == -signal.SIGTERM
    assert children.table.early_exit(pid) is None


def test_the_exit_codes_of_hosted_processes_are_collected(children: Children) -> None:
    process, pid = children.forking("1"), children.popen()
    children.table.started(process, pid)
    children.table.kill(process, "it was asked to")
    children.table.kill(process, "a second reason")
    children.has_ended(pid)
    assert children.table.reap() == [(process, -signal.SIGKILL)]
    assert process.ended_by == "it was asked to"


def test_a_process_that_has_ended_is_not_killed_by_its_number_which_may_belong_to_another(children: Children) -> None:
    gone, successor, pid = children.forking("1"), children.forking("2"), children.popen()
    gone.pid = pid
    children.table.started(successor, pid)
    children.table.kill(gone, "too late")
    assert not children.table.runs(gone)
    assert children.table.runs(successor)
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_all_children_are_ended(children: Children) -> None:
    pids = [children.popen(), children.popen(leads=False)]
    children.table.started(children.forking("1"), pids[0])
    children.table.end_all(10.0)
    assert not any(map(psutil.pid_exists, pids))


@pytest.fixture
def adopting() -> Iterator[None]:
    kernel.adopt_orphans()  # as an agent does
    yield
    kernel._prctl(kernel._PR_SET_CHILD_SUBREAPER, 0)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.usefixtures("adopting")
def test_all_descendants_are_ended_also_those_that_left_their_session(children: Children) -> None:
    nests = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-S", "-c", nests, *SLEEPS], stdout=subprocess.PIPE)
    children.started.append(child)
    assert child.stdout
    grandchild = int(child.stdout.readline())
    child.stdout.close()
    assert grandchild in descendants(os.getpid())
    assert own_children() == [child.pid]
    children.table.end_all(60.0)
    assert not any(map(psutil.pid_exists, (child.pid, grandchild)))


def test_children_are_found_where_the_kernel_does_not_list_them(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = children.popen()

    def refuse(*_args: object, **_more: object) -> str:
        raise FileNotFoundError

    with monkeypatch.context() as patched:
        patched.setattr("ropewalk.descendants.Path", lambda _path: type("file", (), {"read_text": refuse}))
        assert own_children() == [pid]


def test_what_the_start_of_many_costs_is_not_the_square_of_their_number(children: Children) -> None:
    # Each answer of the fork server made the agent look at all processes that it had answered before.
    num = 500
    requested = [children.forking(str(number)) for number in range(num)]
    before = Process.num_looks
    for number, process in enumerate(requested):
        children.table.started(process, 1 << 22 | number)  # more than any process id
        children.table.forks_answered()
    assert Process.num_looks - before <= 5 * num


def test_a_fork_is_awaited_until_the_last_is_answered_or_given_up(children: Children) -> None:
    first, second, third = (children.forking(id) for id in "abc")
    children.table.started(third, 1 << 22)
    assert children.table._forks_awaited
    children.processes.pop("b")
    assert children.table._forks_awaited, "the first is"
    children.table.started(first, 1 << 22 | 1)
    assert not children.table._forks_awaited and second.pid is None
    children.forking("d")
    assert children.table._forks_awaited


def test_one_that_has_ended_does_not_keep_the_others_alive(children: Children) -> None:
    ended, alive = children.popen(), children.popen()
    os.kill(ended, signal.SIGKILL)
    os.waitpid(ended, 0)
    kill([ended, alive])
    assert os.waitstatus_to_exitcode(os.waitpid(alive, 0)[1]) == -signal.SIGKILL
