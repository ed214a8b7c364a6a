"""One suite for links over each kind of stream: typed messages, back-pressure, and ends that are noticed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import psutil
import pytest

from ropewalk.calls.messages import CALLS
from ropewalk.errors import FrameError, LinkClosed
from ropewalk.pool.messages import POOL
from ropewalk.processes.messages import CONTROL
from ropewalk.program.messages import PROGRAM
from ropewalk.sharing.manager_messages import MANAGER
from ropewalk.transport.frames import MAX_FDS, encode_head
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.streams.plain import PlainStream
from tests.interrupting import interrupts_at_each_step
from tests.patience import PATIENCE_S
from tests.transport.ends import NOTES, STREAMS, Note, Question, on_loop, running_loop

Pair = tuple[Link, Link]


@pytest.fixture(params=list(STREAMS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pair(kind: str) -> Iterator[Pair]:
    with made(kind) as links:
        yield links


@contextlib.contextmanager
def made(kind: str) -> Generator[Pair]:
    ours, theirs = STREAMS[kind]()
    links = Link(ours, NOTES, "theirs"), Link(theirs, NOTES, "ours")
    try:
        yield links
    finally:
        for link in links:
            link.close()


@contextlib.contextmanager
def threads(*links: Link) -> Generator[Callable[..., Any]]:
    """Start calls in threads; if the test fails, close the links, so that none of the threads waits for ever."""
    with ThreadPoolExecutor(8) as executor:
        try:
            yield executor.submit
        except BaseException:
            for link in links:
                link.close()
            raise


def receive(link: Link) -> Received:
    received = link.receive()
    assert received is not None, "the peer closed"
    return received


@pytest.mark.parametrize("size", [10, 9000])  # what a socket takes whole, and what it does not
def test_an_interrupt_at_any_step_leaves_a_true_note_of_what_was_sent(size: int) -> None:
    sockets = list[socket.socket]()
    notes = list[list[int]]()  # of each run, those that an interrupt ended and those that got through
    sent = list[tuple[Link, Link, list[int]]]()

    def send() -> None:
        notes.append([])
        sockets.extend(socket.socketpair())
        sockets[-2].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        link, peer = (Link(PlainStream(each), NOTES, "peer") for each in sockets[-2:])
        link.want_write = lambda: None
        sent.append((link, peer, notes[-1]))
        assert link.send_alone(Note(1, size * "x"), (), notes[-1])

    were_noted = {bool(notes[-1]) for _ in interrupts_at_each_step(send)}
    assert were_noted == {False, True}, "some interrupts came before the system call, some after it"
    for link, peer, noted in sent:
        received = None
        while noted and received is None:
            link.write_ready()
            with contextlib.suppress(BlockingIOError):
                received = peer.read_ready()
        assert received is None or received.message == Note(1, size * "x")
        link.close()
        assert peer.receive() is None, "more was sent than the note says"
    for each in sockets:
        each.close()


def fill(link: Link) -> int:
    """Send without waiting until the peer's side is full and bytes wait here; returns how many messages went."""
    link.want_write = link.want_write or (lambda: None)
    count = 0
    while not link.unsent_bytes:
        link.send(Note(count, "x" * 50_000))
        count += 1
    return count


