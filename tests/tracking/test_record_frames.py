"""Frames of records: whatever way the bytes are cut and mixed, the records come out."""

from __future__ import annotations

import random
import select

import pytest

from ropewalk.tracking import record_frames
from ropewalk.tracking.record_frames import RecordStream, frames_of


def cut(data: bytes, draw: random.Random) -> list[bytes]:
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(20)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_records_come_out_as_they_were_however_their_bytes_are_cut(seed: int) -> None:
    draw = random.Random(seed)
    records = [draw.randbytes(draw.choice((0, 1, 100, 4093, 4094, 4096, 20_000))) for _ in range(20)]
    data = b"".join(frame for record in records for frame in frames_of(record))
    stream = RecordStream()
    assert [record for piece in cut(data, draw) for record in stream.feed(piece)] == records


@pytest.mark.parametrize("seed", range(20))
def test_writers_that_take_turns_at_every_frame_do_not_mix_their_records(seed: int) -> None:
    draw = random.Random(seed)
    records = [bytes([writer]) * draw.choice((10, 5_000, 50_000)) for writer in range(5)]
    writers = [list(frames_of(record)) for record in records]
    stream, found = RecordStream(), list[bytes]()
    while any(writers):
        writer = draw.choice([writer for writer in writers if writer])
        found += stream.feed(writer.pop(0))
    assert sorted(found) == sorted(records)


def test_no_frame_is_longer_than_what_the_kernel_writes_at_once() -> None:
    for size in (0, 4092, 4093, 4094, 100_000):
        assert max(map(len, frames_of(b"x" * size))) <= select.PIPE_BUF


def test_a_record_that_is_too_long_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"16777217 bytes.*16777216 bytes.*artifact"):
        list(frames_of(bytes(record_frames.LONGEST_RECORD + 1)))


@pytest.mark.parametrize("data", [b"\xff" * 10, b"\x00\x00\x03", b"\x07\x00\x01" + bytes(7)])
def test_bytes_that_are_no_frames_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a frame of kind"):
        list(RecordStream().feed(data))


def test_pieces_of_writers_that_died_are_dropped_when_they_become_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_frames, "_MAX_UNFINISHED_BYTES", 100_000)
    stream = RecordStream()
    for _ in range(100):
        *most, _last = frames_of(b"x" * 40_000)
        assert list(stream.feed(b"".join(most))) == []
        assert sum(map(len, stream._unfinished.values())) <= 100_000
    assert list(stream.feed(b"".join(frames_of(b"y" * 40_000)))) == [b"y" * 40_000]
