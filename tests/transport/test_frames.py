"""Frames: any split of the bytes gives the same frames, and nothing that a peer sends costs memory or crashes."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ropewalk.errors import FrameError
from ropewalk.transport import frames
from ropewalk.transport.frames import MEMBER, PROTOCOL, STRANGER, Frame, FrameReader, Limits, encode_head
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.stream import Reception, Stream
from tests.interrupting import interrupts_at_each_step

PREFIX = struct.Struct("<2sBBHI")


class Pieces(Stream):
    """A stream that gives out bytes in the pieces it was given, and then ends, or waits."""

    def __init__(self, pieces: Sequence[bytes], *, ends: bool = True, fds: Sequence[int] = ()) -> None:
        self.carries_fds = bool(fds)
        self._pieces = [piece for piece in pieces if piece]
        self._ends = ends
        self.arrived_fds = list(fds)

    def fileno(self) -> int:
        return -1

    def send(self, buffers: Sequence[memoryview], fds: Sequence[int] = ()) -> int:
        raise AssertionError("a reader does not send")

    def flush(self) -> bool:
        return True

    def receive_into(self, buffer: memoryview, *, wait: bool) -> int:
        assert buffer.nbytes, "a read into no room would look like the end"
        if not self._pieces:
            if self._ends:
                return 0
            raise BlockingIOError
        piece = self._pieces.pop(0)
        count = min(len(piece), buffer.nbytes)
        buffer[:count] = piece[:count]
        if count < len(piece):
            self._pieces.insert(0, piece[count:])
        return count

    def take_fds(self) -> list[int]:
        fds, self.arrived_fds = list(self.arrived_fds), []
        return fds

    def close_copy(self) -> None:
        pass

    def close(self) -> None:
        pass


def encode(header: bytes, parts: Sequence[bytes]) -> bytes:
    return encode_head(header, parts, 0) + b"".join(parts)


def decode_all(reader: FrameReader) -> list[tuple[bytes, list[bytes]]]:
    found: list[tuple[bytes, list[bytes]]] = []
    while (frame := reader.next(wait=True)) is not None:
        found.append((bytes(frame.header), [bytes(part) for part in frame.parts]))
    return found


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:stop] for start, stop in zip([0, *at], [*at, len(data)], strict=True)]


def sized(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return sizes.map(lambda size: (b"0123456789" * (size // 10 + 1))[:size])


headers = sized(st.sampled_from([0, 1, 30, 4095, 4096, 70_000]))
parts = st.lists(sized(st.sampled_from([0, 1, 100, 9_000, 65_526, 65_536, 200_000])), max_size=5)
messages = st.lists(st.tuples(headers, parts), max_size=5)


@given(messages=messages, cuts=st.lists(st.integers(0, 1 << 30), max_size=30))
@settings(deadline=None, max_examples=200)
def test_any_split_of_the_stream_decodes_to_the_same_frames(
    messages: list[tuple[bytes, list[bytes]]], cuts: list[int]
) -> None:
    data = b"".join(encode(header, parts) for header, parts in messages)
    assert decode_all(FrameReader(Pieces(split(data, cuts)), MEMBER)) == messages


def test_single_bytes_decode_to_the_same_frames() -> None:
    messages = [(b"header", [b"", b"part" * 100, b"x"]), (b"", []), (b"h" * 300, [b""])]
    data = b"".join(encode(header, parts) for header, parts in messages)
    assert decode_all(FrameReader(Pieces([bytes([byte]) for byte in data]), MEMBER)) == messages


@given(messages=messages, cut=st.integers(0, 1 << 30), cuts=st.lists(st.integers(0, 1 << 30), max_size=5))
@settings(deadline=None, max_examples=100)
def test_a_stream_cut_anywhere_gives_whole_frames_and_then_an_error(
    messages: list[tuple[bytes, list[bytes]]], cut: int, cuts: list[int]
) -> None:
    encoded = [encode(header, parts) for header, parts in messages]
    data = b"".join(encoded)
    data = data[: cut % (len(data) + 1)]
    whole, at = 0, 0
    for each in encoded:
        if at + len(each) > len(data):
            break
        at, whole = at + len(each), whole + 1
    reader = FrameReader(Pieces(split(data, cuts)), MEMBER)
    for header, parts in messages[:whole]:
        frame = reader.next(wait=True)
        assert frame and (bytes(frame.header), [bytes(part) for part in frame.parts]) == (header, parts)
    if at == len(data):
        assert reader.next(wait=True) is None
    else:
        with pytest.raises(FrameError, match="middle of a frame"):
            reader.next(wait=True)


def by_the_drawing(data: bytes, limits: Limits) -> tuple[list[tuple[bytes, list[bytes]]], bool]:
    """The frames in `data`, as the drawing at the top of `frames.py` has them, and whether what follows is refused."""
    found: list[tuple[bytes, list[bytes]]] = []
    at = 0
    while len(data) - at >= PREFIX.size:
        magic, version, num_fds, num_parts, header_size = PREFIX.unpack_from(data, at)
        if (magic, version) != (b"rw", PROTOCOL):
            return found, True
        if num_fds > limits.num_fds or num_parts > limits.num_parts or header_size > limits.header_bytes:
            return found, True
        header_at = at + PREFIX.size + 8 * num_parts
        if (part_at := header_at + header_size) > len(data):
            break
        sizes = struct.unpack_from(f"<{num_parts}Q", data, at + PREFIX.size)
        if sum(sizes) > limits.frame_bytes:
            return found, True
        if (end := part_at + sum(sizes)) > len(data):
            break
        if num_fds:  # none came with these bytes
            return found, True
        ends = [part_at + sum(sizes[:count]) for count in range(num_parts + 1)]
        found.append((data[header_at:part_at], [data[i:j] for i, j in itertools.pairwise(ends)]))
        at = end
    return found, False


def lie(version: int, num_fds: int, num_parts: int, header_size: int, sizes: list[int], rest: bytes) -> bytes:
    return PREFIX.pack(b"rw", version, num_fds, num_parts, header_size) + struct.pack(f"<{len(sizes)}Q", *sizes) + rest


lies = st.builds(
    lie,
    st.sampled_from([PROTOCOL, PROTOCOL, PROTOCOL, PROTOCOL, 0, 255]),
    st.sampled_from([0, 0, 0, 1, 255]),
    st.sampled_from([0, 0, 1, 2, 3, 65535]),
    st.sampled_from([0, 1, 40, 4096, 4097, 0xFFFFFFFF]),
    st.lists(st.sampled_from([0, 1, 40, 70_000, 1 << 50, (1 << 64) - 1]), max_size=4),
    st.binary(max_size=100),
)
truths = st.builds(encode, st.binary(max_size=40), st.lists(st.binary(max_size=40), max_size=3))


@given(
    pieces=st.lists(lies | truths | st.binary(max_size=100), max_size=4),
    cuts=st.lists(st.integers(0, 500), max_size=5),
    limits=st.sampled_from([STRANGER, MEMBER]),
)
@example(pieces=[PREFIX.pack(b"rw", PROTOCOL, 0, 65535, 0)], cuts=[], limits=MEMBER)
@example(pieces=[PREFIX.pack(b"rw", PROTOCOL, 0, 0, 0xFFFFFFFF)], cuts=[], limits=MEMBER)
@settings(deadline=None, max_examples=600)
def test_what_a_hostile_peer_sends_are_the_frames_in_it_and_then_an_error_or_a_wait_for_more(
    pieces: list[bytes], cuts: list[int], limits: Limits
) -> None:
    data = b"".join(pieces)
    expected, is_refused = by_the_drawing(data, limits)
    reader = FrameReader(Pieces(split(data, cuts), ends=False), limits)
    for header, parts in expected:
        frame = reader.next(wait=False)
        assert frame and (bytes(frame.header), [bytes(part) for part in frame.parts]) == (header, parts)
    with pytest.raises(FrameError if is_refused else BlockingIOError):
        reader.next(wait=False)


def peak_of(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("limits", [STRANGER, MEMBER], ids=["stranger", "member"])
def test_a_part_of_1_tib_is_refused_before_anything_is_allocated(limits: Limits) -> None:
    data = PREFIX.pack(b"rw", PROTOCOL, 0, 1, 4) + struct.pack("<Q", 1 << 40) + b"head"

    def read() -> None:
        with pytest.raises(FrameError, match="limit"):
            FrameReader(Pieces([data], ends=False), limits).next(wait=False)

    assert peak_of(read) < 1 << 20


def test_an_allowed_size_costs_memory_only_as_it_arrives() -> None:
    """It used to be filled with zeros at once: one small frame of a member took 64 GiB."""
    data = PREFIX.pack(b"rw", PROTOCOL, 0, 1, 4) + struct.pack("<Q", 32 << 30) + b"head" + b"x" * 1000
    before = resident_bytes()
    reader = FrameReader(Pieces([data], ends=False), MEMBER)
    with pytest.raises((BlockingIOError, FrameError)):  # where memory may not be overcommitted, it is refused by name
        reader.next(wait=False)
    assert resident_bytes() - before < 50 << 20


@pytest.mark.parametrize(
    "data",
    [
        PREFIX.pack(b"rw", PROTOCOL, 0, 300, 4) + struct.pack("<300Q", *[(1 << 20) - 1] * 300) + b"head" + b"x" * 1000,
        PREFIX.pack(b"rw", PROTOCOL, 0, 0, MEMBER.header_bytes) + b"x" * 1000,
    ],
    ids=["300 parts of a mebibyte", "a header of 64 MiB"],
)
def test_what_is_only_announced_costs_no_memory(data: bytes) -> None:
    """Each part used to be allocated, and filled with zeros, when the frame began: 3,000 of them cost 3 GiB."""

    def read() -> None:
        with pytest.raises(BlockingIOError):
            FrameReader(Pieces([data], ends=False), MEMBER).next(wait=False)

    assert peak_of(read) < 16 << 20


def test_a_frame_larger_than_the_memory_of_this_host_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MEMBER.frame_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = [MEMBER.frame_bytes // 2, MEMBER.frame_bytes // 2 + 2]
    data = PREFIX.pack(b"rw", PROTOCOL, 0, 2, 4) + struct.pack("<2Q", *sizes) + b"head"
    with pytest.raises(FrameError, match=f"announces {sum(sizes)} bytes; the limit here is {MEMBER.frame_bytes}"):
        FrameReader(Pieces([data], ends=False), MEMBER).next(wait=False)
    monkeypatch.setattr(frames, "MEMBER", replace(MEMBER, frame_bytes=1000))
    assert encode_head(b"head", [bytes(500), bytes(500)], 0)
    with pytest.raises(FrameError, match=r"1001 bytes is over the limit of 1000.*send it in pieces"):
        encode_head(b"head", [bytes(500), bytes(501)], 0)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_more_than_this_process_can_hold_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> bytearray:
        raise MemoryError("no room")

    monkeypatch.setattr(frames, "_room_for", full)
    reader = FrameReader(Pieces([encode(b"head", [bytes(1_000_000)])]), MEMBER)
    with pytest.raises(FrameError, match="part of 1000000 bytes, which this process cannot hold"):
        reader.next(wait=True)


def test_as_many_parts_as_are_allowed_arrive_and_one_more_is_refused_by_the_sender() -> None:
    parts = [b"x"] * 65535
    assert decode_all(FrameReader(Pieces([encode(b"h", parts)]), MEMBER)) == [(b"h", parts)]
    with pytest.raises(FrameError, match=r"65536 parts.*send it in pieces"):
        encode_head(b"h", [b"x"] * 65536, 0)
    with pytest.raises(FrameError, match="over the limit"):
        encode_head(bytes(MEMBER.header_bytes + 1), [], 0)


def test_a_stranger_may_send_one_small_header_and_nothing_else() -> None:
    def read(data: bytes) -> Frame | None:
        return FrameReader(Pieces([data]), STRANGER).next(wait=True)

    assert read(encode(bytes(STRANGER.header_bytes), []))
    for data in (
        encode(bytes(STRANGER.header_bytes + 1), []),
        encode(b"h", [b""]),
        PREFIX.pack(b"rw", PROTOCOL, 1, 0, 0),
    ):
        with pytest.raises(FrameError, match="the limit here is 4096 bytes, 0 and 0"):
            read(data)


def test_descriptors_belong_to_the_frame_that_announces_them() -> None:
    reader = FrameReader(Pieces([encode(b"a", []), encode_head(b"b", [], 2)], fds=[100, 101, 102]), MEMBER)
    first, second = reader.next(wait=True), reader.next(wait=True)
    assert first and second
    assert (first.fds, second.fds, reader.take_fds()) == ([], [100, 101], [102])


def test_descriptors_that_did_not_arrive_are_an_error_that_names_the_limit() -> None:
    with pytest.raises(FrameError, match=r"2 descriptors but only 1 arrived.*ulimit"):
        FrameReader(Pieces([encode_head(b"b", [], 2)], fds=[100]), MEMBER).next(wait=True)


def test_descriptors_that_nobody_announced_are_not_collected_without_end() -> None:
    with pytest.raises(FrameError, match="that no frame has announced"):
        FrameReader(Pieces([b"rw"], ends=False, fds=range(1000, 1600)), MEMBER).next(wait=False)
    with pytest.raises(FrameError, match="that no frame has announced"):
        FrameReader(Pieces([b"rw"], ends=False, fds=[1000]), STRANGER).next(wait=False)


def test_other_protocols_and_other_programs_are_told_apart() -> None:
    newer = bytearray(encode(b"h", []))
    newer[2] = PROTOCOL + 1
    with pytest.raises(FrameError, match=f"protocol {PROTOCOL + 1} and this side {PROTOCOL}"):
        FrameReader(Pieces([bytes(newer)]), MEMBER).next(wait=True)
    with pytest.raises(FrameError, match=r"not a Ropewalk frame.*GE"):
        FrameReader(Pieces([b"GET / HTTP/1.1\r\n"]), MEMBER).next(wait=True)


def test_the_buffer_shrinks_again_after_a_large_header() -> None:
    reader = FrameReader(Pieces([encode(bytes(5 << 20), []), encode(b"h", [])]), MEMBER)
    assert reader.next(wait=True)
    assert reader.next(wait=True)
    assert len(reader._buffer) <= 64 * 1024


def test_the_buffer_of_a_link_with_small_messages_is_small_and_grows_when_a_read_fills_it() -> None:
    small = encode(b"h" * 1000, [])
    reader = FrameReader(Pieces([small] * 3 + [small * 40, *[small] * 2]), MEMBER)
    for _ in range(4):
        assert reader.next(wait=True)
    assert len(reader._buffer) == 8 * 1024
    num_left = len(decode_all(reader))
    assert num_left == 41 and len(reader._buffer) == 64 * 1024


def test_large_parts_are_writable_and_each_its_own() -> None:
    frame = FrameReader(Pieces([encode(b"h", [bytes(2 << 20), bytes(100_000)])]), MEMBER).next(wait=True)
    assert frame
    for part in frame.parts:
        assert not memoryview(part).readonly


def stream_of(*pieces: bytes, announces: bool) -> Pieces:
    """A stream that stays open; the kernel `announces` what is in a unix socket, and not what TLS has decrypted."""
    stream = Pieces(pieces, ends=False)
    stream.carries_fds = announces
    return stream


def test_what_tls_has_decrypted_may_hold_more_until_it_is_asked_in_vain() -> None:
    reader = FrameReader(stream_of(encode(b"one", []), encode(b"two", []), announces=False), MEMBER)
    assert reader.may_hold_more, "the first frame may have come with the handshake"
    for _ in range(2):
        assert reader.next(wait=False)
        assert reader.may_hold_more, "nobody announces what lies in TLS"
    with pytest.raises(BlockingIOError):
        reader.next(wait=False)
    assert not reader.may_hold_more


@pytest.mark.parametrize("size", [3, 60_000])
def test_a_socket_holds_more_only_behind_a_frame_or_a_full_buffer(size: int) -> None:
    two = encode(b"h" * size, []) + encode(b"two", [])
    reader = FrameReader(stream_of(two, announces=True), MEMBER)
    assert not reader.may_hold_more, "the kernel has announced nothing yet"
    held: list[bool] = []
    for _ in range(2):
        assert reader.next(wait=False)
        held.append(reader.may_hold_more)
    assert held == [True, False]
    full = encode(b"h" * (64 * 1024 - PREFIX.size), [])
    reader = FrameReader(stream_of(full, announces=True), MEMBER)
    assert reader.next(wait=False)
    assert reader.may_hold_more, "no more fitted into the buffer: the kernel may have more"


@dataclass
class NotedRead:
    """A read of `FrameReader.next_alone`, perhaps interrupted."""

    ours: socket.socket
    theirs: socket.socket
    reader: FrameReader | None = None
    noted: list[Reception] = field(default_factory=list[Reception])
    found: list[Frame] = field(default_factory=list[Frame])


@pytest.mark.parametrize("num_sent", ["one frame", "two frames", "half a frame", "descriptors"])
def test_an_interrupt_at_any_step_of_a_noted_read_loses_nothing(num_sent: str) -> None:
    num_fds = int(num_sent == "descriptors")
    first, second = encode_head(b"first", (), num_fds), encode_head(b"second", (b"part",), 0) + b"part"
    sent = {"one frame": first, "two frames": first + second, "half a frame": first + second[:-2]}.get(num_sent, first)
    reads = list[NotedRead]()
    null = os.open(os.devnull, os.O_RDONLY)

    def read() -> None:
        reads.append(NotedRead(*socket.socketpair()))
        one = reads[-1]
        if num_fds:
            socket.send_fds(one.theirs, [sent], [null])
        else:
            one.theirs.send(sent)
        one.reader = FrameReader(PlainStream(one.ours), MEMBER)
        if frame := one.reader.next_alone(one.noted):
            one.found.append(frame)
            one.noted.clear()

    num_taken = sum(bool(reads[-1].noted) for _ in interrupts_at_each_step(read))
    assert num_taken > 0, "no interrupt came behind the system call"
    for one in reads:
        if one.reader:
            if one.noted:
                one.reader.put_back(one.noted)
            one.theirs.send((first + second)[len(sent) :])
            while len(one.found) < 2:
                frame = one.reader.next(wait=True)
                assert frame
                one.found.append(replace(frame, header=bytes(frame.header)))
            assert one.found[1].header == b"second" and one.found[1].parts == [b"part"]
            assert len(one.found[0].fds) == num_fds
            for fd in one.found[0].fds:
                os.close(fd)
        one.ours.close()
        one.theirs.close()
    os.close(null)


@pytest.mark.parametrize("num", [*range(9), 9])
def test_a_small_frame_of_a_few_parts_is_taken_in_one_read(num: int) -> None:
    """Arrays of observations and actions are four parts: otherwise a caller puts them back, and defers interrupts."""
    parts = [f"part {number}".encode() * number for number in range(num)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(encode(b"header", parts))
        reader, noted = FrameReader(PlainStream(ours), MEMBER), list[Reception]()
        frame = reader.next_alone(noted)
        if num > 8:
            assert frame is None
            reader.put_back(noted)
            frame = reader.next(wait=True)
        assert frame and bytes(frame.header) == b"header" and frame.parts == parts
        assert [type(part) for part in frame.parts] == [bytes, *[bytearray] * (num - 1)][:num]
        assert reader.is_idle


def test_frames_of_any_size_may_follow_a_large_one() -> None:
    parts = [bytes([number]) * size for number, size in enumerate([100_000, 10, 3_000, 100_000, 70_000, 2_048, 1])]
    sent = b"".join(encode_head(b"header", [part], 0) + part for part in parts)
    reader = FrameReader(Pieces([sent]), MEMBER)
    for part in parts:
        frame = reader.next(wait=True)
        assert frame and bytes(frame.parts[0]) == part
    assert reader.next(wait=True) is None
