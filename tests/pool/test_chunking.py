"""Chunks, and what tasks are expected to take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.pool.chunking import Pace, chunks, default_chunksize


@given(num_items=st.integers(0, 10_000), num_workers=st.integers(1, 600))
def test_the_default_makes_about_four_chunks_for_each_worker(num_items: int, num_workers: int) -> None:
    size = default_chunksize(num_items, num_workers)
    assert size >= 1
    assert -(-num_items // size) <= 4 * num_workers
    assert size == 1 or -(-num_items // (size - 1)) > 4 * num_workers  # no larger than that needs


@given(items=st.lists(st.integers(), max_size=50), size=st.integers(1, 60))
def test_chunks_are_the_items_in_order_and_only_the_last_is_short(items: list[int], size: int) -> None:
    cut = list(chunks(items, size))
    assert [item for chunk in cut for item in chunk] == items
    assert all(len(chunk) == size for chunk in cut[:-1])
    assert all(cut)


def test_chunks_are_cut_lazily_and_an_iterable_that_raises_loses_the_unfinished_one() -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(5):
            read.append(number)
            yield number
        raise OSError("the file ended")

    cut = chunks(numbers(), 2)
    assert next(cut) == (0, 1) and read == [0, 1]
    assert next(cut) == (2, 3)
    with pytest.raises(OSError, match="the file ended"):
        next(cut)


def test_the_pace_follows_what_is_observed_for_each_code_by_itself() -> None:
    pace = Pace()
    assert pace.expected_ns("f") is None
    pace.observe("f", 1000)
    assert pace.expected_ns("f") == 1000 and pace.expected_ns("g") is None
    pace.observe("f", 2000)
    assert pace.expected_ns("f") == 1250
    for _ in range(50):
        pace.observe("f", 5000)
    assert pace.expected_ns("f") == pytest.approx(5000, rel=1e-3)
    pace.forget("f")
    pace.forget("never seen")
    assert pace.expected_ns("f") is None


def test_work_is_worth_recalling_when_there_is_some_or_when_its_worker_is_late() -> None:
    pace = Pace()
    assert pace.worth_recalling(2e6, 0.0)
    assert not pace.worth_recalling(1e4, 0.001)
    assert pace.worth_recalling(0.0, 0.1)
