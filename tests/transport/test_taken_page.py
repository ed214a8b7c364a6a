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
        assert theirs.note(7)
        assert theirs.note(8200)
        os.kill(os.getpid(), signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not page.see(8200) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert page.see(7)
    page.close()
    page.close()
    os.close(fd)


def test_a_slot_is_taken_until_the_other_side_has_seen_it() -> None:
    fd = TakenPage.create()
    ours, theirs = TakenPage(fd), TakenPage(fd)
    assert ours.note(8)
    assert not ours.note(8200)  # they share a slot
    assert not theirs.see(8200)
    assert theirs.see(8)
    assert not theirs.see(8)
    assert ours.note(8200)
    assert theirs.see(8200)
    os.close(fd)


def test_a_file_that_could_be_truncated_is_refused() -> None:
    fd = os.memfd_create("another", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8 * 8192)
    with pytest.raises(OSError, match="not as it should be"):
        TakenPage(fd)
    os.close(fd)
