"""Tables of this process, with an inserter and a sampler: nothing waits, and what would have to wait is an error."""

from __future__ import annotations

import pytest

from ropewalk.rl.replay.inserter import Inserter
from ropewalk.rl.replay.sampler import Sampler
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.replay.stand_in import insertion, queue


def test_insertions_are_done_at_once_and_batches_are_drawn_when_they_are_asked_for() -> None:
    tables = ReplayTables([queue(8)])
    inserter, sampler = Inserter(tables), Sampler(tables, "queue", 3)
    for number in range(6):
        inserter.insert(insertion(number))
        assert tables.info()["queue"].inserts == number + 1
        assert inserter.num_waiting <= 1
        if number % 3 == 2:
            assert next(sampler).columns["value"].ravel().tolist() == [1000.0 * (number - back) for back in (2, 1, 0)]
    assert tables.info()["queue"].samples == 6


def test_what_would_have_to_wait_is_an_error_that_says_why() -> None:
    tables = ReplayTables([queue(1)])
    with pytest.raises(
        RuntimeError, match=r"nothing is inserted while this thread waits: the table has 0 of min_size=1"
    ):
        next(Sampler(tables, "queue", 1))
    inserter = Inserter(tables)
    inserter.insert(insertion(0))
    inserter.insert(insertion(1))
    with pytest.raises(
        RuntimeError, match=r"nothing is sampled while this thread waits.*'queue': 1 items were inserted"
    ):
        inserter.flush()


def test_what_had_to_wait_is_done_by_the_next_call_after_a_sample() -> None:
    tables = ReplayTables([queue(1)])
    sampler, inserter = Sampler(tables, "queue", 1), Inserter(tables)
    inserter.insert(insertion(0))
    inserter.insert(insertion(1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has to wait"):
            inserter.flush()
    assert next(sampler).columns["value"].tolist() == [[0.0]]
    inserter.flush()
    assert inserter.num_waiting == 0
    assert next(sampler).columns["value"].tolist() == [[1000.0]]


def test_a_batch_may_consist_of_several_draws() -> None:
    tables = ReplayTables([queue(2)])
    sampler, inserter = Sampler(tables, "queue", 3), Inserter(tables)
    inserter.insert(insertion(0, items=2))
    with pytest.raises(RuntimeError, match="cannot be sampled now"):
        next(sampler)
    inserter.insert(insertion(1, items=2))
    assert next(sampler).columns["value"].ravel().tolist() == [0.0, 1.0, 1000.0]
    inserter.insert(insertion(2, items=2))
    assert next(sampler).columns["value"].ravel().tolist() == [1001.0, 2000.0, 2001.0]
