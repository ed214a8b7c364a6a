"""Memory of a service that its callers see: places are free again when nobody looks at them any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import ropewalk as rw
from ropewalk.calls.lent_memory import MOST_LENT, LentMemory, MemoryBorrower, MemoryLender
from ropewalk.errors import PeerLost
from ropewalk.program.running import RunningProgram
from tests.patience import wait_until

pytestmark = pytest.mark.usefixtures("shared_session")


class Lending:
    """Lends memory that is filled with a number."""

    def __init__(self) -> None:
        self._lender = MemoryLender()

    def fill(self, size: int, number: int, pid: int) -> LentMemory | None:
        lent = self._lender.lend(size, pid)
        if lent is None:
            return None
        lent[0][:] = bytes([number]) * size
        return lent[1]

    def fill_and_take_back(self, size: int, pid: int) -> None:
        lent = self._lender.lend(size, pid)
        assert lent
        self._lender.take_back(lent[1], pid)


@pytest.fixture
def running() -> Iterator[RunningProgram]:
    program = rw.Program("lending")
    program.add(rw.Service(Lending), name="lending")
    with program.launch() as running:
        running.wait_ready()
        yield running


def test_memory_is_what_the_service_wrote_and_is_lent_again_when_it_was_dropped(running: RunningProgram) -> None:
    service, borrower = running.client("lending"), MemoryBorrower()
    first = service.fill(5000, 1, os.getpid())
    memory = borrower.open(first)
    second = service.fill(5000, 2, os.getpid())
    other = borrower.open(second)
    assert second.place != first.place
    assert bytes(memory) == b"\1" * 5000 and bytes(other) == b"\2" * 5000
    del memory
    assert service.fill(5000, 3, os.getpid()).place == first.place
    assert bytes(other) == b"\2" * 5000
    borrower.close()
    assert bytes(other) == b"\2" * 5000, "what is in use stays readable"


def test_a_caller_that_has_too_much_gets_none_until_it_drops_some(running: RunningProgram) -> None:
    service, borrower = running.client("lending"), MemoryBorrower()
    kept = [borrower.open(service.fill(2000, number, os.getpid())) for number in range(MOST_LENT)]
    assert service.fill(2000, 9, os.getpid()) is None
    assert [memory[0] for memory in kept] == list(range(MOST_LENT))
    kept.pop(3)
    assert service.fill(2000, 9, os.getpid()) is not None
    borrower.close()


def test_what_was_taken_back_is_lent_again(running: RunningProgram) -> None:
    service = running.client("lending")
    for _ in range(MOST_LENT + 1):
        service.fill_and_take_back(3000, os.getpid())


def borrow_for_good(lending: Lending) -> None:
    """A caller that takes all that it can get, and keeps it."""
    while lending.fill(1 << 20, 7, os.getpid()):
        pass
    rw.wait_for_stop()


def test_the_memory_of_a_caller_that_was_killed_is_lent_again() -> None:
    program = rw.Program("borrowing")
    lending = program.add(rw.Service(Lending), name="lending")
    program.add(rw.Worker(borrow_for_good, lending), name="borrower", essential=False)
    with program.launch() as running:
        running.wait_ready()
        service, borrower = running.client("lending"), MemoryBorrower()
        (pid,) = [node.pid for node in running.status().nodes if node.name == "borrower"]
        assert pid
        wait_until(lambda: service.fill(1 << 20, 7, pid) is None, what="the borrower to have all that it can get")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
        lent = service.fill(1 << 20, 8, os.getpid())
        assert lent.place.slab_offset == 0 or lent.place.number < MOST_LENT
        assert borrower.open(lent)[0] == 8
        borrower.close()


def test_memory_of_a_service_that_is_gone_cannot_be_opened(running: RunningProgram) -> None:
    lent = running.client("lending").fill(2000, 1, os.getpid())
    running.stop()
    with pytest.raises(PeerLost, match=r"process \d+ is gone"):
        MemoryBorrower().open(lent)


def test_nothing_is_lent_outside_of_a_call() -> None:
    assert MemoryLender().lend(2000, os.getpid()) is None
