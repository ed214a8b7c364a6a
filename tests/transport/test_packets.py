"""Packets between real sockets: sizes, many hands at one end, room, and ends."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from ropewalk.transport.blobs import pack
from ropewalk.transport.packets import PACKET_BYTES, ROOM_BYTES, PackedMessage, Packets

Pair = tuple[Packets, Packets]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = Packets.pair()
    yield ends
    for end in ends:
        end.close()


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "sizes",
    [
        [0],
        [1],
        [PACKET_BYTES - 1],
        [PACKET_BYTES],
        [3 << 20],
        [1, 0, 100],
        [PACKET_BYTES // 2, PACKET_BYTES // 2 - 21],
        [PACKET_BYTES // 2, PACKET_BYTES // 2 - 20],
        [ROOM_BYTES + 1, 5],
        [1] * 4096,
        [7] * 20_000,
    ],
)
def test_messages_arrive_as_they_were_sent(pair: Pair, sizes: Sequence[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    before = num_descriptors()
    parcel = PackedMessage(parts)
    assert pair[0].send(parcel)
    parcel.close()
    received = pair[1].receive()
    assert received is not None
    assert [bytes(part) for part in received] == parts
    if len(parts) > 1:
        memoryview(received[-1])[:] = bytes(sizes[-1])  # they are the receiver's own
    del received
    assert num_descriptors() == before
    assert pair[1].receive(wait=False) is None


def test_a_message_that_is_in_a_memory_file_already_is_sent_as_it_is(pair: Pair) -> None:
    file = pack([b"one", b"two"])
    parcel = PackedMessage((), (3, 3), file)
    assert pair[0].send(parcel)
    assert pair[0].send(parcel)
    parcel.close()
    os.close(file)
    for _ in range(2):
        assert [bytes(part) for part in pair[1].receive() or ()] == [b"one", b"two"]


def test_many_who_send_and_receive_at_one_end_get_whole_messages(pair: Pair) -> None:
    sizes = (10, 1_000, 60_000, 100_000)
    received: list[bytes] = []

    def send(letter: bytes) -> None:
        for number in range(100):
            while not pair[0].send(PackedMessage([letter * sizes[number % 4]])):
                pass

    def receive() -> None:
        while (parts := pair[1].receive()) is None or bytes(parts[0]) != b"":
            if parts:
                received.append(bytes(parts[0]))

    senders = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
    readers = [threading.Thread(target=receive) for _ in range(2)]
    for thread in (*senders, *readers):
        thread.start()
    for thread in senders:
        thread.join()
    for _ in readers:
        pair[0].send_one(b"")
    for thread in readers:
        thread.join()
    counts = Counter((data[:1], len(data)) for data in received)
    assert counts == {(letter, size): 25 for letter in (b"a", b"b", b"c") for size in sizes}
    assert all(data == data[:1] * len(data) for data in received)


@pytest.mark.parametrize("size", [100, 100_000, 1 << 20, 100 << 20])
def test_a_direction_holds_some_megabytes_and_no_more(pair: Pair, size: int) -> None:
    parcel = PackedMessage([bytes(size)])
    num = 0
    while pair[0].send(parcel, wait=False):
        num += 1
    parcel.close()
    assert 0 < num * size <= ROOM_BYTES + size
    assert not pair[0].send_one(b"small")
    for _ in range(num):
        assert pair[1].receive()
    assert pair[0].send_one(b"small")


@pytest.mark.parametrize("looks", [True, False])
def test_what_is_left_is_read_before_the_end(pair: Pair, looks: bool) -> None:
    one, other = pair
    assert one.send_one(b"last")
    assert other.send_one(b"unread")
    one.close()
    if looks:
        assert other.poll(0.0) and not other.is_at_end()
    while (parts := other.receive()) is None:  # it hears first that its own message was not read
        assert not looks
    assert bytes(parts[0]) == b"last"
    assert other.poll(0.0) and other.is_at_end()
    for _ in range(2):
        with pytest.raises(EOFError):
            other.receive()
        with pytest.raises(BrokenPipeError):
            other.send(PackedMessage([b"more"]))


def test_a_message_to_an_end_that_was_closed_with_messages_unread_is_a_broken_pipe(pair: Pair) -> None:
    one, other = pair
    assert other.send_one(b"unread")
    one.close()
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            other.send_one(b"more")


def test_poll_waits_as_long_as_it_is_told(pair: Pair) -> None:
    began = time.monotonic()
    assert pair[0].poll(0.1) == 0
    assert time.monotonic() - began >= 0.1
    threading.Timer(0.05, pair[1].send_one, (b"x",)).start()
    assert pair[0].poll(120)
