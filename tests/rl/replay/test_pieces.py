"""Batches that are cut and joined have the same items, with the facts of each."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.replay.pieces import joined, part_of
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.replay.stand_in import insertion, queue


def test_parts_that_are_joined_are_the_batch() -> None:
    tables = ReplayTables([queue(8)])
    tables.insert(insertion(0, items=5))
    batch = tables.sample("queue", 5)
    again = joined([part_of(batch, 0, 2), part_of(batch, 2, 3), part_of(batch, 3, 5)])
    np.testing.assert_array_equal(again.columns["value"], batch.columns["value"])
    for name in ("keys", "probability", "priority", "times_sampled", "version", "inserted"):
        np.testing.assert_array_equal(getattr(again.info, name), getattr(batch.info, name))
        assert getattr(again.info, name).dtype == getattr(batch.info, name).dtype
    assert again.info.run_ids == batch.info.run_ids and again.info.table_size == batch.info.table_size


def test_one_batch_is_not_copied() -> None:
    tables = ReplayTables([queue(8)])
    tables.insert(insertion(0, items=2))
    batch = tables.sample("queue", 2)
    assert joined([batch]) is batch
    assert np.shares_memory(part_of(batch, 0, 1).columns["value"], batch.columns["value"])
