"""A process is known by its number and its start, whatever happens to the clock."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from ropewalk.cli.submissions import RunProcess, living
from ropewalk.engines.docker import is_gone, this_process
from ropewalk.process_start import start_ticks
from ropewalk.tracking import facts
from ropewalk.tracking.store.owners import SILENT_S, LocalProcesses


def test_a_start_is_counted_from_the_boot() -> None:
    per_s = os.sysconf("SC_CLK_TCK")
    assert start_ticks(os.getpid()) / per_s == pytest.approx(psutil.Process().create_time() - psutil.boot_time())


def test_a_process_has_a_start_until_it_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert start_ticks(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(process.pid) == 0  # nobody has waited for it yet
    assert start_ticks(process.pid) == 0
    assert start_ticks(2**70) == start_ticks(-1) == 0


def test_who_is_known_lives_on_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a living process for another one: containers of a launcher were removed, a submitted run was lost."""
    run, launcher, owner = RunProcess.of(os.getpid()), this_process(), facts.this_process()
    booted, started = psutil.boot_time(), psutil.Process().create_time()
    # The kernel reports when it was booted as the time of now without the time since then.
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted - 3600)
    assert psutil.Process().create_time() == pytest.approx(started - 3600), "the clock was set back"
    assert living(run)
    assert not is_gone(launcher)
    assert not LocalProcesses().is_gone(owner, SILENT_S + 3600)
