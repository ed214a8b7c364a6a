"""Saved and loaded replay: nothing that comes after it can tell."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from ropewalk.rl.replay.limiters import MinSize, SampleToInsertRatio
from ropewalk.rl.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, UniformSelector
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.replay.insertions import numbered, table

SELECTORS = [Fifo(), Lifo(), UniformSelector(), Prioritized(0.6), MinHeap(), MaxHeap()]
RATIO = SampleToInsertRatio(1.0, 10, 500.0)


def same_batches(some: Batch, others: Batch) -> None:
    assert some.info.run_ids == others.info.run_ids and some.info.table_size == others.info.table_size
    for name in ("keys", "probability", "priority", "times_sampled", "version", "inserted"):
        np.testing.assert_array_equal(getattr(some.info, name), getattr(others.info, name))
    for name, column in some.columns.items():
        np.testing.assert_array_equal(column, others.columns[name])


def used(sampler, remover) -> ReplayTables:
    """Replay with holes, updated priorities, items of two streams, and rows that are kept for later."""
    settings = table(sampler=sampler, remover=remover, max_size=40, limiter=RATIO, max_times_sampled=9)
    replay, rng = ReplayTables([settings, table("other")]), np.random.default_rng(0)
    for sequence in range(8):
        for run_id in ("0#0", "1#0"):
            replay.insert(numbered(sequence, 5, run_id, priorities=rng.random(5), version=sequence))
        batch = replay.sample("t", 8)
        replay.update_priorities("t", batch.info.keys, rng.random(8))
        replay.delete("t", batch.info.keys[:1])
    replay.insert(Insertion("0#0", 8, {"x": np.arange(40, 44, dtype=np.float32)}, {}, {"x": 41}))
    replay.end_stream("1#0")
    return replay


@pytest.mark.parametrize("sampler", SELECTORS, ids=str)
@pytest.mark.parametrize("remover", SELECTORS, ids=str)
def test_a_loaded_replay_does_exactly_what_the_saved_one_does(sampler, remover) -> None:
    saved = used(sampler, remover)
    state = pickle.loads(pickle.dumps(saved.state_dict()))
    assert all(isinstance(array, np.ndarray) and not array.dtype.hasobject for array in state.values())
    loaded = ReplayTables(saved.tables)
    assert loaded.load_state_dict(state) == ()
    assert loaded.info() == saved.info() and loaded.keys("t").tolist() == saved.keys("t").tolist()
    later = {"t": NewItems({"x": RowsOf("x", np.array([41, 43]))})}
    for replay in (saved, loaded):
        assert replay.insert(Insertion("0#0", 9, {}, later)) and not replay.insert(numbered(3, 5))
        assert not replay.insert(numbered(0, 5, "1#0"))
    for sequence in range(8):
        assert saved.can_sample("t", 999) == loaded.can_sample("t", 999)
        same_batches(saved.sample("t", 8), loaded.sample("t", 8))
        for replay in (saved, loaded):
            replay.insert(numbered(sequence, 5, "2#0", priorities=np.arange(5.0)))
    assert loaded.info() == saved.info()


def test_what_was_saved_does_not_change_with_the_replay() -> None:
    replay = used(UniformSelector(), Fifo())
    state = replay.state_dict()
    before = pickle.dumps(state)
    replay.insert(numbered(0, 40, "3#0"))
    replay.sample("t", 30)
    assert pickle.dumps(state) == before


def test_rows_of_a_snapshot_are_read_while_replay_goes_on() -> None:
    replay = used(UniformSelector(), Fifo())
    expected = pickle.dumps(replay.state_dict())
    with replay.snapshot() as snapshot:
        num_rows = replay._store.columns["x"].num_rows
        pieces: list[np.ndarray] = []
        for first in range(0, snapshot.num_rows["x"], 7):
            pieces.append(snapshot.rows("x", first, first + 7))
            replay.insert(numbered(first // 7, 40, "4#0"))
            replay.sample("t", 8)
        replay.reset("t")
        replay.end_stream("0#0")
        assert replay._store.columns["x"].num_rows == num_rows
        state = snapshot.state_dict()
    snapshot.close()
    with pytest.raises(ValueError, match="rows of column 'x' were asked of a snapshot that is closed"):
        snapshot.rows("x", 0, 1)
    assert pickle.dumps(state | {"rows/x": np.concatenate(pieces)}) == expected
    assert replay._store.num_bytes == 0


def test_only_rows_that_are_needed_are_saved() -> None:
    replay = ReplayTables([table(max_size=3)])
    for sequence in range(25):
        replay.insert(numbered(sequence, 2))
    replay.insert(Insertion("0#0", 25, {"x": np.zeros(2, np.float32)}, {}, {"x": 51}))
    assert sorted(replay.state_dict()["rows/x"].tolist()) == [0, 47, 48, 49]


def test_the_limiter_is_the_new_one_and_the_difference_is_said() -> None:
    saved = used(UniformSelector(), Fifo())
    loaded = ReplayTables([table(max_size=40, limiter=MinSize(7), max_times_sampled=9), table("new")])
    said = loaded.load_state_dict(saved.state_dict())
    assert said == (
        "table 'other' was saved and is not there any more: its items are left out",
        "table 't' was saved with RateLimiter(samples_per_insert=1.0, min_size=10, min_diff=-490.0, max_diff=510.0) "
        "and goes on with RateLimiter(samples_per_insert=1.0, min_size=7, min_diff=-inf, max_diff=inf)",
        "table 'new' was not saved: it starts empty",
    )
    info = loaded.info()["t"]
    assert (info.inserts, info.samples, info.deletes) == (80, 64, 80 - info.size)
    assert loaded.can_sample("t", 10) == 10


def test_a_smaller_table_takes_over_what_its_remover_leaves() -> None:
    saved = used(UniformSelector(), Fifo())
    loaded = ReplayTables([table(max_size=10), table("other")])
    loaded.load_state_dict(saved.state_dict())
    assert loaded.keys("t").tolist() == saved.keys("t").tolist()[-10:]
    assert loaded.info()["t"].num_bytes == 40
    loaded.end_stream("0#0")
    assert loaded._store.columns["x"].num_rows == 10


def test_other_selectors_take_over_the_items() -> None:
    saved = used(UniformSelector(), Fifo())
    loaded = ReplayTables([table(sampler=Lifo(), remover=MinHeap(), max_size=40), table("other")])
    loaded.load_state_dict(saved.state_dict())
    assert loaded.sample("t", 1).info.keys.tolist() == saved.keys("t").tolist()[-1:]


def test_a_lower_limit_of_samples_lets_each_item_be_sampled_once_more() -> None:
    saved = ReplayTables([table(sampler=Fifo())])
    saved.insert(numbered(0, 2))
    saved.sample("t", 5)
    loaded = ReplayTables([table(sampler=Fifo(), max_times_sampled=3)])
    loaded.load_state_dict(saved.state_dict())
    assert loaded.sample("t", 4).columns["x"].tolist() == [0, 1, 1, 1]


def test_a_limiter_that_was_changed_stays_after_loading() -> None:
    replay = used(UniformSelector(), Fifo())
    state = replay.state_dict()
    replay.set_limiter("t", MinSize(30))
    assert "goes on with RateLimiter(samples_per_insert=1.0, min_size=30" in replay.load_state_dict(state)[0]
    assert replay._tables["t"].limiter == MinSize(30)


def test_a_state_that_cannot_be_loaded_leaves_the_replay_as_it_was() -> None:
    replay = used(UniformSelector(), Fifo())
    state = replay.state_dict()
    broken = {name: array for name, array in state.items() if name != "tables/t/items/priorities"}
    before = pickle.dumps(state)
    with pytest.raises(KeyError):
        replay.load_state_dict(broken)
    assert pickle.dumps(replay.state_dict()) == before
