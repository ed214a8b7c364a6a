"""Agents that fetch blobs from each other, over TLS on this machine, and what they believe."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from ropewalk.processes import blob_exchange
from ropewalk.processes.blob_exchange import BlobExchange
from ropewalk.processes.blob_shelf import BlobShelf
from ropewalk.processes.fan_out import FetchProblem
from ropewalk.processes.messages import (
    PEER,
    PIECE_BYTES,
    AgentBoot,
    BlobAbsent,
    BlobFetched,
    BlobHere,
    BlobNotFetched,
    BlobPiece,
    Certificate,
    FetchBlob,
    HostEvent,
    ReadBlob,
    Retired,
    RetiredProcess,
)
from ropewalk.transport.address import parse_address
from ropewalk.transport.authority import RunAuthority
from ropewalk.transport.blobs import BlobRef, name_of, open_parts, pack
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.tokens import key_of_agent, key_of_host, key_of_socket, token_of
from tests.patience import wait_until

RUN, KEY = "run", "k" * 64
AUTHORITY = RunAuthority.create(RUN)
CERTIFICATES = {name: AUTHORITY.issue(name) for name in ("a", "b", "c")}
PARTS = [b"head", os.urandom(3 * PIECE_BYTES + 17), b"", os.urandom(1000)]
REF = BlobRef(name_of(PARTS), tuple(map(len, PARTS)))


def image() -> bytes:
    """The blob as it lies in memory."""
    fd = pack(PARTS)
    try:
        return os.pread(fd, REF.size_bytes, 0)
    finally:
        os.close(fd)


IMAGE = image()


class Ear:
    """The agent's end of a link to the launcher, or to a process of its host: keeps what is sent."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.parts: list[bytes] = []

    def send(self, message: Any, parts: Sequence[Any] = (), fds: Sequence[int] = ()) -> None:
        self.heard.append(message)
        if isinstance(message, BlobHere):
            views = open_parts(os.dup(fds[0]), message.ref.lengths, writable=False)
            self.parts = [bytes(view) for view in views]

    send_if_open = send


class Agent:
    """The part of an agent that has blobs, with a loop of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[Any] = []
        self.launcher = Ear()
        self.address = ""
        self.loop = Loop()
        boot = AgentBoot(
            RUN, name, "", "", "", 0, 1,
            certificate=Certificate.of(CERTIFICATES[name]), service_key=key_of_host(KEY, name),
        )  # fmt: skip
        self.shelf = BlobShelf(self.loop.call_later)
        self.exchange = BlobExchange(boot, self.loop, self.shelf, self.told.append)
        self.loop.call_soon(self._open)
        self.loop.start(f"agent {name}")
        wait_until(lambda: bool(self.address))

    def _open(self) -> None:
        self.address = self.exchange.open("127.0.0.1")

    def do(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the loop make a call, and wait for it."""
        done: list[bool] = []
        self.loop.call_soon(lambda: (call(*arguments), done.append(True)))
        wait_until(lambda: bool(done))

    def fetch(self, number: int, source: Agent | None = None, *, token: str | None = None) -> None:
        """As the launcher asks."""
        order = FetchBlob(REF, number, "")
        if source:
            token = token_between(self.name, source.name) if token is None else token
            order = FetchBlob(REF, number, source.name, source.address, token)
        self.do(self.exchange.fetch, cast(Link, self.launcher), Received(order, []))

    def get_from_launcher(self, start: int, stop: int, data: bytes = IMAGE) -> None:
        for offset in range(start, stop, PIECE_BYTES):
            piece = BlobPiece(REF.id, offset)
            part = data[offset : min(stop, offset + PIECE_BYTES)]
            self.do(self.exchange.piece, cast(Link, self.launcher), Received(piece, [part]))

    def process(self) -> Ear:
        """A process of the host that waits for the blob."""
        ear = Ear()
        self.do(self.shelf.get, cast(Link, ear), REF.id)
        return ear

    def close(self) -> None:
        self.do(self.exchange.close)
        self.do(self.exchange.drop, REF.id)
        self.do(self.shelf.drop, cast(Link, self.launcher), REF.id)
        self.loop.stop()
        assert self.loop.thread
        self.loop.thread.join()


def token_between(reader: str, source: str) -> str:
    return token_of(key_of_agent(key_of_host(KEY, source)), reader, CERTIFICATES[reader].fingerprint)


@pytest.fixture
def agents() -> Iterator[dict[str, Agent]]:
    made = {name: Agent(name) for name in CERTIFICATES}
    yield made
    for agent in made.values():
        agent.close()


# --- the way of a blob ------------------------------------------------------------------------------------------------


