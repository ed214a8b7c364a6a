"""A frame may have any size, and the other links of a loop must not wait until it is through."""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.transport.frames import encode_head
from ropewalk.transport.link import Link
from ropewalk.transport.streams.stream import TURN_BYTES
from tests.patience import PATIENCE_S, wait_until
from tests.transport.ends import NOTES, STREAMS, Note, Server, on_loop, running_loop, serving

#: Many turns, and more than the buffers between two processes hold.
LARGE = 48 << 20


@pytest.fixture(params=STREAMS)
def links(request: pytest.FixtureRequest) -> Iterator[tuple[Link, Link]]:
    ours, theirs = (Link(stream, NOTES, "peer") for stream in STREAMS[request.param]())
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving("tls") as server:
        yield server


def wait_for(link: Link, event: int) -> None:
    poller = select.poll()
    poller.register(link.stream.fileno(), event)
    assert poller.poll(1000 * PATIENCE_S), "nothing happens"


def test_a_large_frame_is_read_in_turns(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    sender = threading.Thread(target=lambda: theirs.send(Note(1), [bytes(LARGE)]))
    sender.start()
    received, longest = None, 0
    while received is None:
        before = ours.received_bytes
        try:
            received = ours.read_ready()
        except BlockingIOError:
            longest = max(longest, ours.received_bytes - before)
            assert not ours.reader.may_hold_more, "the kernel announces the rest"
            wait_for(ours, select.POLLIN)
    sender.join()
    assert len(received.parts[0]) == LARGE
    assert longest <= 2 * TURN_BYTES


def test_a_large_frame_is_written_in_turns(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    wishes: list[None] = []
    ours.want_write = lambda: wishes.append(None)
    come: list[int] = []

    def hear() -> None:
        received = theirs.receive()
        assert received
        come.append(len(received.parts[0]))

    hearer = threading.Thread(target=hear)
    hearer.start()
    ours.send(Note(1), [bytes(LARGE)])
    assert wishes
    assert LARGE - ours.unsent_bytes <= 2 * TURN_BYTES
    while ours.unsent_bytes:
        before = ours.unsent_bytes
        ours.write_ready()
        assert before - ours.unsent_bytes <= 2 * TURN_BYTES
        wait_for(ours, select.POLLOUT)
    while not ours.write_ready():
        wait_for(ours, select.POLLOUT)
    hearer.join()
    assert come == [LARGE]
    ours.want_write = None


def test_many_frames_of_a_megabyte_are_handled_in_turns(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    with running_loop() as loop:
        handled: list[int] = []
        turns: list[int] = []
        original = loop._handle

        def counted(*arguments: Any) -> None:
            before = len(handled)
            original(*arguments)
            turns.append(len(handled) - before)

        loop._handle = counted  # type: ignore[method-assign]
        on_loop(loop, lambda: loop.add_link(ours, lambda got: handled.append(got.message.number), lambda _: None))
        for number in range(40):
            theirs.send(Note(number), [bytes(1 << 20)])
        wait_until(lambda: len(handled) == 40)
        assert handled == list(range(40))
        assert max(turns) <= 3
        on_loop(loop, lambda: loop.remove_link(ours))


def test_a_link_that_was_read_to_its_end_holds_nothing_more(links: tuple[Link, Link]) -> None:
    """Whoever reads a link himself would look again and again instead of waiting, and never see his deadline."""
    ours, theirs = links
    sender = threading.Thread(target=lambda: theirs.send(Note(1), [bytes(300_000)]))  # (read right into its place)
    sender.start()
    received = None
    while received is None:
        with contextlib.suppress(BlockingIOError):
            received = ours.read_ready()
    sender.join()
    with pytest.raises(BlockingIOError):
        ours.read_ready()
    assert not ours.reader.may_hold_more
    whole = encode_head(NOTES.encode(Note(2)), [], 0)
    theirs.stream.send([memoryview(whole)[:10]])  # half a frame
    wait_for(ours, select.POLLIN)
    with pytest.raises(BlockingIOError):
        ours.read_ready()
    assert not ours.reader.may_hold_more
    theirs.stream.send([memoryview(whole)[10:]])
    wait_for(ours, select.POLLIN)
    received = ours.read_ready()
    assert received
    assert received.message == Note(2)


def test_last_words_that_are_long_are_all_heard(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    number = 0
    is_full = threading.Event()
    theirs.want_write = is_full.set  # also when ciphertext of a message waits that was taken as a whole
    while not is_full.is_set():  # as much as the kernel takes
        theirs.send(Note(number), [bytes(150_000)])
        number += 1
    theirs.close()
    with running_loop() as loop:
        heard: list[int] = []

        def add_and_drain() -> None:
            loop.add_link(ours, lambda got: heard.append(got.message.number), lambda _: None)
            loop.drain(ours)

        on_loop(loop, add_and_drain)
        assert heard == list(range(number - 1))


def test_hundreds_of_megabytes_on_one_link_do_not_silence_another(server: Server) -> None:
    """Heartbeats of a host waited 2 s and more behind 300 MB of another link of the same loop."""
    bulk, beats = server.dial(server.member("bulk")), server.dial(server.member("beats"))
    with contextlib.closing(bulk), contextlib.closing(beats):
        back: list[int] = []

        def carry() -> None:
            bulk.send(Note(1), [bytes(300 << 20)])
            received = bulk.receive()
            assert received
            back.append(len(received.parts[0]))

        carrier = threading.Thread(target=carry)
        carrier.start()
        num_answers = 0
        while carrier.is_alive():
            assert server.answers(beats)
            num_answers += 1
            carrier.join(0.001)
        assert back == [300 << 20]
        assert num_answers > 10, "a link that is silenced answers once or twice, before and after"
