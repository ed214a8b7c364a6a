"""An agent ends processes whose tasks run too long and processes that stay stopped, and blames no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest

from ropewalk.processes.agent_children import AgentChildren
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.messages import Sample
from ropewalk.processes.page import CURRENT, IDLE, STARTED_NS
from ropewalk.processes.process_watch import ProcessWatch
from tests.processes.pretend_loop import START, PretendLink, PretendLoop


@pytest.fixture
def own_process() -> Iterator[HostedProcess]:
    owner: Any = PretendLink("owner")
    process = HostedProcess(START, owner, None)
    yield process
    process.close()


class Watched:
    """One process, which is not there: its page, its samples and the signals to it are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit_s: float | None = None) -> None:
        self.loop: Any = PretendLoop()
        self.owner: Any = PretendLink("owner")
        self.signals: list[int] = []
        monkeypatch.setattr(os, "kill", lambda _pid, number: self.signals.append(number))
        start = msgspec.structs.replace(START, id="1", task_limit_s=limit_s)
        self.process = HostedProcess(start, self.owner, None)
        self.process.page.words[CURRENT] = IDLE
        self.state = "S"
        monkeypatch.setattr(self.process, "sample", lambda: Sample("1", 0, 0.0, self.state))
        self.children = AgentChildren({"1": self.process}, [])
        self.children.started(self.process, 1 << 22)  # more than any process id
        self.watch = ProcessWatch(self.loop, self.children)
        self.watch.begin(self.process)

    def begin_task(self, number: int, ago_s: float) -> None:
        self.process.page.words[STARTED_NS] = time.monotonic_ns() - int(ago_s * 1e9)
        self.process.page.words[CURRENT] = number


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(monkeypatch, limit_s=100.0)
    yield watched
    watched.process.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(monkeypatch)
    yield watched
    watched.process.close()


def test_a_task_that_runs_too_long_prints_its_stacks_and_ends_its_process(limited: Watched) -> None:
    limited.begin_task(7, ago_s=99)
    limited.loop.pause()
    assert limited.signals == []
    limited.begin_task(7, ago_s=101)
    limited.loop.pause()
    assert limited.signals == [signal.SIGUSR2]
    limited.loop.pause()
    assert limited.signals == [signal.SIGUSR2, signal.SIGKILL]
    assert limited.process.overran == 7
    assert limited.process.ended_by == "its task ran longer than task_timeout_s=100"


def test_the_next_task_is_not_blamed_for_one_that_ended_just_in_time(limited: Watched) -> None:
    limited.begin_task(7, ago_s=101)
    limited.loop.pause()
    limited.begin_task(8, ago_s=0)
    limited.loop.pause()
    assert limited.signals == [signal.SIGUSR2]
    assert limited.process.overran is None
    assert len(limited.loop.later) == 1, "its limit is still checked"


def test_a_process_that_has_ended_is_not_checked_any_more(limited: Watched) -> None:
    limited.children.forget(limited.process)
    limited.loop.pause()
    assert limited.loop.later == []


def test_without_a_limit_nothing_is_checked(watched: Watched) -> None:
    assert watched.loop.later == []


def test_a_process_that_stays_stopped_is_ended(watched: Watched) -> None:
    now = time.monotonic()
    watched.state = "T"
    for at_s in (1, 2, 3):
        assert [sample.id for sample in watched.watch.sample(now + at_s)[watched.owner]] == ["1"]
    assert watched.signals == []
    watched.watch.sample(now + 4)
    assert watched.signals == [signal.SIGKILL]
    assert watched.process.ended_by == "it had been stopped (SIGSTOP) for 3 s"


def test_time_in_which_the_agent_itself_was_stopped_does_not_count(watched: Watched) -> None:
    now = time.monotonic()
    watched.state = "T"
    watched.watch.sample(now + 1)
    watched.watch.sample(now + 60)  # all of the machine was suspended
    assert watched.signals == []
    watched.state = "S"
    watched.watch.sample(now + 61)
    assert watched.process.stopped_since is None


def test_a_sample_says_what_psutil_says_and_nothing_of_who_has_ended(own_process: HostedProcess) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "sum(range(3_000_000)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout and child.stdout.readline()
        own_process.pid = child.pid
        waiting = psutil.Process(child.pid)
        while waiting.status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)
        sample = own_process.sample()
        assert sample is not None and sample.state == "S"
        assert sample.cpu_s == pytest.approx(sum(waiting.cpu_times()[:2])) and sample.cpu_s > 0
        assert sample.memory_bytes == pytest.approx(waiting.memory_info().rss, rel=0.1)
        os.kill(child.pid, signal.SIGSTOP)
        while waiting.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        sample = own_process.sample()
        assert sample is not None and sample.state == "T"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert own_process.sample() is None, "it is there until its parent has waited for it"
    assert own_process.sample() is None
