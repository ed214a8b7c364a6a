"""The fixture that checks what is left after each test sees every kind of leak."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from tests import left_behind
from tests.left_behind import Scan, Snapshot, _marked_pids, handler_left


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


def test_a_process_that_hangs_elsewhere_in_the_tree_is_seen() -> None:
    before = Snapshot.take()
    code = """import subprocess as s
print(s.Popen(["sleep", "60"], start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"""
    pid = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    try:
        assert f"process: pid {pid}" in left_since(before)
    finally:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while left_since(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left_since(before) == ""


def test_one_scan_that_looks_again_and_again_sees_the_same() -> None:
    scan = Scan()
    before = Snapshot.take(scan)
    assert Snapshot.take(scan).without(before).describe() == ""
    # A child; what it started, in the tree; and out of it, when the child has ended and nobody of ours is its parent.
    code = """import subprocess as s
print(s.Popen(["sleep", "60"], start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL).pid, flush=True)
input()"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        pid = int(child.stdout.readline())
        try:
            assert {key[0] for key in Snapshot.take(scan).without(before).processes} == {child.pid, pid}
            child.communicate(b"\n")
            assert {key[0] for key in Snapshot.take(scan).without(before).processes} == {pid}
        finally:
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while (left := Snapshot.take(scan).without(before).describe()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == ""


def test_a_process_that_is_just_becoming_its_program_is_seen() -> None:
    # In the middle of `exec` a process has no environment for some microseconds, and so no mark: the first version
    # missed 15 of these 20.
    for _ in range(20):
        with subprocess.Popen(["sleep", "60"]) as child:
            assert child.pid in _marked_pids()
            child.kill()


def test_an_environment_that_comes_between_two_looks_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # The environment was read before `exec` had ended, and its end looked up after: "there is none" was believed.
    looks = iter([(0, b""), (7, b"MARK=here"), (7, b"")])
    end, content = next(looks)

    def read(path: str, mode: str = "r") -> io.IOBase:
        nonlocal end, content
        if mode == "r":
            return io.StringIO(f"1 (sleep) {'0 ' * 48}{end} 0")
        found, (end, content) = content, next(looks)
        return io.BytesIO(found)

    monkeypatch.setattr(left_behind, "open", read, raising=False)
    assert left_behind._environment("self") == b"MARK=here"


def test_a_thread_is_seen() -> None:
    before = Snapshot.take()
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="left-over")
    thread.start()
    assert "thread: left-over, target Event.wait" in left_since(before)
    gate.set()
    thread.join()
    assert left_since(before) == ""


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


def test_a_handler_that_is_left_is_told_and_the_one_of_before_is_installed_again() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    try:
        signal.signal(signal.SIGUSR2, signal.default_int_handler)
        assert "SIGUSR2 is handled by <built-in function default_int_handler>" in handler_left(signal.SIGUSR2, before)
        assert signal.getsignal(signal.SIGUSR2) == before
        assert handler_left(signal.SIGUSR2, before) == ""
    finally:
        signal.signal(signal.SIGUSR2, before)
