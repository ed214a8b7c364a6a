"""The fixture that checks what is left after each test sees every kind of leak."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from tests.conftest import Snapshot


def left_since(before: Snapshot) -> str:
    return Snapshot.take().without(before).describe()


def test_nothing_left_is_nothing() -> None:
    before = Snapshot.take()
    assert not Snapshot.take().without(before)


def test_a_child_is_seen_until_it_is_waited_for() -> None:
    before = Snapshot.take()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert f"process: pid {child.pid}" in left_since(before)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert "which nobody waited for" in left_since(before)
    assert left_since(before) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_that_hangs_elsewhere_in_the_tree_is_seen() -> None:
    before = Snapshot.take()
    code = """import subprocess as s
print(s.Popen(["sleep", "60"], start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"""
    pid = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    try:
        assert f"process: pid {pid}" in left_since(before)
    finally:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while left_since(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left_since(before) == ""


def test_a_thread_is_seen() -> None:
    before = Snapshot.take()
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="left-over")
    thread.start()
    assert "thread: left-over, target Event.wait" in left_since(before)
    gate.set()
    thread.join()
    assert left_since(before) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_descriptor_is_seen_with_what_it_is() -> None:
    before = Snapshot.take()
    fds = [os.memfd_create("blob"), *os.pipe(), os.pidfd_open(os.getpid())]
    found = left_since(before)
    for fd in fds:
        os.close(fd)
    for kind in ("memfd:blob", "pipe:", "pidfd"):
        assert kind in found
    assert left_since(before) == ""


def test_a_run_folder_is_seen() -> None:
    before = Snapshot.take()
    with tempfile.TemporaryDirectory(prefix="ropewalk-") as folder:
        assert f"temporary file: {folder}" in left_since(before)
    assert left_since(before) == ""
