"""How records are written to the pipe of a process: frames that any thread and any forked child can write.

    frame │ length of the rest, 2 bytes · kind, 1 byte · rest
    WHOLE │ the rest is a record
    PIECE │ the rest is the pid of the writer and its number of the record, 4 bytes each, and a part of the record
    LAST  │ the same, with the last part

No frame is longer than PIPE_BUF, up to which the kernel writes all or nothing and mixes in nothing of others (pipe(7)).
So writers need no lock, which a child forked at the wrong moment would inherit locked, and one that is killed between
two pieces of a long record harms no other record.
"""

from __future__ import annotations

import itertools
import os
import select
import struct
from collections.abc import Iterator

_HEAD = struct.Struct("<HB")
_PART = struct.Struct("<II")
_WHOLE, _PIECE, _LAST = range(3)
_WHOLE_BYTES = select.PIPE_BUF - _HEAD.size
_PIECE_BYTES = _WHOLE_BYTES - _PART.size
LONGEST_RECORD = 16 << 20
"""The most bytes that one record may have."""
_MAX_UNFINISHED_BYTES = 2 * LONGEST_RECORD
"""Of records of one pipe of which pieces are missing: the oldest of them are dropped, as their writers are dead."""

_numbers = itertools.count()
_pack_head = _HEAD.pack


def frames_of(record: bytes) -> Iterator[bytes]:
    """Return the frames of a record, each to be written with one call.

    Raises:
        ValueError: the record is longer than `LONGEST_RECORD`.
    """
    if len(record) <= _WHOLE_BYTES:
        yield _pack_head(len(record), _WHOLE) + record
        return
    if len(record) > LONGEST_RECORD:
        raise ValueError(
            f"a record of {len(record)} bytes was to be written; the limit is {LONGEST_RECORD} bytes. Keep values of "
            "this size in a file, as an artifact of the run"
        )
    writer = _PART.pack(os.getpid(), next(_numbers) & 0xFFFFFFFF)
    for at in range(0, len(record), _PIECE_BYTES):
        part = record[at : at + _PIECE_BYTES]
        kind = _PIECE if at + _PIECE_BYTES < len(record) else _LAST
        yield _pack_head(len(writer) + len(part), kind) + writer + part


class RecordStream:
    """Finds the records in the bytes of one pipe, which come in batches that end anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._unfinished: dict[bytes, bytearray] = {}
        """Records of which pieces are missing, by writer and number."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes; returns the records that are complete now.

        Raises:
            ValueError: these are no frames. Nothing that follows can be read.
        """
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(data, at)
            if length > _WHOLE_BYTES or kind > _LAST or (kind != _WHOLE and length < _PART.size):
                raise ValueError(f"a frame of kind {kind} with {length} bytes")
            begin = at + _HEAD.size
            if size - begin < length:
                break
            at = begin + length
            if kind == _WHOLE:
                yield data[begin:at]
            elif (record := self._joined(data[begin:at], is_last=kind == _LAST)) is not None:
                yield record
        self._rest = data[at:]

    def _joined(self, piece: bytes, *, is_last: bool) -> bytes | None:
        writer = piece[: _PART.size]
        parts = self._unfinished.setdefault(writer, bytearray())
        parts += piece[_PART.size :]
        if is_last:
            return bytes(self._unfinished.pop(writer))
        while sum(map(len, self._unfinished.values())) > _MAX_UNFINISHED_BYTES:
            del self._unfinished[next(iter(self._unfinished))]
        return None
