from __future__ import annotations

import numpy as np

from ropewalk.rl.replay.batch import joined
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.agents.experience import DISCRETE, random_batch
from tests.rl.replay.stand_in import insertion, queue


def test_some_items_of_a_batch_keep_their_facts() -> None:
    batch = random_batch(DISCRETE, 0, blocks=3, versions=(4, 5, 6))
    some = batch.take(np.array([2, 0]))
    assert len(some) == 2
    assert all((some.columns[name] == array[[2, 0]]).all() for name, array in batch.columns.items())
    assert (some.info.keys.tolist(), some.info.version.tolist()) == ([102, 100], [6, 4])
    assert (some.info.run_ids, some.info.table_size) == (("2#0", "0#0"), 3)


def test_parts_that_are_joined_are_the_batch() -> None:
    tables = ReplayTables([queue(8)])
    tables.insert(insertion(0, items=5))
    batch = tables.sample("queue", 5)
    again = joined([batch.take(slice(2)), batch.take(slice(2, 3)), batch.take(slice(3, None))])
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
    assert np.shares_memory(batch.take(slice(1)).columns["value"], batch.columns["value"])