def test_a_blob_passes_through_agents_while_it_arrives_and_is_given_to_processes_when_it_is_whole(
    agents: dict[str, Agent],
) -> None:
    a, b, c = agents.values()
    waiting = c.process()
    a.fetch(1)
    b.fetch(2, a)
    c.fetch(3, b)
    a.get_from_launcher(0, 2 * PIECE_BYTES)
    wait_until(lambda: c.exchange._arrivals[REF.id].num_bytes == 2 * PIECE_BYTES)  # pyright: ignore[reportPrivateUsage]
    assert not waiting.heard and not any(isinstance(each, BlobFetched) for each in a.told)
    a.get_from_launcher(2 * PIECE_BYTES, len(IMAGE))
    wait_until(lambda: BlobFetched(REF.id, 3) in c.told)
    assert waiting.parts == PARTS and b.process().parts == PARTS
    assert BlobFetched(REF.id, 1) in a.told and BlobFetched(REF.id, 2) in b.told
    b.fetch(4, a)
    assert b.told[-1] == BlobFetched(REF.id, 4), "it is here already"


def test_another_source_goes_on_at_the_byte_that_was_reached_and_late_answers_count_for_nothing(
    agents: dict[str, Agent],
) -> None:
    a, b, _ = agents.values()
    a.fetch(1)
    a.get_from_launcher(0, len(IMAGE))
    b.fetch(2)
    b.get_from_launcher(0, PIECE_BYTES)
    b.fetch(3, a)
    b.get_from_launcher(PIECE_BYTES, 2 * PIECE_BYTES, bytes(len(IMAGE)))  # of the source that it has left
    wait_until(lambda: BlobFetched(REF.id, 3) in b.told)
    asked = [each.offset for each in b.launcher.heard if isinstance(each, ReadBlob)]
    assert asked[0] == 0 and b.process().parts == PARTS


def test_a_source_that_ends_or_drops_the_blob_is_reported_and_the_next_one_serves_the_rest(
    agents: dict[str, Agent],
) -> None:
    a, b, c = agents.values()
    c.fetch(1)
    c.get_from_launcher(0, len(IMAGE))
    a.fetch(2)
    b.fetch(3, a)
    a.get_from_launcher(0, PIECE_BYTES)
    wait_until(lambda: b.exchange._arrivals[REF.id].num_bytes == PIECE_BYTES)  # pyright: ignore[reportPrivateUsage]
    a.do(a.exchange.drop, REF.id)
    wait_until(lambda: BlobNotFetched(REF.id, 3, FetchProblem.LOST) in b.told)
    b.fetch(4, a)  # which knows nothing of it any more
    wait_until(lambda: BlobNotFetched(REF.id, 4, FetchProblem.LOST) in b.told)
    b.fetch(5, c)
    wait_until(lambda: BlobFetched(REF.id, 5) in b.told)
    assert b.process().parts == PARTS


def test_a_source_whose_process_dies_is_reported(agents: dict[str, Agent]) -> None:
    a, b, _ = agents.values()
    a.fetch(1)
    b.fetch(2, a)
    wait_until(lambda: bool(a.exchange._readers))  # pyright: ignore[reportPrivateUsage]
    (link,) = a.exchange._readers  # pyright: ignore[reportPrivateUsage]
    a.do(a.loop.remove_link, link)
    wait_until(lambda: BlobNotFetched(REF.id, 2, FetchProblem.LOST) in b.told)


