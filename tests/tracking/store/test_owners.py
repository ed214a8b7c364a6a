"""When the process that writes a run counts as gone."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from ropewalk.tracking.records import OwnerIs
from ropewalk.tracking.store.owners import SILENT_S, LocalProcesses, process_started

OWNER = OwnerIs("h", 7, 1000.0, "boot")


@pytest.mark.parametrize(
    ("started", "silence_s", "is_gone"),
    [
        (1000.0, 1e9, False),  # a process that is there may be silent for ever
        (1002.0, 1e9, False),
        (1002.1, 1e9, True),  # another process has the id
        (1002.1, SILENT_S, False),  # or the clock was changed
        (None, 0.0, True),
    ],
)
def test_on_this_host_the_process_decides(started: float | None, silence_s: float, is_gone: bool) -> None:
    here = LocalProcesses("h", "boot", lambda _: started)
    assert here.is_gone(OWNER, silence_s) == is_gone


@pytest.mark.parametrize(
    "here",
    [
        LocalProcesses("other", "boot", lambda _: None),
        LocalProcesses("h", "later", lambda _: None),
        LocalProcesses("h", "", lambda _: None),
    ],
)
def test_elsewhere_silence_decides(here: LocalProcesses) -> None:
    assert not here.is_gone(OWNER, SILENT_S)
    assert here.is_gone(OWNER, SILENT_S + 1)


def test_a_process_is_looked_up_once() -> None:
    asked: list[int] = []
    here = LocalProcesses("h", "boot", lambda pid: asked.append(pid) or 1000.0)
    assert not any(here.is_gone(OWNER, 0) for _ in range(3))
    assert asked == [7]


def test_processes_are_there_until_they_end() -> None:
    assert process_started(os.getpid()) == psutil.Process().create_time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process_started(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_started(process.pid) is None  # nobody has waited for it yet
    assert process_started(process.pid) is None
    assert process_started(2**70) is None and process_started(-1) is None
