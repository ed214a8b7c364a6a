"""Blocks of points: bytes, and which ones are merged."""

from __future__ import annotations

import random
import re
import warnings

import numpy as np
import pytest

from ropewalk.errors import StoreCorrupt
from ropewalk.tracking.store.blocks import FAN, FULL, Points, cuts, joined, num_small, num_to_merge, pack, unpack


def points_of(values: list[float]) -> Points:
    found = np.array(values, np.float64)
    return Points(np.arange(len(found), dtype=np.float64), found + 100, found)


def test_blocks_come_back_as_they_were_bit_for_bit() -> None:
    first, second = points_of([1.0, np.nan, -0.0]), points_of([np.inf])
    found = unpack([pack(first), pack(second)])
    assert found.values.tobytes() == np.concatenate([first.values, second.values]).tobytes()
    assert found.steps.tolist() == [0, 1, 2, 0]
    assert found.times[3] == np.inf
    assert len(unpack([])) == 0


def test_points_come_in_the_order_of_their_times_and_those_of_one_time_as_they_came() -> None:
    for times, order in ([1, 0], [1, 0]), ([5, 3, 5, 3], [1, 3, 0, 2]), ([2, 2, 1], [2, 0, 1]), ([1, 3, 2], [0, 2, 1]):
        mixed = Points(np.arange(len(times), dtype=np.float64), np.array(times, np.float64), np.zeros(len(times)))
        assert mixed.in_order().steps.tolist() == order
        assert mixed.in_order().times.tolist() == sorted(times)
    for ordered in (points_of([]), points_of([7.0]), points_of([1.0, 1.0, 2.0])):
        assert ordered.in_order() is ordered


def test_the_points_of_two_runs_are_joined_in_the_order_of_their_times() -> None:
    first = Points(np.array([1.0, 2.0]), np.array([10.0, 30.0]), np.array([0.5, 0.25]))
    second = Points(np.array([1.5, 2.5]), np.array([20.0, 30.0]), np.array([7.0, 8.0]))
    both = joined(first, second)
    assert (both.steps.tolist(), both.times.tolist()) == ([1, 1.5, 2, 2.5], [10, 20, 30, 30])
    assert both.values.tolist() == [0.5, 7, 0.25, 8]


def test_of_one_block_and_of_none_there_are_columns_of_the_same_kind() -> None:
    for found in (unpack([]), unpack([pack(points_of([]))]), unpack([pack(points_of([3.0]))])):
        for column in (found.steps, found.times, found.values):
            assert column.dtype == np.float64 and column.ndim == 1 and len(column) == len(found)
    one = unpack([pack(Points(np.array([1.0]), np.array([2.0]), np.array([3.0])))])
    assert (one.steps.tolist(), one.times.tolist(), one.values.tolist()) == ([1], [2], [3])


def test_steps_of_equal_distances_take_no_space_and_times_take_half() -> None:
    num = 1000
    times = np.float64(1.76e9) + np.sort(np.random.default_rng(1).random(num))
    values = np.zeros(num)
    steps = np.arange(num, dtype=np.float64) / 10
    assert len(pack(Points(steps - steps % 1, times, values))) == 6 + 8 * num + 8 + 4 * num + 8 * num
    assert len(pack(Points(steps * 10, times, values))) == 6 + 16 + 8 + 4 * num + 8 * num
    assert len(pack(Points(times, values * np.nan, values))) == 6 + 24 * num


@pytest.mark.parametrize(("last", "bytes_of_times"), [(2**31, 8 + 4 * 4), (2**32 - 1, 8 + 4 * 4), (2**32, 4 * 8)])
def test_times_take_half_up_to_seventeen_minutes_after_the_first(last: int, bytes_of_times: int) -> None:
    times = 1.76e9 + np.array([0, 1, 2, last]) * 2.0**-22  # the distance of such numbers
    points = Points(np.arange(4.0), times, np.zeros(4))
    assert len(pack(points)) == 6 + 16 + bytes_of_times + 4 * 8
    assert unpack([pack(points)]).times.tolist() == times.tolist()


NEXT = np.nextafter(1.76e9, 2e9)
AXES = [
    [0.0, 1.0, 2.0, 3.0],
    [0.1, 0.2, 0.30000000000000004, 0.4],
    [-0.0, 0.0, 0.0, 0.0],
    [0.0, -0.0, 0.0, 0.0],
    [np.nan, np.nan, np.nan, np.nan],
    [1.0, 2.0, np.inf, np.inf],
    [1.0, np.inf, np.inf, np.inf],
    [np.inf, np.inf, 1.0, 2.0],
    [np.inf, 1.0, 2.0, 3.0],
    [-1e308, 1e308, 1e308, 1e308],
    [1.76e9, NEXT, 1.76e9 + 1, 1.76e9 + 1023.9],
    [1.76e9, 1.76e9 + 1, 1.76e9 + 2, 1.76e9 + 1024],
    [1.76e9 + 1, 1.76e9, 1.76e9, NEXT],
    [5e-324, 1.0, 1.5, 2.0],
    [5.0, 5.0, 5.0, 5.0],
    [2.0**53, 2.0**53 + 2, 2.0**53 + 4, 2.0**53 + 6],
]


@pytest.mark.parametrize("axis", AXES, ids=str)
def test_steps_and_times_of_every_kind_come_back_bit_for_bit(axis: list[float]) -> None:
    column, other = np.array(axis), np.array([3.0, 1.0, 4.0, 1.0])
    for points in (Points(column, other, other), Points(other, column, other), Points(column, column, column)):
        with warnings.catch_warnings(action="error"):
            found = unpack([pack(points)])
        for name in ("steps", "times", "values"):
            assert getattr(found, name).tobytes() == getattr(points, name).tobytes(), name


def test_blocks_of_earlier_versions_are_read_beside_those_of_now() -> None:
    old = b"\x01" + np.array([[1.0, 2.0], [10.0, 11.0], [0.5, 0.25]]).tobytes()
    found = unpack([old, pack(points_of([7.0] * 5))])
    assert found.steps.tolist() == [1, 2, 0, 1, 2, 3, 4]
    assert found.times.tolist() == [10, 11, 107, 107, 107, 107, 107]
    assert found.values.tolist() == [0.5, 0.25, 7, 7, 7, 7, 7]


@pytest.mark.parametrize(
    "block",
    [
        *(b"", b"\x01123", b"\x02", b"\x03" + bytes(24), b"\x02" + bytes(24), pack(points_of([1, 2]))[:-1]),
        pack(points_of([1.0] * 9)) + b"\0",
        b"\x02\x04" + pack(points_of([1.0] * 9))[2:],
        b"\x02\x03\xff\xff\xff\xff" + bytes(64),
        b"\x02\x00\xff\xff\xff\xff" + bytes(64),
    ],
)
def test_bytes_that_are_no_block_are_refused(block: bytes) -> None:
    says = f"a block of points has {len(block)} bytes and begins with {block[:1]!r}"
    with pytest.raises(StoreCorrupt, match=re.escape(says)):
        unpack([block])


@pytest.mark.parametrize(
    ("num", "sizes"), [(0, []), (1, [1]), (2 * FULL, [2 * FULL]), (2 * FULL + 1, [FULL, FULL + 1])]
)
def test_what_comes_at_once_is_cut_into_blocks_that_are_full_if_there_is_enough(num: int, sizes: list[int]) -> None:
    found = list(cuts(num))
    assert [end - begin for begin, end in found] == sizes
    assert [at for begin, end in found for at in range(begin, end)] == list(range(num))


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