def test_a_source_that_no_thread_can_dial_is_reported_and_dialled_the_next_time(
    agents: dict[str, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It counted as being dialled from then on, and nothing was ever fetched from it.
    a, b, _ = agents.values()
    a.fetch(1)
    a.get_from_launcher(0, len(IMAGE))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "rw-fetch":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        b.fetch(2, a)
        wait_until(lambda: BlobNotFetched(REF.id, 2, FetchProblem.UNREACHABLE) in b.told)
    b.fetch(3, a)
    wait_until(lambda: BlobFetched(REF.id, 3) in b.told)
    assert b.process().parts == PARTS


def test_a_host_without_memory_says_so_once_and_gets_the_blob_when_there_is_some(
    agents: dict[str, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, *_ = agents.values()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(blob_exchange, "write_bytes", refuse)
        a.fetch(1)
        a.get_from_launcher(0, PIECE_BYTES)
        full.setattr(blob_exchange, "empty_file", refuse)
        a.fetch(2)
    events = [each.text for each in a.told if isinstance(each, HostEvent)]
    assert len(events) == 1 and "0.4 MB" in events[0] and "No space left" in events[0]
    failed = [(each.number, each.problem) for each in a.told if isinstance(each, BlobNotFetched)]
    assert failed == [(1, FetchProblem.NO_MEMORY), (2, FetchProblem.NO_MEMORY)]
    a.fetch(3)
    a.get_from_launcher(0, len(IMAGE))
    assert a.process().parts == PARTS


# --- what is believed -------------------------------------------------------------------------------------------------


def test_bytes_that_do_not_have_the_promised_hash_are_given_to_nobody(agents: dict[str, Agent]) -> None:
    a, b, _ = agents.values()
    waiting, forged = b.process(), bytearray(IMAGE)
    forged[PIECE_BYTES + 5] ^= 1
    a.fetch(1)
    b.fetch(2, a)
    a.get_from_launcher(0, len(IMAGE), bytes(forged))
    wait_until(lambda: BlobNotFetched(REF.id, 1, FetchProblem.CORRUPT) in a.told)
    wait_until(lambda: any(isinstance(each, BlobNotFetched) and each.number == 2 for each in b.told))
    assert not waiting.heard
    b.fetch(3)
    b.get_from_launcher(0, len(IMAGE))
    assert waiting.parts == PARTS, "it begins again, with bytes that are right"


@pytest.mark.parametrize("forgery", ["nothing", "for another agent", "of a socket", "for another reader"])
def test_an_agent_shows_the_token_that_the_launcher_made_for_these_two(agents: dict[str, Agent], forgery: str) -> None:
    a, b, _ = agents.values()
    token = {
        "nothing": "0" * 64,
        "for another agent": token_between("b", "c"),
        "of a socket": token_of(key_of_socket(key_of_host(KEY, "a"), "agent"), "b", CERTIFICATES["b"].fingerprint),
        "for another reader": token_between("c", "a"),
    }[forgery]
    a.fetch(1)
    a.get_from_launcher(0, len(IMAGE))
    b.fetch(2, a, token=token)
    wait_until(lambda: BlobNotFetched(REF.id, 2, FetchProblem.UNREACHABLE) in b.told)
    assert not b.process().heard
    b.fetch(3, a)
    wait_until(lambda: BlobFetched(REF.id, 3) in b.told)


def test_an_agent_that_was_struck_off_is_cut_and_refused(agents: dict[str, Agent]) -> None:
    a, b, c = agents.values()
    a.fetch(1)
    b.fetch(2, a)
    wait_until(lambda: bool(a.exchange._readers))  # pyright: ignore[reportPrivateUsage]
    news = Retired([RetiredProcess("b", CERTIFICATES["b"].fingerprint, is_cut=True)])
    a.do(a.exchange.retired, news)
    wait_until(lambda: BlobNotFetched(REF.id, 2, FetchProblem.LOST) in b.told)
    b.fetch(3, a)
    wait_until(lambda: BlobNotFetched(REF.id, 3, FetchProblem.UNREACHABLE) in b.told)
    c.fetch(4, a)
    a.get_from_launcher(0, len(IMAGE))
    wait_until(lambda: BlobFetched(REF.id, 4) in c.told)
    a.do(a.exchange.retired, Retired([RetiredProcess("c", "", is_cut=True)]))  # now as a source of nothing
    c.do(c.exchange.retired, Retired([RetiredProcess("a", CERTIFICATES["a"].fingerprint, is_cut=True)]))
    assert not c.exchange._sources  # pyright: ignore[reportPrivateUsage]


def test_questions_that_no_reader_asks_are_answered_with_nothing(agents: dict[str, Agent]) -> None:
    a, *_ = agents.values()
    a.fetch(1)
    credentials = Credentials(RUN, "b", token_between("b", "a"))
    link = dial(parse_address(a.address), credentials, PEER, passport=Passport("b", "", CERTIFICATES["b"]))
    try:
        for question in (
            ReadBlob("0" * 64, 0, 1),
            ReadBlob(REF.id, REF.size_bytes - 1, 2),
            BlobPiece(REF.id, 0),  # nobody asked for it
            ReadBlob("1" * 64, 0, 1),
        ):
            link.send(question)
        answers = [received.message for _ in range(3) if (received := link.receive())]
        assert answers == [BlobAbsent("0" * 64), BlobAbsent(REF.id), BlobAbsent("1" * 64)]
        link.send(BlobPiece(REF.id, 0), [b"bytes"])
        assert _ended(link), "parts are none of its business"
    finally:
        link.close()
    assert a.exchange._arrivals[REF.id].num_bytes == 0  # pyright: ignore[reportPrivateUsage]


def _ended(link: Link) -> bool:
    try:
        return link.receive() is None
    except Exception:
        return True
