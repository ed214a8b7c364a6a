"""Rows in slabs: contents, holders, and the memory they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropewalk.rl.replay.row_store import RowColumn, RowStore
from ropewalk.rl.replay.row_uses import RowUses
from ropewalk.rl.replay.slab import Slab


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def column(shape: tuple[int, ...] = (2,), dtype: str = "float32") -> RowColumn:
    return RowColumn("x", shape, np.dtype(dtype))


def read(of: RowColumn | Slab, slots: np.ndarray) -> np.ndarray:
    out = np.empty((*slots.shape, *of.shape), of.dtype)
    of.read(slots, out)
    return out


def test_rows_stay_as_they_were_while_the_column_grows() -> None:
    of, rng = column((5,)), np.random.default_rng(0)
    rows = rng.random((5000, 5)).astype(np.float32)
    slots: list[np.ndarray] = []
    for start in range(0, 5000, 50):
        of.reserve(50)
        slots.append(of.add(rows[start : start + 50]))
    every = np.concatenate(slots)
    assert len(set(every.tolist())) == 5000
    np.testing.assert_array_equal(read(of, every), rows)
    np.testing.assert_array_equal(read(of, every.reshape(50, 100)), rows.reshape(50, 100, 5))


def test_a_row_is_free_when_its_last_holder_lets_go_and_is_used_again() -> None:
    of = column()
    of.reserve(3)
    slots = of.add(np.ones((3, 2), np.float32))
    of.hold(slots[:1])
    of.release(slots)
    assert of.num_rows == 1 and np.flatnonzero(of.holders()).tolist() == slots[:1].tolist()
    of.reserve(2)
    again = of.add(np.full((2, 2), 2, np.float32))
    assert set(again.tolist()) == set(slots[1:].tolist()) and of.capacity == 16
    assert read(of, slots[:1]).tolist() == [[1, 1]]


def test_pinned_rows_are_not_used_again_before_the_last_pin_is_gone() -> None:
    of = column()
    of.reserve(2)
    first = of.add(np.ones((2, 2), np.float32))
    of.pin()
    of.pin()
    of.release(first)
    of.unpin()
    of.reserve(2)
    of.release(second := of.add(np.zeros((2, 2), np.float32)))
    assert read(of, first).tolist() == [[1, 1], [1, 1]] and of.num_rows == 2
    of.reserve(2)
    assert sorted(of.add(np.ones((2, 2), np.float32)).tolist()) == sorted(second.tolist())
    of.unpin()
    assert of.num_rows == 2 and not set(first.tolist()) & set(second.tolist())
    of.reserve(2)
    assert sorted(of.add(np.ones((2, 2), np.float32)).tolist()) == sorted(first.tolist())


def test_a_later_pin_keeps_the_rows_of_an_earlier_one_too() -> None:
    of = column()
    of.reserve(4)
    first = of.add(np.ones((2, 2), np.float32))
    of.pin()
    of.release(first)
    second = of.add(np.ones((2, 2), np.float32))
    of.pin()
    of.unpin()
    of.release(second)
    assert of.num_rows == 4
    of.unpin()
    assert of.num_rows == 0


@pytest.mark.parametrize(("shape", "dtype"), [((), "bool"), ((0,), "float32"), ((2, 3), "int64"), ((), "S5")])
def test_rows_of_any_plain_dtype_and_shape_are_kept(shape: tuple[int, ...], dtype: str) -> None:
    of = column(shape, dtype)
    rows = np.ones((20, *shape), dtype)
    of.reserve(20)
    np.testing.assert_array_equal(read(of, of.add(rows)), rows)


def test_growing_copies_no_rows() -> None:
    """The pages move: neither are rows copied, nor is there ever room for two copies."""
    slab = Slab("x", (1 << 20,), np.dtype(np.uint8))
    slab.reserve(64)
    slab.write(np.arange(64), np.full((64, 1 << 20), 7, np.uint8))
    before = resident_bytes()
    slab.reserve(4096)
    assert resident_bytes() - before < 16 << 20
    assert np.all(read(slab, np.array([63]))[0] == 7) and slab.capacity == 4096


def test_memory_of_freed_rows_goes_back_to_the_system() -> None:
    of = column((1 << 20,), "uint8")
    before = resident_bytes()
    rows = np.full((1, 1 << 20), 3, np.uint8)
    slots: list[np.ndarray] = []
    for _ in range(96):
        of.reserve(1)
        slots.append(of.add(rows))
    assert resident_bytes() - before > 80 << 20
    kept = slots.pop(40)
    of.release(np.concatenate(slots))
    assert resident_bytes() - before < 40 << 20
    assert np.all(read(of, kept) == 3)
    of.reserve(95)
    for _ in range(95):
        slots.append(of.add(rows))
    assert np.all(read(of, np.concatenate(slots[-95:])) == 3) and of.num_rows == 96


def test_a_small_column_keeps_its_memory_for_the_next_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[tuple[int, int]] = []
    monkeypatch.setattr(Slab, "forget", lambda slab, first, last: forgotten.append((first, last)))
    of = column((1024,))
    for num in (8000, 9000):
        of.reserve(num)
        of.release(of.add(np.zeros((num, 1024), np.float32)))
    assert forgotten == [(0, 9000)]


def test_only_whole_pages_of_freed_rows_are_given_back() -> None:
    slab = Slab("x", (1000,), np.dtype(np.uint8))
    slab.reserve(100)
    slab.write(np.arange(100), np.full((100, 1000), 5, np.uint8))
    slab.forget(3, 90)
    assert np.all(read(slab, np.array([0, 1, 2, *range(90, 100)])) == 5)
    assert np.all(read(slab, np.arange(10, 80)) == 0)
    slab.forget(91, 92)
    assert np.all(read(slab, np.arange(90, 100)) == 5)


def test_memory_that_the_system_refuses_is_an_error_with_both_sizes_and_the_rows_stay() -> None:
    slab = Slab("x", (1 << 40,), np.dtype(np.uint8))
    with pytest.raises(MemoryError, match=r"column 'x' of replay needs .* bytes for 1,000,000 rows"):
        slab.reserve(1_000_000)
    small = Slab("x", (1 << 20,), np.dtype(np.uint8))
    small.reserve(2)
    small.write(np.arange(2), np.ones((2, 1 << 20), np.uint8))
    with pytest.raises(MemoryError):
        small.reserve(1 << 43)
    assert small.capacity == 2 and np.all(read(small, np.arange(2)) == 1)


def test_a_column_that_could_not_be_made_is_not_there() -> None:
    store = RowStore()
    with pytest.raises(MemoryError):
        store.reserve({"x": np.broadcast_to(np.zeros(1, np.uint8), (1 << 20, 1 << 42))})
    assert not store.columns


def test_uses_are_counted_by_occurrence_and_begin_and_end_once() -> None:
    uses = RowUses()
    uses.reserve(10)
    assert sorted(uses.add(np.array([3, 3, 5])).tolist()) == [3, 5]
    assert uses.add(np.array([5, 7])).tolist() == [7] and uses.num_rows == 3
    assert uses.remove(np.array([3, 5])).tolist() == []
    assert sorted(uses.remove(np.array([3, 5, 7])).tolist()) == [3, 5, 7] and uses.num_rows == 0
