"""One suite for every stream: ordered bytes both ways, back-pressure, and ends that are noticed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ropewalk.errors import LinkClosed
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.stream import Stream
from ropewalk.transport.streams.tls import TlsStream
from tests.patience import PATIENCE_S
from tests.transport.ends import tls_streams

MEGABYTE = 1_000_000


def plain_pair() -> tuple[Stream, Stream]:
    ours, theirs = socket.socketpair()
    return PlainStream(ours), PlainStream(theirs)


PAIRS: dict[str, Callable[[], tuple[Stream, Stream]]] = {"plain": plain_pair, "tls": tls_streams}


@pytest.fixture(params=list(PAIRS))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Stream, Stream]]:
    ours, theirs = PAIRS[request.param]()
    yield ours, theirs
    ours.close()
    theirs.close()


@contextlib.contextmanager
def threads(*streams: Stream) -> Generator[Callable[..., Future[Any]]]:
    """Start calls in threads; if the test fails, close the streams, so that none of the threads waits for ever."""
    with ThreadPoolExecutor(8) as executor:
        try:
            yield executor.submit
        except BaseException:
            for stream in streams:
                stream.close()
            raise


def wait_for_room(stream: Stream) -> None:
    poller = select.poll()
    poller.register(stream.fileno(), select.POLLOUT)
    assert poller.poll(PATIENCE_S * 1000), "the stream never had room again"


def send_all(stream: Stream, *buffers: bytes | memoryview) -> None:
    """Send everything, as a link without a loop does."""
    left = [memoryview(buffer) for buffer in buffers]
    while left:
        taken = stream.send(left)
        if not taken and any(left):
            wait_for_room(stream)
        while left and taken >= left[0].nbytes:
            taken -= left.pop(0).nbytes
        if left:
            left[0] = left[0][taken:]
    while not stream.flush():
        wait_for_room(stream)


def receive_exactly(stream: Stream, size: int) -> bytes:
    data = bytearray(size)
    at = 0
    while at < size:
        count = stream.receive_into(memoryview(data)[at:], wait=True)
        assert count, f"the stream ended after {at} of {size} bytes"
        at += count
    return bytes(data)


def receive_all(stream: Stream) -> bytes:
    """Everything until the end of the stream."""
    data = bytearray()
    buffer = memoryview(bytearray(100_000))
    while count := stream.receive_into(buffer, wait=True):
        data += buffer[:count]
    return bytes(data)


def test_bytes_arrive_in_order_and_both_ways(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    send_all(ours, b"a header, ", b"", b"a body", b" and a tail")
    assert receive_exactly(theirs, 27) == b"a header, a body and a tail"
    send_all(theirs, b"an answer")
    assert receive_exactly(ours, 9) == b"an answer"


def test_one_message_can_be_read_byte_by_byte(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    send_all(ours, b"slowly")
    assert [receive_exactly(theirs, 1) for _ in range(6)] == [b"s", b"l", b"o", b"w", b"l", b"y"]


def test_many_more_buffers_than_one_call_takes(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    pieces = [bytes([n % 251]) * (n % 7) for n in range(5000)]
    with threads(*pair) as start:
        sent = start(send_all, ours, *pieces)
        assert receive_exactly(theirs, sum(map(len, pieces))) == b"".join(pieces)
        sent.result()


def test_two_threads_send_while_one_receives_on_both_ends_at_once(pair: tuple[Stream, Stream]) -> None:
    """Two senders (one lock between them, as in `Link`) and one receiver on each end; 50 MB go each way."""
    prefix = struct.Struct("<BI")
    per_sender = 25 * MEGABYTE

    def send(stream: Stream, lock: threading.Lock, sender: int, seed: int) -> str:
        rng = random.Random(seed)
        noise = rng.randbytes(MEGABYTE)
        digest = hashlib.sha256()
        left = per_sender
        while left:
            size = min(left, rng.choice([1, 100, 5_000, 16_384, 70_000, 300_000, 900_000]))
            start = rng.randrange(len(noise) - size)
            message = memoryview(noise)[start : start + size]
            digest.update(message)
            cuts = sorted(rng.randrange(size + 1) for _ in range(rng.randrange(4)))
            slices = [message[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
            with lock:
                send_all(stream, prefix.pack(sender, size), *slices)
            left -= size
        return digest.hexdigest()

    def receive(stream: Stream) -> list[str]:
        digests = [hashlib.sha256(), hashlib.sha256()]
        left = 2 * per_sender
        while left:
            sender, size = prefix.unpack(receive_exactly(stream, prefix.size))
            digests[sender].update(receive_exactly(stream, size))
            left -= size
        return [digest.hexdigest() for digest in digests]

    with threads(*pair) as start:
        received = [start(receive, stream) for stream in pair]
        sent: list[list[Future[Any]]] = []
        for number, stream in enumerate(pair):
            lock = threading.Lock()
            sent.append([start(send, stream, lock, sender, seed=10 * number + sender) for sender in range(2)])
        try:
            sums = [[future.result(120) for future in futures] for futures in sent]
            assert received[1].result(120) == sums[0]
            assert received[0].result(120) == sums[1]
        except BaseException:
            for future in [*received, *sent[0], *sent[1]]:  # the first thread that failed has the story
                if future.done():
                    future.result()
            raise


def test_a_peer_that_does_not_read_stops_the_sender_and_memory_stays_bounded(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    data = random.Random(1).randbytes(MEGABYTE)
    taken = 0
    refused = 0
    while refused < 200:
        at = taken % MEGABYTE
        count = ours.send([memoryview(data)[at:]])
        taken += count
        refused = refused + 1 if not count else 0
        assert taken < 64 * MEGABYTE, "the sender is never stopped"  # kernels hold a few MB on loopback
    with threads(*pair) as start:
        flushed = start(send_all, ours)
        received = receive_exactly(theirs, taken)
        flushed.result()
    assert hashlib.sha256(received).digest() == hashlib.sha256((data * 64)[:taken]).digest()
    assert ours.flush()
    assert ours.send([memoryview(b"on we go")]) == 8


def test_a_large_send_takes_only_a_part(pair: tuple[Stream, Stream]) -> None:
    ours, _ = pair
    data = bytes(100 * MEGABYTE)
    assert 0 < ours.send([memoryview(data)]) < len(data)


def test_nothing_to_read_is_said_at_once(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    buffer = memoryview(bytearray(10))
    with pytest.raises(BlockingIOError):
        theirs.receive_into(buffer, wait=False)
    send_all(ours, b"now")
    poller = select.poll()
    poller.register(theirs.fileno(), select.POLLIN)
    assert poller.poll(PATIENCE_S * 1000)
    assert theirs.receive_into(buffer, wait=False) == 3
    with pytest.raises(BlockingIOError):
        theirs.receive_into(buffer, wait=False)


def test_what_was_sent_before_the_end_is_read_before_the_end(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    send_all(ours, b"last words")
    ours.close()
    assert receive_all(theirs) == b"last words"
    assert theirs.receive_into(memoryview(bytearray(1)), wait=True) == 0
    assert theirs.receive_into(memoryview(bytearray(1)), wait=False) == 0


def test_closing_from_another_thread_wakes_a_waiting_receiver(pair: tuple[Stream, Stream]) -> None:
    ours, _ = pair
    waiting = threading.Event()

    def receive() -> str:
        waiting.set()
        try:
            return "end" if ours.receive_into(memoryview(bytearray(1)), wait=True) == 0 else "bytes"
        except LinkClosed:
            return "end"

    with threads(*pair) as start:
        received = start(receive)
        assert waiting.wait(PATIENCE_S)
        with pytest.raises(TimeoutError):
            received.result(0.05)  # in the kernel by now; if not yet, the close is seen on the way in
        ours.close()
        assert received.result(PATIENCE_S) == "end"


def test_sending_to_a_closed_peer_raises(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    theirs.close()

    def send_until_it_raises() -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:  # TCP learns of it with the first answer
            ours.send([memoryview(b"anybody there?")])

    with pytest.raises(LinkClosed):
        send_until_it_raises()


def test_after_close_nothing_goes_and_close_may_be_called_again(pair: tuple[Stream, Stream]) -> None:
    ours, _ = pair
    ours.close()
    ours.close()
    assert ours.fileno() == -1
    with pytest.raises(LinkClosed):
        ours.send([memoryview(b"x")])
    with pytest.raises(LinkClosed):
        ours.receive_into(memoryview(bytearray(1)), wait=True)


def test_file_descriptors_travel_where_the_stream_says_so(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    read_end, write_end = os.pipe()
    try:
        if not ours.carries_fds:
            with pytest.raises(ValueError, match="cannot travel to another host"):
                ours.send([memoryview(b"x")], [write_end])
            return
        assert ours.send([memoryview(b"x")], [write_end]) == 1
        assert receive_exactly(theirs, 1) == b"x"
        (arrived,) = theirs.take_fds()
        assert theirs.take_fds() == []
        os.write(arrived, b"through the passed end")
        os.close(arrived)
        assert os.read(read_end, 100) == b"through the passed end"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_only_plain_streams_carry_file_descriptors() -> None:
    assert PlainStream.carries_fds
    assert not TlsStream.carries_fds
