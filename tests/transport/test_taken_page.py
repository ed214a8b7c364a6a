"""What one process notes in a shared page, the other reads there, whatever happens to the first."""

from __future__ import annotations

import os
import signal
import time

import pytest

from ropewalk.transport.taken_page import TakenPage


def test_what_a_process_noted_before_it_was_killed_stands_there() -> None:
    fd = TakenPage.create()
    page = TakenPage(fd)
    child = os.fork()
    if not child:
        theirs = TakenPage(fd)
        theirs.note(7)
        theirs.note(8200)
        os.kill(os.getpid(), signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not page.has(8200) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert page.has(7)
    assert page.has(8200)
    assert not page.has(8)  # shares its slot with 8200
    page.close()
    page.close()
    os.close(fd)


def test_a_file_that_could_be_truncated_is_refused() -> None:
    fd = os.memfd_create("another", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8 * 8192)
    with pytest.raises(OSError, match="not as it should be"):
        TakenPage(fd)
    os.close(fd)
