"""Blocks of points: bytes, and which ones are merged."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from ropewalk.errors import StoreCorrupt
from ropewalk.tracking.store.blocks import FAN, FULL, Points, num_small, num_to_merge, pack, pieces, unpack


def points_of(values: list[float]) -> Points:
    found = np.array(values, np.float64)
    return Points(np.arange(len(found), dtype=np.float64), found + 100, found)


def test_blocks_come_back_as_they_were_bit_for_bit() -> None:
    first, second = points_of([1.0, np.nan, -0.0]), points_of([np.inf])
    joined = unpack([pack(first), pack(second)])
    assert joined.values.tobytes() == np.concatenate([first.values, second.values]).tobytes()
    assert joined.steps.tolist() == [0, 1, 2, 0]
    assert joined.times[3] == np.inf
    assert len(unpack([])) == 0


def test_points_come_in_the_order_of_their_times_and_those_of_one_time_as_they_came() -> None:
    for times, order in ([1, 0], [1, 0]), ([5, 3, 5, 3], [1, 3, 0, 2]), ([2, 2, 1], [2, 0, 1]), ([1, 3, 2], [0, 2, 1]):
        mixed = Points(np.arange(len(times), dtype=np.float64), np.array(times, np.float64), np.zeros(len(times)))
        assert mixed.in_order().steps.tolist() == order
        assert mixed.in_order().times.tolist() == sorted(times)
    for ordered in (points_of([]), points_of([7.0]), points_of([1.0, 1.0, 2.0])):
        assert ordered.in_order() is ordered


def test_of_one_block_and_of_none_there_are_columns_of_the_same_kind() -> None:
    for found in (unpack([]), unpack([pack(points_of([]))]), unpack([pack(points_of([3.0]))])):
        for column in (found.steps, found.times, found.values):
            assert column.dtype == np.float64 and column.ndim == 1 and len(column) == len(found)
    one = unpack([pack(Points(np.array([1.0]), np.array([2.0]), np.array([3.0])))])
    assert (one.steps.tolist(), one.times.tolist(), one.values.tolist()) == ([1], [2], [3])


def test_a_point_takes_24_bytes() -> None:
    assert len(pack(points_of([0.0] * 1000))) == 24_001


@pytest.mark.parametrize("block", [b"", b"\x01123", b"\x02" + bytes(24), pack(points_of([1, 2]))[:-1]])
def test_bytes_that_are_no_block_are_refused(block: bytes) -> None:
    says = f"a block of points has {len(block)} bytes and begins with {block[:1]!r}"
    with pytest.raises(StoreCorrupt, match=re.escape(says)):
        unpack([block])


@pytest.mark.parametrize(
    ("num", "sizes"), [(0, []), (1, [1]), (2 * FULL, [2 * FULL]), (2 * FULL + 1, [FULL, FULL + 1])]
)
def test_what_comes_at_once_is_cut_into_blocks_that_are_full_if_there_is_enough(num: int, sizes: list[int]) -> None:
    found = list(pieces(points_of([0.0] * num)))
    assert [len(piece) for piece in found] == sizes
    assert [step for piece in found for step in piece.steps.tolist()] == list(range(num))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], 0),
        ([1] * (FAN - 1), 0),
        ([1] * FAN, FAN),
        ([500] * FAN, FAN),
        ([64, *[1] * FAN], FAN),  # the larger one waits for others of its size
        ([64, *[1] * (FAN - 1), 64], FAN + 1),  # what lies between two large ones goes with them
        ([*[8] * (FAN - 1), *[1] * FAN], 2 * FAN - 1),  # what becomes of the merged one is merged, too
        ([FULL // 2] * FAN, FAN),
        ([*[600] * (FAN - 1), *[64] * FAN], 2 * FAN - 1),
        ([*[600] * (FAN - 1), *[FULL // FAN] * FAN], FAN),  # what is full now is not copied again
        ([7] * FAN, FAN),
        ([4, *[1] * (FAN - 1)], FAN),  # about one size: the power of FAN is the same
        ([8, *[7] * (FAN - 1)], 0),
        ([*[8] * FAN, 7], 0),
    ],
)
def test_blocks_of_about_one_size_are_merged(counts: list[int], expected: int) -> None:
    assert num_to_merge(counts) == expected


def test_blocks_that_are_full_are_left_alone() -> None:
    assert num_small([5, FULL, 7, 8]) == 2
    assert num_small([FULL]) == num_small([]) == 0
    assert num_small([FULL - 1, 3]) == 2


@pytest.mark.parametrize("sizes", [[1], [500], [1, 1, 1, 90], [7000, 1]])
def test_points_are_copied_a_few_times_and_blocks_stay_few(sizes: list[int]) -> None:
    rng = random.Random(2)
    counts: list[int] = []
    num_copied = total = most = 0
    for _ in range(3000):
        counts.append(rng.choice(sizes))
        total += counts[-1]
        if num := num_to_merge(counts):
            num_copied += sum(counts[-num:])
            counts[-num:] = [sum(counts[-num:])]
        most = max(most, num_small(counts))
        counts = counts[len(counts) - num_small(counts) :]
    assert num_copied <= 5 * total
    assert most <= 5 * FAN
