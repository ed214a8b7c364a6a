"""A host's blobs: who makes those that are made there, and when they are freed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from ropewalk.processes import blob_shelf
from ropewalk.processes.blob_shelf import SPARE_S, BlobShelf
from ropewalk.processes.fan_out import FetchProblem
from ropewalk.processes.messages import BlobAbsent, BlobHere, BlobNotFetched, Make, PutBlob
from ropewalk.transport.blobs import BlobRef, pack
from ropewalk.transport.descriptors import Descriptors
from ropewalk.transport.link import Link, Received

REF = BlobRef("noise/1", (3,))


class Process:
    """The agent's end of a link: keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, message: Any, parts: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        self.told.append(message)
        if isinstance(message, BlobHere):
            assert [os.pread(fd, 3, 0) for fd in fds] == [b"abc"]

    send_if_open = send


class Shelf:
    """A shelf with a clock that the test moves, and calls of processes as the agent makes them."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.fd = -1
        self._shelf = BlobShelf(lambda delay_s, call: self.later.append((delay_s, call)))

    def ask(self, process: Process) -> None:
        self._shelf.get_made(cast(Link, process), REF.id)

    def put(self, process: Process) -> None:
        self.fd = pack([b"abc"])
        self._shelf.put(cast(Link, process), Received(PutBlob(REF), [], Descriptors([self.fd])))

    def gone(self, process: Process) -> None:
        self._shelf.forget(cast(Link, process))

    @property
    def is_open(self) -> bool:
        try:
            os.fstat(self.fd)
        except OSError:
            return False
        return True


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_the_first_who_asks_makes_it_and_the_others_are_given_it(shelf: Shelf) -> None:
    first, second, late = Process(), Process(), Process()
    shelf.ask(first)
    shelf.ask(second)
    assert (first.told, second.told) == ([Make(REF.id)], [])
    shelf.put(first)
    shelf.ask(late)
    assert (first.told, second.told, late.told) == ([Make(REF.id)], [BlobHere(REF)], [BlobHere(REF)])
    _free(shelf, first, late, second)


def test_when_the_maker_dies_the_next_one_makes_it(shelf: Shelf) -> None:
    first, second, third = Process(), Process(), Process()
    for process in (first, second, third):
        shelf.ask(process)
    shelf.gone(second)  # who only waits is not missed
    shelf.gone(first)
    assert (second.told, third.told) == ([], [Make(REF.id)])
    shelf.gone(third)
    last = Process()
    shelf.ask(last)
    shelf.put(last)
    assert last.told == [Make(REF.id)]
    _free(shelf, last)


def test_it_waits_for_the_next_user_before_it_is_freed(shelf: Shelf) -> None:
    first, second = Process(), Process()
    shelf.ask(first)
    shelf.put(first)
    shelf.gone(first)
    ((delay_s, look),) = shelf.later
    assert delay_s == SPARE_S
    shelf.ask(second)
    look()
    assert second.told == [BlobHere(REF)]
    assert shelf.is_open, "it was freed under its second user"
    shelf.later.clear()
    _free(shelf, second)
    again = Process()
    shelf.ask(again)
    assert again.told == [Make(REF.id)]


def test_a_call_is_made_when_the_blob_is_here() -> None:
    shelf, owner, heard = BlobShelf(lambda _delay_s, _call: None), cast(Link, Process()), list[bytes]()

    def hear(data: bytes, problem: str) -> None:
        assert not problem
        heard.append(data)

    shelf.when_here(REF.id, hear)
    assert not heard and shelf.file_of(REF.id) is None
    shelf.keep(owner, REF, fd := pack([b"abc"]))
    shelf.when_here(REF.id, hear)
    assert heard == [b"abc", b"abc"] and shelf.file_of(REF.id) == (fd, 64)
    assert shelf.hold(owner, REF.id) and not shelf.hold(owner, "other")
    shelf.drop(owner, REF.id)


def test_who_waits_for_a_blob_that_the_host_cannot_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # The error was in the agent's log alone: the tasks that needed the value waited for ever.
    shelf, owner, waiting, later = BlobShelf(lambda _delay_s, _call: None), Process(), Process(), Process()
    heard: list[tuple[bytes, str]] = []
    shelf.get(cast(Link, waiting), REF.id)
    shelf.when_here(REF.id, lambda data, problem: heard.append((data, problem)))

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    sent = Received(PutBlob(REF), [b"abc"])
    with monkeypatch.context() as patch:
        patch.setattr(blob_shelf, "pack", refuse)
        shelf.put(cast(Link, owner), sent)
    shelf.get(cast(Link, later), REF.id)
    (said,) = waiting.told
    assert isinstance(said, BlobAbsent) and said.problem.endswith("Cannot allocate memory")
    assert later.told == [said] and heard == [(b"", said.problem)]
    assert owner.told == [BlobNotFetched(REF.id, 0, FetchProblem.NO_MEMORY)]
    shelf.put(cast(Link, owner), sent)  # it is sent again to the next one that needs it
    shelf.get(cast(Link, later), REF.id)
    assert later.told[1:] == [BlobHere(REF)] and len(waiting.told) == 1
    shelf.drop(cast(Link, owner), REF.id)


def test_who_cannot_be_given_a_blob_for_lack_of_descriptors_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, owner, process = BlobShelf(lambda _delay_s, _call: None), cast(Link, Process()), Process()
    shelf.keep(owner, REF, pack([b"abc"]))

    def send(message: Any, parts: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        if fds:
            raise OSError(errno.EMFILE, "Too many open files")
        process.told.append(message)

    monkeypatch.setattr(process, "send_if_open", send)
    shelf.get(cast(Link, process), REF.id)
    (said,) = process.told
    assert isinstance(said, BlobAbsent) and said.problem.endswith("Too many open files")
    shelf.drop(owner, REF.id)


def _free(shelf: Shelf, *owners: Process) -> None:
    for owner in owners:
        assert not shelf.later, "it is let go of while somebody has it"
        shelf.gone(owner)
    assert shelf.is_open
    ((_, look),) = shelf.later
    look()
    assert not shelf.is_open
