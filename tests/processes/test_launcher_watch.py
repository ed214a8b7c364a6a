"""An agent ends when its launcher's process is gone, or when it hears nothing from a launcher on another host."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import pytest

from ropewalk.processes import launcher_watch
from ropewalk.processes.launcher_watch import LauncherWatch
from tests.processes.pretend_loop import PretendLoop


class Loop(PretendLoop):
    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Link:
    received_bytes = 0


@pytest.fixture
def launcher() -> Any:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


def test_the_end_of_the_launcher_is_seen_where_the_kernel_does_not_report_it(
    launcher: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_watch.kernel, "open_process", lambda _pid: None)
    loop: Any = Loop()
    watch = LauncherWatch(loop, launcher.pid)
    watch.begin()
    loop.pause()
    assert not loop.is_stopped
    launcher.communicate()
    loop.pause()
    assert loop.is_stopped
    assert watch.ends_soon()


def test_a_launcher_that_is_gone_already_ends_the_agent(launcher: subprocess.Popen[bytes]) -> None:
    launcher.communicate()
    loop: Any = Loop()
    LauncherWatch(loop, launcher.pid).begin()
    assert loop.is_stopped


def test_bytes_of_a_message_that_is_not_complete_renew_the_lease(capsys: pytest.CaptureFixture[str]) -> None:
    loop, link = Loop(), Link()
    watch = LauncherWatch(loop, 0)  # type: ignore[arg-type]
    watch.begin()
    watch.begin_lease(link, 10.0)  # type: ignore[arg-type]
    now = time.monotonic()
    for after_s in range(0, 30, 4):
        link.received_bytes += 1
        watch.look(now + after_s)
    for after_s in range(30, 38, 4):
        watch.look(now + after_s)
    assert not loop.is_stopped
    watch.look(now + 38.5)
    assert loop.is_stopped
    assert "the launcher was silent for 10 s" in capsys.readouterr().out


def test_an_agent_whose_log_has_no_room_ends_with_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    # The words failed before the loop was stopped, and nothing looked again: the agent kept its host until the time
    # limit of its job.
    loop = Loop()
    watch = LauncherWatch(loop, 0)  # type: ignore[arg-type]
    watch.begin_lease(Link(), 10.0)  # type: ignore[arg-type]
    now = time.monotonic()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        for after_s in range(0, 16, 4):
            watch.look(now + after_s)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert loop.is_stopped


def test_only_the_launcher_renews_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, link = Loop(), Link()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = LauncherWatch(loop, 0)  # type: ignore[arg-type]
    watch.begin_lease(link, 10.0)  # type: ignore[arg-type]
    for after_s, speaker in ((4.0, link), (8.0, Link()), (12.0, Link())):
        monkeypatch.setattr(time, "monotonic", lambda after_s=after_s: now + after_s)
        watch.heard(speaker)  # type: ignore[arg-type]
        watch.look(now + after_s)
    assert not loop.is_stopped
    watch.look(now + 14.0)
    assert loop.is_stopped
