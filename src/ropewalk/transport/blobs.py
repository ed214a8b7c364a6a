"""Blobs: large bytes that live once in a host's memory.

Large buffers travel between processes of one host as sealed memory files (`memfd_create`): one copy in, none out, no
name in any file system and nothing to remove afterwards. Their size is not bounded by /dev/shm.

    parts of a payload ──pack──▶ memory file ──descriptor──▶ other process ──open_parts──▶ views

A constant (code, weights) is named by the hash of its content, so the same bytes are sent to a host once, however often
they are used; its views are read-only. The arguments and results of tasks are mapped privately: writable, independent
of the sender, copied page by page only where they are written.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import resource
from collections.abc import Callable, Sequence

import msgspec

from ropewalk.transport.frames import Part
from ropewalk.transport.kernel import memory_file, seal

SHARED_MIN_BYTES = 512 * 1024
"""Parts that are smaller than this together travel inside the frame: a mapping costs more than copying them."""
_ALIGN = 64


class BlobRef(msgspec.Struct, frozen=True, array_like=True):
    """The name of a blob, and the layout of its parts."""

    id: str
    lengths: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the blob in bytes, as it lies in memory."""
        return _layout(self.lengths)[1]


def name_of(parts: Sequence[Part]) -> str:
    """Return the content hash of some parts (SHA-256: it has hardware support, BLAKE2 does not)."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(memoryview(part).nbytes.to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


class ContentHash:
    """The content hash of a blob whose bytes come in order, as they lie in memory: `name_of` without all the parts.

    Args:
        lengths: sizes of the parts, in bytes.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._digest = hashlib.sha256()
        self._lengths = iter(lengths)
        self._left = self._padding = 0
        self._begin_part()

    def update(self, data: Part) -> None:
        """Add the next bytes of the blob.

        Raises:
            ValueError: they are more than the parts and what is between them.
        """
        view = memoryview(data).cast("B")
        while view.nbytes:
            if self._left:
                self._digest.update(view[: self._left])
                count = min(view.nbytes, self._left)
                self._left -= count
            elif self._padding:
                count = min(view.nbytes, self._padding)
                self._padding -= count
            else:
                raise ValueError("a blob has more bytes than its parts")
            view = view[count:]
            if not (self._left or self._padding):
                self._begin_part()

    def name(self) -> str:
        """Return the content hash, once all bytes were added."""
        return self._digest.hexdigest()

    def _begin_part(self) -> None:
        """Go on with the next part that is not empty."""
        for length in self._lengths:
            self._digest.update(length.to_bytes(8, "little"))
            if length:
                self._left, self._padding = length, -length % _ALIGN
                return


def total_bytes(parts: Sequence[Part]) -> int:
    """Return the size of some parts together, in bytes."""
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)


def pack(parts: Sequence[Part], name: str = "ropewalk") -> int:
    """Copy parts into a sealed memory file and return its descriptor, which the caller owns.

    Raises:
        OSError: the host is out of memory or descriptors.
    """
    lengths = [memoryview(part).nbytes for part in parts]
    offsets, size = _layout(lengths)
    fd = empty_file(size, name)
    try:
        for part, offset in zip(parts, offsets, strict=True):
            # Writing is twice as fast as copying into a mapping, which faults on every page, and frees the GIL.
            _write_all(fd, memoryview(part).cast("B"), offset)
        seal(fd)
        return fd
    except BaseException:
        os.close(fd)
        raise


def write_in_place(size_bytes: int, fill: Callable[[memoryview], object], name: str = "ropewalk") -> int:
    """Make a memory file as `pack` does, for one part that `fill` writes in place.

    Args:
        size_bytes: size of the part, at least 1.
        fill: called with a writable view of all of it, filled with zeros; must keep no view of it.
        name: name for people who look at this process.

    Raises:
        OSError: as for `pack`.
        Exception: whatever `fill` raised.
    """
    fd = empty_file(_layout([size_bytes])[1], name)
    try:
        with mmap.mmap(fd, size_bytes) as mapping, memoryview(mapping) as view:
            fill(view)
        seal(fd)  # the kernel refuses to seal a file while a writable mapping exists
        return fd
    except BaseException:
        os.close(fd)
        raise


def open_parts(fd: int, lengths: Sequence[int], *, writable: bool) -> list[memoryview]:
    """Return views of the parts of a memory file; takes ownership of `fd`.

    Writable views are private to this process; read-only views share the one copy of the host. The memory is freed with
    the last view.

    Raises:
        ValueError: the file is smaller than `lengths` say.
    """
    offsets, size = _layout(lengths)
    try:
        whole = _mapped(fd, size, may_copy=writable)
    finally:
        os.close(fd)
    return _cut(whole if writable else whole.toreadonly(), offsets, lengths)


def parts_of_file(fd: int, lengths: Sequence[int]) -> list[memoryview]:
    """Return read-only views of the parts of a memory file, to be sent in a frame; `fd` stays open.

    Raises:
        ValueError: the file is smaller than `lengths` say.
    """
    offsets, size = _layout(lengths)
    return _cut(_mapped(fd, size, may_copy=True).toreadonly(), offsets, lengths)


def read_bytes(fd: int, offset: int, length: int) -> bytes:
    """Return a part of a memory file; shorter than `length` if the file ends before."""
    return os.pread(fd, length, offset)


def write_bytes(fd: int, data: Part, offset: int) -> None:
    """Write into a memory file that is not sealed yet.

    Raises:
        OSError: the host is out of memory.
    """
    _write_all(fd, memoryview(data).cast("B"), offset)


def empty_file(size_bytes: int, name: str = "ropewalk") -> int:
    """Make a memory file that is to be filled, and sealed then; the caller owns the descriptor.

    Raises:
        OSError: the host is out of memory or descriptors.
    """
    fd = memory_file(name, sealable=True)
    try:
        os.ftruncate(fd, max(size_bytes, 1))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    offsets: list[int] = []
    at = 0
    for length in lengths:
        offsets.append(at)
        at += (length + _ALIGN - 1) // _ALIGN * _ALIGN
    return offsets, at


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _mapped(fd: int, size: int, *, may_copy: bool) -> memoryview:
    if os.fstat(fd).st_size < size:
        raise ValueError(f"a blob of {os.fstat(fd).st_size} bytes cannot hold parts of {size} bytes")
    if size == 0:
        return memoryview(bytearray())
    if may_copy and descriptors_are_scarce(fd):
        whole = memoryview(bytearray(size))
        _read_all(fd, whole)
        return whole
    # Private for constants too: all processes share the pages as long as none writes, and code that ignores that a
    # buffer is read-only (torch has no read-only tensors) gets its own copy instead of a segmentation fault.
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY))


def _cut(whole: memoryview, offsets: Sequence[int], lengths: Sequence[int]) -> list[memoryview]:
    return [whole[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]


def _read_all(fd: int, view: memoryview) -> None:
    offset = 0
    while offset < view.nbytes:
        count = os.preadv(fd, [view[offset:]], offset)
        if count == 0:
            raise ValueError("a blob ended early")
        offset += count


def descriptors_are_scarce(fd: int) -> bool:
    """Return whether the process is near its limit of open descriptors.

    A mapping should not keep one more then (Python's mmap does).
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return False
    try:
        # The number that the mapping would get; `fd` itself says nothing, as its number is free again each time.
        probe = os.dup(fd)
    except OSError:
        return True
    os.close(probe)
    return probe > soft // 2
