"""Frames: one typed header and the parts that follow it, as bytes on a stream.

    ┌───────┬─────────┬─────┬───────┬────────────┬──────────────┬────────┬─────────┐
    │ magic │ version │ fds │ parts │ header size│ part sizes   │ header │ parts … │
    │ 2     │ 1       │ 1   │ 2     │ 4          │ 8 each       │        │         │
    └───────┴─────────┴─────┴───────┴────────────┴──────────────┴────────┴─────────┘

Little endian. The header is one msgspec struct; parts are opaque bytes, read
straight into memory of their own when they are large. Limits hold before
anything is allocated, and are small until the peer is known (`Limits`). Memory is
allocated as bytes arrive: what a frame only announces costs nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Sequence

import msgspec

from ropewalk.errors import FrameError, LinkClosed
from ropewalk.transport.streams.stream import TURN_BYTES, Reception, Stream

MAGIC = b"rw"
PROTOCOL = 2
"""Changes whenever the bytes of a frame or of the handshake change."""
_PREFIX = struct.Struct("<2sBBHI")
_PREFIX_OF_ONE = struct.Struct("<2sBBHIQ")
_PREFIX_OF_TWO = struct.Struct("<2sBBHIQQ")
_SIZE = struct.Struct("<Q")
_FEW_PARTS = 8
_SIZES = [struct.Struct(f"<{num}Q") for num in range(_FEW_PARTS + 1)]
"""By number of parts, their sizes."""
_BUFFER_BYTES = 64 * 1024
_FIRST_BYTES = 8 * 1024
"""A reader begins with a buffer of this size, and gets a larger one when a read has filled it: a launcher of thousands
of workers has a reader for each, and most messages are small."""
MAX_FDS = 253
"""Linux passes at most this many descriptors at once (SCM_MAX_FD)."""
_PAGES_MIN_BYTES = 1 << 20
"""Parts of this size and more are read into pages that cost nothing before bytes arrive in them."""
_HEAD_BYTES = 2048
"""After a large frame, this much is read of the next one before its parts are read straight into place."""
_DIRECT_MIN_BYTES = 16 << 10
"""Parts of this size and more are read straight into place; smaller ones are read together, and copied."""
_AHEAD_BYTES = 8 << 20
"""This much memory is allocated for parts before their bytes arrive, or as much again as has arrived."""

Part = bytes | bytearray | memoryview


class Limits(msgspec.Struct, frozen=True):
    """The most that one frame may contain."""

    header_bytes: int
    num_parts: int
    frame_bytes: int
    num_fds: int


STRANGER = Limits(header_bytes=4096, num_parts=0, frame_bytes=8192, num_fds=0)
"""Limits before the handshake is over: one small header and nothing else."""
MEMBER = Limits(
    header_bytes=64 << 20,
    num_parts=65535,
    frame_bytes=min(64 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
    num_fds=MAX_FDS,
)
"""Limits afterwards. The size of a frame is bounded by the memory of this host, not by the format."""


class Frame(msgspec.Struct, eq=False):
    """One received frame; the receiver owns the parts and the descriptors."""

    header: Part
    """Valid only until the next frame is asked for: it may lie in the reader's own memory."""
    parts: list[Part]
    fds: list[int]


def encode_head(header: bytes, parts: Sequence[memoryview | bytes], num_fds: int) -> bytes:
    """Encode everything of a frame that comes before its parts.

    Raises:
        FrameError: the header is longer, or the parts, bytes or descriptors are more, than any peer would accept.
    """
    if num_fds > MAX_FDS:
        raise FrameError(f"a frame with {num_fds} file descriptors is over the limit of {MAX_FDS}; send it in pieces")
    if len(parts) > MEMBER.num_parts or len(header) > MEMBER.header_bytes:
        raise FrameError(
            f"a frame of {len(parts)} parts and a header of {len(header)} bytes is over the limit of "
            f"{MEMBER.num_parts} parts and {MEMBER.header_bytes} bytes; send it in pieces"
        )
    prefix = _PREFIX.pack(MAGIC, PROTOCOL, num_fds, len(parts), len(header))
    if not parts:
        return prefix + header
    sizes = [part.nbytes if type(part) is memoryview else len(part) for part in parts]
    if sum(sizes) > MEMBER.frame_bytes:
        raise FrameError(
            f"a frame of {sum(sizes)} bytes is over the limit of {MEMBER.frame_bytes} bytes, which is 64 GiB or the "
            "memory of this host; send it in pieces"
        )
    return prefix + struct.pack(f"<{len(parts)}Q", *sizes) + header


