"""Blobs: what is packed comes out again, private or read-only, and is gone with its last view."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.transport import blobs
from ropewalk.transport.blobs import (
    BlobRef,
    ContentHash,
    empty_file,
    name_of,
    open_parts,
    pack,
    read_bytes,
    total_bytes,
    write_bytes,
)

MEGABYTE = 1 << 20


def lengths_of(parts: list[bytes]) -> list[int]:
    return [len(part) for part in parts]


@given(parts=st.lists(st.binary(max_size=300), max_size=20), writable=st.booleans())
@settings(deadline=None)
def test_parts_come_out_as_they_went_in(parts: list[bytes], writable: bool) -> None:
    views = open_parts(pack(parts), lengths_of(parts), writable=writable)
    assert [bytes(view) for view in views] == parts


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4 * MEGABYTE - 1, 4 * MEGABYTE, 9 * MEGABYTE + 1])
@pytest.mark.parametrize("writable", [True, False])
def test_small_and_large_blobs_take_the_same_way(size: int, writable: bool) -> None:
    parts = [b"head", os.urandom(min(size, MEGABYTE)) * max(1, size // MEGABYTE), b"", b"tail"]
    views = open_parts(pack(parts), lengths_of(parts), writable=writable)
    assert [bytes(view) for view in views] == parts
    assert all(view.readonly != writable for view in views if view.nbytes)


def test_parts_of_other_types_count_in_bytes() -> None:
    numbers = memoryview(bytes(range(16))).cast("i")
    assert total_bytes([numbers, b"xy", bytearray(3)]) == 21
    views = open_parts(pack([numbers, bytearray(b"abc")]), [16, 3], writable=True)
    assert [bytes(view) for view in views] == [bytes(range(16)), b"abc"]


def test_writable_views_are_private_to_each_opening() -> None:
    fd = pack([b"one copy for all"])
    first = open_parts(os.dup(fd), [16], writable=True)[0]
    second = open_parts(os.dup(fd), [16], writable=True)[0]
    shared = open_parts(fd, [16], writable=False)[0]
    first[:3] = b"two"
    assert (bytes(first), bytes(second), bytes(shared)) == (
        b"two copy for all",
        b"one copy for all",
        b"one copy for all",
    )
    with pytest.raises(TypeError, match="read-only"):
        shared[0] = 0


def test_a_blob_is_sealed_and_has_no_name() -> None:
    fd = pack([b"sealed"])
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"broken", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1000)
    assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:ropewalk")
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_file_that_is_too_small_is_refused_before_it_is_touched_and_closed() -> None:
    """A mapping behind the end of a file kills the process that reads it (SIGBUS)."""
    before = psutil.Process().num_fds()
    with pytest.raises(ValueError, match="cannot hold parts of"):
        open_parts(pack([b"small"]), [1000], writable=False)
    with pytest.raises(ValueError, match="cannot hold parts of"):
        open_parts(pack([b"small"]), [1 << 50], writable=True)
    assert psutil.Process().num_fds() == before


def test_descriptors_and_memory_are_given_back_with_the_last_view() -> None:
    before = psutil.Process().num_fds()
    views = open_parts(pack([bytes(8 * MEGABYTE), b"x"]), [8 * MEGABYTE, 1], writable=False)
    assert psutil.Process().num_fds() <= before + 1
    last = views[0][10:20]
    del views
    assert bytes(last) == bytes(10)
    del last
    gc.collect()
    assert psutil.Process().num_fds() == before


def test_a_part_that_cannot_be_packed_leaves_no_descriptor_behind() -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(TypeError):
        pack([b"fine", "text"])  # type: ignore[list-item]
    assert psutil.Process().num_fds() == before


def test_where_descriptors_are_scarce_parts_are_copied_and_none_is_kept() -> None:
    code = (
        "import os, resource\n"
        "from ropewalk.transport.blobs import open_parts, pack\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "kept = [open_parts(pack([b'x' * 5000]), [5000], writable=True) for _ in range(500)]\n"
        "assert all(bytes(views[0]) == b'x' * 5000 for views in kept)\n"
        "kept[0][0][0] = 7\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 64


def test_names_tell_contents_apart_also_where_the_parts_are_cut() -> None:
    names = {name_of(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [], [b""])}
    assert len(names) == 6
    assert name_of([b"ab"]) == name_of([bytearray(b"ab")]) == name_of([memoryview(b"ab")])


def test_names_of_views_of_numbers_count_bytes() -> None:
    """`len` of such a view counts numbers; two parts that differ only in their cut must not be taken for one."""
    eight = memoryview(bytes(8)).cast("i")
    assert name_of([eight]) == name_of([bytes(8)])


def test_a_reference_knows_the_size_of_its_blob() -> None:
    parts = [b"x" * 100, b"", b"y"]
    fd = pack(parts)
    assert BlobRef("id", tuple(lengths_of(parts))).size_bytes == os.fstat(fd).st_size == 192
    os.close(fd)
    assert BlobRef("id", ()).size_bytes == 0


def test_the_same_layout_is_used_on_both_sides() -> None:
    offsets, size = blobs._layout([1, 64, 65, 0, 3])
    assert offsets == [0, 64, 128, 256, 256]
    assert size == 320


@given(parts=st.lists(st.binary(max_size=200), max_size=8), step=st.integers(1, 100))
@settings(deadline=None)
def test_the_hash_of_bytes_that_come_in_order_is_the_name_of_the_parts(parts: list[bytes], step: int) -> None:
    ref = BlobRef(name_of(parts), tuple(map(len, parts)))
    fd = pack(parts)
    content = ContentHash(ref.lengths)
    for offset in range(0, ref.size_bytes, step):
        content.update(read_bytes(fd, offset, min(step, ref.size_bytes - offset)))
    os.close(fd)
    assert content.name() == ref.id
    with pytest.raises(ValueError, match="more bytes"):
        content.update(b"x")


def test_a_file_that_is_filled_piece_by_piece_is_like_a_packed_one() -> None:
    parts = [b"head", os.urandom(1000)]
    packed = pack(parts)
    size = BlobRef("", tuple(map(len, parts))).size_bytes
    fd = empty_file(size)
    for offset in range(0, size, 100):
        write_bytes(fd, read_bytes(packed, offset, min(100, size - offset)), offset)
    os.close(packed)
    assert [bytes(view) for view in open_parts(fd, lengths_of(parts), writable=False)] == parts
