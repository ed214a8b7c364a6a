"""What one process notes in a shared page, the other reads there, whatever happens to the first."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from ropewalk.transport.ack_page import AckPage
from ropewalk.transport.barriers import can_fence


def test_what_a_process_noted_before_it_was_killed_stands_there() -> None:
    fd = AckPage.create()
    page = AckPage(fd)
    child = os.fork()
    if not child:
        theirs = AckPage(fd)
        assert theirs.note(7)
        assert theirs.note(8200)
        os.kill(os.getpid(), signal.SIGSTOP)
    deadline = time.monotonic() + 120
    while not page.see(8200) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert page.see(7)
    page.close()
    page.close()
    os.close(fd)


def test_a_slot_is_taken_until_the_other_side_has_seen_it() -> None:
    fd = AckPage.create()
    ours, theirs = AckPage(fd), AckPage(fd)
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
        AckPage(fd)
    os.close(fd)


@pytest.fixture
def pages() -> Iterator[tuple[AckPage, AckPage]]:
    fd = AckPage.create()
    with contextlib.closing(AckPage(fd)) as mine, contextlib.closing(AckPage(fd)) as theirs:
        os.close(fd)
        yield mine, theirs


def test_values_that_were_begun_are_the_receivers_and_the_rest_the_lenders(pages: tuple[AckPage, AckPage]) -> None:
    receiver, lender = pages[0].lot(3), pages[1].lot(3)
    lender.open()
    assert lender.num_begun == 1
    assert [receiver.begin(1), receiver.begin(2)] == [True, True]
    assert lender.num_begun == 3
    assert lender.close() == 3
    assert receiver.begin(2), "again has no effect"
    assert receiver.begin(3) is False
    assert lender.close() == lender.num_begun == 3


def test_lots_lie_apart(pages: tuple[AckPage, AckPage]) -> None:
    mine, theirs = pages
    theirs.lot(0).open()
    theirs.lot(1).open()
    mine.lot(0).begin(7)
    assert theirs.lot(0).num_begun == 8
    assert theirs.lot(1).num_begun == 1
    assert not theirs.see(7)


def test_a_lot_says_that_its_page_was_closed(pages: tuple[AckPage, AckPage]) -> None:
    lot = pages[0].lot(0)
    lot.open()
    pages[0].close()
    with pytest.raises(ValueError, match="released"):
        lot.begin(1)


@pytest.mark.skipif(not can_fence(), reason="needs membarrier(2)")
def test_each_value_has_one_owner_whenever_the_lender_closes(pages: tuple[AckPage, AckPage]) -> None:
    lender = pages[1].lot(0)
    dice = random.Random(1)
    ours, childs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        while childs.recv(1):  # a round begins
            receiver, num = pages[0].lot(0), 1
            while (is_ours := receiver.begin(num)) or is_ours is None:
                num += is_ours is not None
            childs.send(num.to_bytes(8, "little"))
        os._exit(0)
    childs.close()
    with ours:
        for _ in range(200):
            lender.open()
            ours.send(b"!")
            while lender.num_begun < 2:
                os.sched_yield()
            for _ in range(dice.randrange(300)):
                pass
            num_begun = lender.close()
            assert int.from_bytes(ours.recv(8), "little") == num_begun
    os.waitpid(pid, 0)


def test_a_lender_that_wants_to_hear_is_seen_until_it_is_told_or_lends_anew(pages: tuple[AckPage, AckPage]) -> None:
    receiver, lender, other = pages[0].lot(3), pages[1].lot(3), pages[0].lot(4)
    lender.open()
    assert not receiver.is_watched
    lender.watch()
    assert receiver.is_watched and not other.is_watched
    receiver.unwatch()
    assert not receiver.is_watched
    lender.watch()
    lender.open()
    assert not receiver.is_watched
    assert receiver.begin(1), "what it wants to hear of is none of its fence's business"