def encode_alone(header: bytes) -> bytes:
    """Encode a frame without parts: the fast path, which most messages take."""
    if len(header) > MEMBER.header_bytes:
        return encode_head(header, (), 0)  # raises the error for a header that is too long
    return _PREFIX.pack(MAGIC, PROTOCOL, 0, 0, len(header)) + header


def encode_with_one(header: bytes, part: Part) -> bytes:
    """Encode a frame with one small part, as one piece."""
    if len(header) > MEMBER.header_bytes:
        return encode_head(header, (part,), 0)  # type: ignore[arg-type]
    return b"".join((_PREFIX_OF_ONE.pack(MAGIC, PROTOCOL, 0, 1, len(header), len(part)), header, part))


def encode_with_two(header: bytes, first: Part, second: Part) -> bytes:
    """Encode a frame with two small parts, as one piece: a pickle and one array, as a rule."""
    if len(header) > MEMBER.header_bytes:
        return encode_head(header, (first, second), 0)  # type: ignore[arg-type]
    prefix = _PREFIX_OF_TWO.pack(MAGIC, PROTOCOL, 0, 2, len(header), len(first), len(second))
    return b"".join((prefix, header, first, second))


class FrameReader:
    """Reads frames from a stream; keeps the received bytes of the next frame between calls."""

    def __init__(self, stream: Stream, limits: Limits = STRANGER) -> None:
        self.limits = limits
        self._stream = stream
        self._buffer = bytearray(_FIRST_BYTES)
        self._view = memoryview(self._buffer)
        self._start: int = 0
        self._end: int = 0
        self._fds: list[int] = []
        self._large: _LargeFrame | None = None
        self._filled: bool = False
        self._room_bytes = 0
        """Size of the room that `next_alone` had."""
        self._expects_large = False
        """Whether the last frame was large: then only the head of the next one is read into the buffer."""
        self.may_hold_more: bool = not stream.carries_fds
        """Whether there may be another frame that the kernel will not announce."""
        self.num_bytes: int = 0
        """Number of bytes received so far; a large frame in transit counts as a sign of life."""

    def next(self, *, wait: bool) -> Frame | None:
        """Return the next frame, or None when the peer has closed between frames.

        Raises:
            BlockingIOError: no whole frame has arrived yet and `wait` is false.
            FrameError: the bytes are not a frame, exceed a limit, or were cut off in the middle.
            LinkClosed: the connection broke.
        """
        if self._stream.arrived_fds:  # of bytes that were put back
            self._claim_fds()
        frame = self._parse() if self._start != self._end or self._large else None
        taken = 0
        while frame is None:
            large = self._large
            direct = large is not None and large.direct
            if large and direct:
                target = large.left
            else:
                target = self._room() if self._end or self._filled or self._expects_large else self._view
            self.may_hold_more = False  # unless something comes, the stream has nothing until the kernel announces more
            count = self._stream.receive_into(target, wait=wait)
            self.num_bytes += count
            if count == 0:
                if large or self._start != self._end:
                    raise FrameError("the peer closed in the middle of a frame")
                return None
            if self._stream.arrived_fds:
                self._claim_fds()
            self._filled = count == len(target)
            if large and direct:
                large.advance(count)
                if not large.left:
                    self._filled = False  # it asked for the rest of this frame only; the kernel announces the next one
            else:
                was_empty = not self._end
                self._end += count
                if was_empty and not large and not self._fds and (frame := self._parse_alone(count)):
                    break
            frame = self._parse()
            if large:
                taken += count
                if frame is None and taken > TURN_BYTES and not wait and not self._filled:
                    # Other links must get their turn; the rest is in the kernel, which announces it again.
                    raise BlockingIOError
        self.may_hold_more = self._start != self._end or self._filled or not self._stream.carries_fds
        return frame

    @property
    def is_idle(self) -> bool:
        """Whether `next_alone` may be called: nothing is left of what was received before."""
        return not (self._end != self._start or self._large or self._fds)

    def next_alone(self, noted: list[Reception]) -> Frame | None:
        """Wait for bytes, and return the frame that they are if they are a single small one, as most answers are.

        An interrupt at any moment loses nothing: until the caller clears `noted`, that has what was received, and
        `put_back` has it received again, whether the frame was returned or not. After None it has to be called.

        Args:
            noted: empty.

        Raises:
            LinkClosed: the peer has closed, or the connection broke.
        """
        self.may_hold_more = False  # as in `next`
        target = self._room() if self._filled or self._expects_large else self._view
        self._room_bytes = len(target)
        count = self._stream.receive_noted(target, noted)
        if not count:
            raise LinkClosed("the peer closed the link")
        frame = None if noted[0][1] or count == self._room_bytes else self._parse_alone(count)
        if frame:
            self._filled = False
            self.num_bytes += count
        return frame

    def put_back(self, noted: list[Reception]) -> None:
        """Let `next` go on with what `next_alone` has noted; must not be interrupted."""
        reception = noted.pop()
        self._stream.keep_fds(reception)
        self._start, self._end = 0, reception[0]
        self.num_bytes += self._end
        self._filled = self._end == self._room_bytes
        self.may_hold_more = True

    def _claim_fds(self) -> None:
        self._fds += self._stream.take_fds()
        if len(self._fds) > 2 * self.limits.num_fds:  # those of this frame and of the one after it
            raise FrameError(f"{len(self._fds)} file descriptors came that no frame has announced")

    def _parse_alone(self, count: int) -> Frame | None:
        """Parse the bytes if they are a single frame with few small parts, as most calls and answers are.

        Returns None for other frames.
        """
        if count < _PREFIX.size:
            return None
        magic, version, num_fds, num_parts, header_size = _PREFIX.unpack_from(self._buffer)
        if magic != MAGIC or version != PROTOCOL or num_fds or header_size > self.limits.header_bytes:
            return None
        if num_parts == 0 and count == _PREFIX.size + header_size:
            parts: list[Part] = []
            body = _PREFIX.size
        elif num_parts == 1 <= self.limits.num_parts and count >= _PREFIX_OF_ONE.size + header_size:
            body = _PREFIX_OF_ONE.size
            if count != body + header_size + _SIZE.unpack_from(self._buffer, _PREFIX.size)[0]:
                return None
            parts = [bytes(self._view[body + header_size : count])]
        elif 2 <= num_parts <= _FEW_PARTS and num_parts <= self.limits.num_parts:
            layout = _SIZES[num_parts]
            body = _PREFIX.size + layout.size
            at = body + header_size
            if count < at:
                return None
            sizes = layout.unpack_from(self._buffer, _PREFIX.size)
            if count != at + sum(sizes):
                return None
            parts = self._small_parts(at, sizes)
        else:
            return None
        self._start = self._end = 0
        return Frame(self._view[body : body + header_size], parts, [])

    def _small_parts(self, at: int, sizes: Sequence[int]) -> list[Part]:
        """Copy parts out of the buffer: the first as bytes, as which it is unpickled, the others as writable memory."""
        view, end = self._view, at + sizes[0]
        parts: list[Part] = [bytes(view[at:end])]
        for size in sizes[1:]:
            at, end = end, end + size
            parts.append(bytearray(view[at:end]))
        return parts

    def take_fds(self) -> list[int]:
        """Return the descriptors that no frame has claimed (to be closed when the link ends)."""
        fds, self._fds = self._fds, []
        return fds

    def _parse(self) -> Frame | None:
        if large := self._large:
            self._start += large.take(self._view[self._start : self._end])
            return None if large.left else self._finish(large.frame, large.num_fds)
        start, available = self._start, self._end - self._start
        if available < _PREFIX.size:
            return None
        magic, version, num_fds, num_parts, header_size = _PREFIX.unpack_from(self._buffer, start)
        if magic != MAGIC:
            raise FrameError(f"these bytes are not a Ropewalk frame (they begin with {bytes(magic)!r})")
        if version != PROTOCOL:
            raise FrameError(
                f"the peer speaks protocol {version} and this side {PROTOCOL}; upgrade the older side",
                peer_protocol=version,
            )
        limits = self.limits
        if header_size > limits.header_bytes or num_parts > limits.num_parts or num_fds > limits.num_fds:
            raise FrameError(
                f"a frame announces a header of {header_size} bytes, {num_parts} parts and {num_fds} descriptors; "
                f"the limit here is {limits.header_bytes} bytes, {limits.num_parts} and {limits.num_fds}"
            )
        body = start + _PREFIX.size + 8 * num_parts
        parts_at = body + header_size
        if parts_at > self._end:
            return None
        if not num_parts:
            self._start = parts_at
            frame = Frame(self._view[body:parts_at], [], [])
            return self._finish(frame, num_fds) if num_fds else frame
        if num_parts == 1:
            sizes = _SIZE.unpack_from(self._buffer, start + _PREFIX.size)
            total = sizes[0]
        else:
            sizes = struct.unpack_from(f"<{num_parts}Q", self._buffer, start + _PREFIX.size)
            total = sum(sizes)
        if total > limits.frame_bytes:
            raise FrameError(f"a frame announces {total} bytes; the limit here is {limits.frame_bytes}")
        if parts_at + total <= self._end:
            frame = Frame(self._view[body:parts_at], self._small_parts(parts_at, sizes), [])
            self._start = parts_at + total
            return self._finish(frame, num_fds) if num_fds else frame
        if parts_at - start + total <= _BUFFER_BYTES:
            return None
        # A large frame: each part gets memory of its own and is read into place.
        self._large = _LargeFrame(bytes(self._view[body:parts_at]), sizes, num_fds)
        self._start = parts_at
        return self._parse()

    def _finish(self, frame: Frame, num_fds: int) -> Frame:
        self._expects_large = self._large is not None and not num_fds
        self._large = None
        if num_fds:
            if len(self._fds) < num_fds:
                raise FrameError(
                    f"a frame announces {num_fds} descriptors but only {len(self._fds)} arrived; "
                    "this process may have run out of them (compare `ulimit -n`)"
                )
            frame.fds, self._fds = self._fds[:num_fds], self._fds[num_fds:]
        return frame

    def _room(self) -> memoryview:
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER_BYTES or (self._filled and len(self._buffer) < _BUFFER_BYTES):
                buffer = bytearray(_BUFFER_BYTES)
                self._buffer, self._view = buffer, memoryview(buffer)  # no interrupt comes between these
            if self._expects_large:
                self._expects_large = False
                return self._view[:_HEAD_BYTES]
            return self._view
        if self._filled and len(self._buffer) < _BUFFER_BYTES:
            self._move_to(bytearray(_BUFFER_BYTES))
        elif len(self._buffer) - self._end < 4096 and self._start:
            self._move_to(self._buffer)
        if self._end == len(self._buffer):  # twice the bytes that have arrived, whatever was announced
            self._move_to(bytearray(2 * len(self._buffer)))
        return self._view[self._end :]

    def _move_to(self, buffer: bytearray) -> None:
        """Move the bytes that have not been parsed to the beginning of a buffer, which may be the same one."""
        count = self._end - self._start
        buffer[:count] = self._buffer[self._start : self._end]
        if buffer is not self._buffer:
            self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, count


