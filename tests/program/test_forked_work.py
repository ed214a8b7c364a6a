"""What a forked child does on the memory of one moment, and that nothing is left of it however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.program.forked_work import ForkedWork, ForkedWorkFailed
from tests.patience import PATIENCE_S, wait_until


def test_a_child_sees_memory_as_it_was_when_it_was_made() -> None:
    values = np.arange(1000)
    go, told = os.pipe(), os.pipe()

    def work(sign: Any) -> bytes:
        sign()
        os.read(go[0], 1)
        sign()
        return str(values.sum()).encode()

    child = ForkedWork(work)
    values[:] = 0
    os.write(go[1], b"x")
    assert child.wait(PATIENCE_S) == b"499500"
    assert child.kill() is None
    for fd in (*go, *told):
        os.close(fd)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda _: {}["missing"], "KeyError: 'missing'"),
        (lambda _: os._exit(3), "ended with status 768 before it was done"),
        (lambda _: os.kill(os.getpid(), signal.SIGSEGV), "ended with status"),
        (lambda _: "no bytes", "TypeError"),
    ],
)
def test_what_goes_wrong_in_a_child_is_told(work: Any, words: str) -> None:
    with pytest.raises(ForkedWorkFailed, match=words):
        ForkedWork(work).wait(PATIENCE_S)


@pytest.mark.parametrize("is_done", [True, False])
def test_the_end_of_a_child_is_seen_while_another_process_has_its_pipe(is_done: bool, monkeypatch: Any) -> None:
    """A process that another thread forked in the same moment kept it open: the result was there, and not taken."""
    kept: list[int] = []
    pipe = os.pipe

    def leaking() -> tuple[int, int]:
        ends = pipe()
        kept.append(os.dup(ends[1]))
        return ends

    monkeypatch.setattr(os, "pipe", leaking)
    child = ForkedWork(lambda _: b"done" if is_done else os._exit(1))
    try:
        if is_done:
            assert child.wait(PATIENCE_S) == b"done"
        else:
            with pytest.raises(ForkedWorkFailed, match="ended with status 256"):
                child.wait(PATIENCE_S)
    finally:
        for fd in kept:
            os.close(fd)


def test_a_child_that_does_not_go_on_is_killed() -> None:
    # As one does that waits for a lock which another thread held when it was made.
    lock = threading.Lock()
    lock.acquire()
    child = ForkedWork(lambda _: b"%d" % lock.acquire())
    with pytest.raises(ForkedWorkFailed, match=r"did not go on for 0\.05 s, and was killed"):
        child.wait(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_child_ends_by_the_signals_that_its_parent_handles() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        child = ForkedWork(lambda sign: (sign(), signal.pause(), b"")[-1])
        os.read(child._report, 1)
        os.kill(child.pid, signal.SIGTERM)
        with pytest.raises(ForkedWorkFailed, match="ended with status"):
            child.wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGTERM, before)


ORPHAN = """
import os, sys, time
from ropewalk.program.forked_work import ForkedWork
def work(sign):
    while not os.path.exists("go"):
        time.sleep(0.01)
    try:
        sign()
        open("kept", "w").close()
    finally:
        open("over", "w").close()
    return b""
ForkedWork(work)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_child_whose_parent_was_killed_hears_of_it_before_it_changes_anything(tmp_path: Path) -> None:
    # A checkpoint that a dead learner's child kept came after those that its successor had begun from.
    with subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=tmp_path, stdout=subprocess.PIPE) as parent:
        assert parent.stdout and parent.stdout.readline() == b"ready\n"
        parent.kill()
        parent.wait()
        (tmp_path / "go").touch()
        wait_until((tmp_path / "over").exists)
    assert not (tmp_path / "kept").exists()