def test_messages_arrive_typed_with_their_parts(pair: Pair) -> None:
    ours, theirs = pair
    ours.send(Note(1, "one"), [b"", b"body", bytearray(b"more"), memoryview(b"\0\0\0\0").cast("i")])
    ours.send(Question({"a": [1, 2]}))
    first, second = receive(theirs), receive(theirs)
    assert (first.message, list(map(bytes, first.parts))) == (Note(1, "one"), [b"", b"body", b"more", b"\0\0\0\0"])
    assert (second.message, second.parts) == (Question({"a": [1, 2]}), [])


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 65_536, 1_000_000, 50_000_000])
def test_parts_of_any_size_arrive_whole(pair: Pair, size: int) -> None:
    ours, theirs = pair
    part = random.Random(size).randbytes(min(size, 1_000_000)) * max(1, size // 1_000_000)
    with threads(*pair) as start:
        sent = start(ours.send, Note(size), [part, b"tail"])
        received = receive(theirs)
        sent.result(PATIENCE_S)
    assert received.message == Note(size)
    assert received.parts[0] == part and received.parts[1] == b"tail"


def test_large_parts_are_writable_and_the_receivers_own(pair: Pair) -> None:
    ours, theirs = pair
    with threads(*pair) as start:
        sent = start(ours.send, Note(1), [bytes(2_000_000)] * 2)
        one, two = map(memoryview, receive(theirs).parts)
        sent.result(PATIENCE_S)
    one[0] = 7
    assert (one[0], two[0]) == (7, 0)


def test_two_threads_send_while_one_receives(pair: Pair) -> None:
    """Both ends at the same time, so that a reader is never the only one to move."""
    count = 300

    def send(link: Link, first: int) -> None:
        for number in range(first, first + count):
            size = random.Random(number).choice([0, 10, 5_000, 100_000])
            link.send(Note(number), [number.to_bytes(4, "little"), bytes(size)])

    def receive_all(link: Link) -> list[int]:
        numbers: list[int] = []
        for _ in range(2 * count):
            received = receive(link)
            assert int.from_bytes(received.parts[0], "little") == received.message.number
            numbers.append(received.message.number)
        return numbers

    with threads(*pair) as start:
        received = [start(receive_all, link) for link in pair]
        for link in pair:
            for first in (0, 10_000):
                start(send, link, first)
        for numbers in [future.result(PATIENCE_S) for future in received]:
            low, high = [n for n in numbers if n < 10_000], [n for n in numbers if n >= 10_000]
            assert low == list(range(count)) and high == list(range(10_000, 10_000 + count))


def test_a_message_that_is_not_of_the_protocol_is_a_frame_error_and_leaks_no_descriptor(kind: str) -> None:
    with made(kind) as (ours, theirs):
        before = psutil.Process().num_fds()
        fds = [os.open(os.devnull, os.O_RDONLY)] if ours.stream.carries_fds else []
        junk = b"\x93\x01\x02\x03"
        ours.stream.send([memoryview(encode_head(junk, [], len(fds)) + junk[:0])], fds)
        for fd in fds:
            os.close(fd)
        with pytest.raises(FrameError, match="not a message of this link"):
            theirs.receive()
        assert psutil.Process().num_fds() == before


def test_the_end_between_messages_is_none_and_in_the_middle_of_one_an_error(kind: str) -> None:
    for cut in (False, True):
        with made(kind) as (ours, theirs):
            ours.send(Note(1))
            if cut:
                ours.stream.send([memoryview(encode_head(b"x" * 100, [], 0)[:50])])
                ours.stream.flush()
            ours.close()
            assert receive(theirs).message == Note(1)
            if cut:
                with pytest.raises(FrameError, match="in the middle of a frame"):
                    theirs.receive()
            else:
                assert theirs.receive() is None


def test_the_end_in_the_middle_of_a_large_part_is_an_error(pair: Pair) -> None:
    ours, theirs = pair
    head = encode_head(NOTES.encode(Note(1)), [bytes(10_000_000)], 0)
    ours.stream.send([memoryview(head + bytes(1000))])
    ours.stream.flush()
    ours.close()
    with pytest.raises(FrameError, match="in the middle of a frame"):
        theirs.receive()


# --- back-pressure ----------------------------------------------------------------------------------------------------


def test_a_send_without_a_loop_waits_for_a_slow_reader(pair: Pair) -> None:
    ours, theirs = pair
    with threads(*pair) as start:
        sent = start(ours.send, Note(1), [bytes(30_000_000)])
        time.sleep(0.1)
        assert not sent.done()
        assert len(receive(theirs).parts[0]) == 30_000_000
        sent.result(PATIENCE_S)


def test_parts_that_wait_are_copied_if_they_may_change(pair: Pair) -> None:
    ours, theirs = pair
    count = fill(ours)
    first, second = bytearray(b"1" * 40_000), bytearray(b"2" * 40_000)
    ours.send(Note(count), [first, second], copies=True)
    first[:], second[:] = b"x" * 40_000, b"x" * 40_000
    with threads(*pair) as start:

        def pump() -> None:
            while not ours.write_ready():
                time.sleep(0.001)

        pumped = start(pump)
        received = [receive(theirs) for _ in range(count + 1)][-1]
        pumped.result(PATIENCE_S)
    assert [bytes(part[:1]) for part in received.parts] == [b"1", b"2"]
    assert {*bytes(received.parts[0]), *bytes(received.parts[1])} == {*b"12"}


def test_an_impatient_send_keeps_what_the_peer_does_not_take_in_order(pair: Pair) -> None:
    ours, theirs = pair
    count = fill(ours)
    for number in range(count, count + 200):
        ours.send(Note(number), [b"p" * 1000])  # waits here, does not block
    with threads(*pair) as start:

        def pump() -> None:
            while not ours.write_ready():
                time.sleep(0.001)

        pumped = start(pump)
        assert [receive(theirs).message.number for _ in range(count + 200)] == list(range(count + 200))
        pumped.result(PATIENCE_S)
    assert ours.unsent_bytes == 0


# --- ends -------------------------------------------------------------------------------------------------------------


def test_close_from_another_thread_ends_a_send_that_waits(pair: Pair) -> None:
    """It used to wait for the sender, which held the lock and waited for the peer: for ever."""
    ours, _ = pair
    with threads(*pair) as start:
        sending = start(ours.send, Note(1), [bytes(50_000_000)])
        time.sleep(0.1)
        ours.close()
        with pytest.raises(LinkClosed, match="closed"):
            sending.result(PATIENCE_S)


def test_close_from_another_thread_ends_a_receive_that_waits(pair: Pair) -> None:
    ours, _ = pair
    with threads(*pair) as start:
        waiting = start(ours.receive)
        time.sleep(0.1)
        ours.close()
        with contextlib.suppress(LinkClosed):
            assert waiting.result(PATIENCE_S) is None


class NotedLooking:
    """Looks once if it is to pay, and notes each look and sleep."""

    def __init__(self) -> None:
        self.pays = False
        self.noted: list[str] = []

    def look(self, found: Callable[[], Any]) -> Any:
        what = found()
        self.noted.append("seen" if what else "looked in vain")
        return what

    def slept(self, seconds: float) -> None:
        assert seconds > 0
        self.noted.append("slept")


def test_a_receive_looks_if_looks_pay_and_notes_each_sleep() -> None:
    with made("unix") as (ours, theirs), threads(ours, theirs) as submit:
        looking = ours.__dict__["_looking"] = NotedLooking()

        def receive() -> list[str]:
            looking.noted = []
            assert ours.receive()
            return looking.noted

        theirs.send(Note(1))
        assert receive() == ["slept"]
        looking.pays = True
        theirs.send(Note(2))
        assert receive() == ["seen"]
        received = submit(receive)
        while looking.noted != ["looked in vain"]:
            os.sched_yield()
        theirs.send(Note(3))
        assert received.result(PATIENCE_S) == ["looked in vain", "slept"]
        theirs.hold(Note(4))
        theirs.send(Note(5))
        assert receive() == ["seen"]
        assert receive() == [], "it came together with the one before, so that the kernel has nothing to announce"


def test_a_wait_ends_when_something_comes_or_when_its_time_is_over_or_when_the_link_is_closed() -> None:
    with made("unix") as (ours, theirs):
        assert not ours.wait(0.001)
        theirs.send(Note(1))
        assert ours.wait(PATIENCE_S)
        assert ours.wait(PATIENCE_S), "a wait takes nothing"
        ours.close()
        assert ours.wait(PATIENCE_S)


def test_a_closed_link_says_so_and_closes_twice(pair: Pair) -> None:
    ours, _ = pair
    ours.close()
    ours.close()
    with pytest.raises(LinkClosed, match="theirs"):
        ours.send(Note(1))
    assert ours.write_ready()


def test_writing_to_a_dead_peer_is_link_closed_and_not_a_signal(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()

    def send_on() -> None:
        for _ in range(1000):
            ours.send(Note(1), [bytes(100_000)])

    with pytest.raises(LinkClosed):
        send_on()


def test_a_peer_that_dies_while_a_send_waits_ends_it(pair: Pair) -> None:
    ours, theirs = pair
    with threads(*pair) as start:
        sending = start(ours.send, Note(1), [bytes(50_000_000)])
        time.sleep(0.1)
        theirs.close()
        with pytest.raises(LinkClosed):
            sending.result(PATIENCE_S)


def test_a_link_closed_by_another_thread_is_let_go_by_its_loop_which_goes_on(kind: str) -> None:
    """The kernel gives the number of a closed descriptor out at once; the loop must not stumble over it."""
    with running_loop() as loop, contextlib.ExitStack() as stack:
        for number in range(30):
            ours, theirs = stack.enter_context(made(kind))
            closed = threading.Event()
            heard = threading.Event()
            on_loop(
                loop,
                lambda link=ours, heard=heard, closed=closed: (
                    loop.add_link(link, lambda _: heard.set(), lambda _: closed.set()) or True
                ),
            )
            theirs.send(Note(number))
            assert heard.wait(PATIENCE_S)
            ours.close()
            theirs.close()
            assert closed.wait(PATIENCE_S), "whoever serves a link hears of its end"
        assert not loop._links and not loop._by_fd


# --- both ends served by loops ----------------------------------------------------------------------------------------


def test_a_loop_served_link_answers_a_blocking_one(kind: str) -> None:
    with made(kind) as (ours, theirs), running_loop() as loop:

        def answer(received: Received) -> None:
            theirs.send(Note(-received.message.number), received.parts)

        on_loop(loop, lambda: loop.add_link(theirs, answer, lambda _: None) or True)
        for number in range(200):
            ours.send(Note(number), [bytes(number * 100)])
            received = receive(ours)
            assert (received.message.number, len(received.parts[0])) == (-number, number * 100)


def test_a_loop_hears_everything_that_a_dead_peer_said_before_its_end(kind: str) -> None:
    with made(kind) as (ours, theirs), running_loop() as loop:
        heard: list[int] = []
        closed = threading.Event()
        for number in range(100):
            ours.send(Note(number), [bytes(100)])
        ours.close()
        on_loop(
            loop,
            lambda: loop.add_link(theirs, lambda r: heard.append(r.message.number), lambda _: closed.set()) or True,
        )
        assert closed.wait(PATIENCE_S)
        assert heard == list(range(100))


def test_two_loops_exchange_large_and_small_messages(kind: str) -> None:
    with made(kind) as (ours, theirs), running_loop() as one, running_loop() as other:
        done = threading.Event()
        heard: list[tuple[int, int]] = []

        def hear(received: Received) -> None:
            heard.append((received.message.number, sum(map(len, received.parts))))
            if len(heard) == 100:
                done.set()

        on_loop(one, lambda: one.add_link(ours, hear, lambda _: None) or True)
        on_loop(
            other, lambda: other.add_link(theirs, lambda r: theirs.send(r.message, r.parts), lambda _: None) or True
        )
        sizes = [(number * 7919) % 300_000 for number in range(100)]
        for number, size in enumerate(sizes):
            ours.send(Note(number), [bytes(size)])
        assert done.wait(PATIENCE_S)
        assert heard == list(enumerate(sizes))


DEEP = 100_000
#: The headers of members: no stranger gets as far as a codec with as much freedom.
CODECS = {"control": CONTROL, "pool": POOL, "calls": CALLS, "program": PROGRAM, "manager": MANAGER}
HEADERS = {
    "nested in what may be anything": b"\x96\x0c\x00\x00\x91" + b"\x91" * DEEP + b"\xc0\x80\x90",
    "nested from the beginning": b"\x91" * DEEP + b"\xc0",
    "nested maps": b"\x81\x00" * DEEP + b"\xc0",
    "an array of 4 billion": b"\x96\x0c\x00\x00\xdd\xff\xff\xff\xff",
    "4 GiB of bytes": b"\x96\x0c\x00\x00\x91\xc6\xff\xff\xff\xff",
    "a map of 4 billion": b"\x96\x0c\x00\x00\x90\xdf\xff\xff\xff\xff",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_header_that_lies_or_is_nested_deeply_is_a_frame_error_and_costs_nothing(codec: Codec, header: bytes) -> None:
    """S8, of a member: what a stranger may send is far less."""
    with made("unix") as (ours, theirs):
        theirs.codec = codec
        with ThreadPoolExecutor(1) as executor:
            sent = executor.submit(ours.send, msgspec.Raw(header))
            tracemalloc.start()
            try:
                with pytest.raises(FrameError, match="not a message of this link"):
                    theirs.receive()
                assert tracemalloc.get_traced_memory()[1] < 8 << 20
            finally:
                tracemalloc.stop()
            sent.result(PATIENCE_S)


# --- descriptors (one host only) --------------------------------------------------------------------------------------


def test_descriptors_travel_with_their_own_message_even_when_it_has_to_wait() -> None:
    with made("unix") as (ours, theirs):
        count = fill(ours)
        pipes = [os.pipe() for _ in range(20)]
        for number, (reader, _) in enumerate(pipes):
            ours.send(Note(number), [b"x" * 3000], fds=[reader])
            ours.send(Note(-1))
            os.close(reader)
        with threads(ours, theirs) as start:

            def pump() -> None:
                while not ours.write_ready():
                    time.sleep(0.001)

            pumped = start(pump)
            for _ in range(count):
                assert not receive(theirs).fds
            for number, (_, writer) in enumerate(pipes):
                received = receive(theirs)
                assert received.message.number == number
                os.write(writer, bytes([number]))
                os.close(writer)
                assert os.read(received.fds[0], 10) == bytes([number])
                assert not receive(theirs).fds
            pumped.result(PATIENCE_S)


def test_as_many_descriptors_as_the_kernel_allows_travel_in_one_message() -> None:
    with made("unix") as (ours, theirs):
        fd = os.open(os.devnull, os.O_RDONLY)
        try:
            ours.send(Note(1), fds=[fd] * MAX_FDS)
            received = receive(theirs)
            assert len(received.fds) == MAX_FDS
            with pytest.raises(FrameError, match="254 file descriptors"):
                ours.send(Note(1), fds=[fd] * (MAX_FDS + 1))
        finally:
            os.close(fd)


def test_draining_a_link_reads_past_messages_that_carry_descriptors() -> None:
    """`recvmsg` stops at each message with descriptors; the rest of what a dead worker said was lost."""
    with made("unix") as (ours, theirs), running_loop() as loop:
        heard: list[int] = []

        def hear(received: Received) -> None:
            heard.append(received.message.number)

        def drain() -> bool:
            loop.add_link(theirs, hear, lambda _: None)
            fd = os.open(os.devnull, os.O_RDONLY)
            for number in range(20):
                ours.send(Note(number), fds=[fd])
            os.close(fd)
            loop.drain(theirs)
            loop.remove_link(theirs)
            return True

        on_loop(loop, drain)
        assert heard == list(range(20))


def test_descriptors_that_a_message_brings_and_nobody_takes_are_closed() -> None:
    """An agent kept those that came with a ping, say, until it could open nothing more."""
    with made("unix") as (ours, theirs), running_loop() as loop:
        heard: list[int] = []
        taken: list[int] = []

        def hear(received: Received) -> None:
            heard.append(received.message.number)
            if received.message.number == 3:
                taken.append(received.fds.take())

        on_loop(loop, lambda: loop.add_link(theirs, hear, lambda _: None) or True)
        before = psutil.Process().num_fds()
        for number in range(6):
            ours.send(Note(number), fds=[0] * MAX_FDS)
        on_loop(loop, lambda: loop.drain(theirs) or True)
        assert heard == list(range(6))
        assert psutil.Process().num_fds() == before + 1
        os.fstat(taken[0])
        os.close(taken[0])
        on_loop(loop, lambda: loop.remove_link(theirs) or True)


def test_a_message_without_the_descriptor_that_it_announces_is_a_frame_error() -> None:
    with made("unix") as (ours, theirs):
        ours.send(Note(1))
        with pytest.raises(FrameError, match="without the memory file"):
            receive(theirs).fds.take()


def test_descriptors_cannot_travel_between_hosts() -> None:
    with made("tls") as (ours, _):
        with pytest.raises(ValueError, match="cannot travel to another host"):
            ours.send(Note(1), fds=[0])


def test_without_a_descriptor_for_what_has_to_wait_nothing_is_sent_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The messages that were held before it were lost, for which others waited, and the first duplicate stayed open."""
    with made("unix") as (link, peer), open(os.devnull) as one, open(os.devnull) as two:
        count = fill(link)
        link.hold(Note(1, "held"))
        duplicate, left = os.dup, iter(range(1))

        def scarce(fd: int) -> int:
            if next(left, None) is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return duplicate(fd)

        before = psutil.Process().num_fds()
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", scarce)
            with pytest.raises(OSError, match="Too many open files"):
                link.send(Note(2, "not sent"), fds=[one.fileno(), two.fileno()])
        assert psutil.Process().num_fds() == before
        link.send(Note(3, "sent"))
        told: list[Any] = []
        while len(told) < count + 2:
            link.write_ready()
            told.append(receive(peer).message)
        assert told[-2:] == [Note(1, "held"), Note(3, "sent")]


def test_unsent_descriptors_are_closed_with_the_link() -> None:
    with made("unix") as (ours, _):
        fill(ours)
        before = psutil.Process().num_fds()
        ours.send(Note(1), fds=[0, 0, 0])
        assert psutil.Process().num_fds() == before + 3
        ours.close()
        assert psutil.Process().num_fds() < before


def test_a_forked_child_closes_only_its_own_copy(pair: Pair) -> None:
    ours, theirs = pair
    pid = os.fork()
    if pid == 0:
        ours.close_copy()
        os._exit(0)
    os.waitpid(pid, 0)
    ours.send(Note(1))
    assert receive(theirs).message == Note(1)


def test_what_waits_is_written_out_before_the_end_and_not_for_longer_than_was_asked(pair: Pair) -> None:
    ours, theirs = pair
    ours.want_write = lambda: None  # as in the hands of a loop: sending does not wait
    ours.send(Note(1), [bytes(16 << 20)])
    begun = time.monotonic()
    assert not ours.write_out(0.2), "nobody reads"
    assert time.monotonic() - begun > 0.15
    with threads(ours, theirs) as start:
        reading = start(receive, theirs)
        assert ours.write_out(PATIENCE_S)
        assert len(reading.result(PATIENCE_S).parts[0]) == 16 << 20


def test_what_is_held_goes_with_the_next_message_in_order_and_with_its_descriptors() -> None:
    with made("unix") as (ours, theirs):
        sent: list[int] = []
        send = ours.stream.send

        def counted(buffers: Any, fds: Any = ()) -> int:
            sent.append(len(fds))
            return send(buffers, fds)

        ours.stream.send = counted  # type: ignore[method-assign]
        readers: list[int] = []
        for number in range(3):
            reader, writer = os.pipe()
            os.write(writer, bytes([number]))
            os.close(writer)
            readers.append(reader)
        ours.hold(Note(0), [b"part"], [readers[0]])
        ours.hold(Note(1))
        ours.hold(Note(2), (), readers[1:])
        ours.send(Note(3))
        assert sent == [3], "one system call"
        for number, (count, parts) in enumerate([(1, [b"part"]), (0, []), (2, []), (0, [])]):
            received = receive(theirs)
            assert received.message == Note(number) and len(received.fds) == count
            assert [bytes(part) for part in received.parts] == parts
            assert [os.read(fd, 10) for fd in received.fds] == [bytes([at]) for at in range(3)][number // 2 :][:count]
        for fd in readers:
            os.close(fd)


def test_no_more_descriptors_are_held_than_the_kernel_passes_at_once() -> None:
    with made("unix") as (ours, theirs):
        fd = os.open(os.devnull, os.O_RDONLY)
        for number in range(200):
            ours.hold(Note(number), (), [fd, fd])
        ours.flush()
        for number in range(200):
            received = receive(theirs)
            assert received.message == Note(number) and len(received.fds) == 2
        os.close(fd)