class _LargeFrame:
    """A frame whose parts are being read straight into place."""

    def __init__(self, header: bytes, sizes: Sequence[int], num_fds: int) -> None:
        self.num_fds = num_fds
        self.frame = Frame(header, [], [])
        self.left = memoryview(b"")
        """The part of the memory that is still to be filled; empty when the frame is whole."""
        self.direct = False
        """Whether that part is read straight into place."""
        self._sizes = sizes
        self._num_begun = 0
        self._arrived = self._allocated = 0
        self._begin_part()

    def advance(self, count: int) -> None:
        """Note that `count` bytes have been read into place."""
        self._arrived += count
        self.left = self.left[count:]
        if not self.left:
            self._begin_part()

    def take(self, available: memoryview) -> int:
        """Copy bytes that have arrived already into place; returns how many were used."""
        used = 0
        while self.left and used < available.nbytes:
            count = min(self.left.nbytes, available.nbytes - used)
            self.left[:count] = available[used : used + count]
            self.advance(count)
            used += count
        return used

    def _begin_part(self) -> None:
        """Go on with the next part that has bytes, if there is one."""
        while not self.left and self._num_begun < len(self._sizes):
            if self._num_begun == len(self.frame.parts):
                self._allocate()
            self.left = memoryview(self.frame.parts[self._num_begun])
            self.direct = self.left.nbytes >= _DIRECT_MIN_BYTES
            self._num_begun += 1

    def _allocate(self) -> None:
        """Allocate some parts together, because neighbours share huge pages, and a single part has none."""
        parts, most = self.frame.parts, max(2 * self._arrived, self._arrived + _AHEAD_BYTES)
        while len(parts) < len(self._sizes):
            size = self._sizes[len(parts)]
            if self._allocated + size > most and len(parts) > self._num_begun:
                return
            try:
                parts.append(_room_for(size))
            except (MemoryError, OSError) as error:
                raise FrameError(
                    f"a frame of {sum(self._sizes)} bytes has a part of {size} bytes, which this process cannot hold: "
                    f"{error}"
                ) from error
            self._allocated += size


def _room_for(size: int) -> bytearray | memoryview:
    if size < _PAGES_MIN_BYTES:
        return bytearray(size)
    # A bytearray is filled with zeros first, so a peer could make us use as much memory as it announces.
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)
