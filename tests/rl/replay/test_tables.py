"""`ReplayTables`: insertions, samples, limiters and words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from ropewalk.rl.replay.limiters import MinSize, QueueLimiter, SampleToInsertRatio
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, UniformSelector
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.replay.insertions import numbered, table

SELECTORS = [Fifo(), Lifo(), UniformSelector(), Prioritized(0.6), MinHeap(), MaxHeap()]


def test_frame_stacks_and_their_successors_share_frames_which_takes_an_eighth_of_the_memory() -> None:
    """Each transition of DQN has 4 + 4 frames of 84 x 84, and each frame is stored once."""
    replay = ReplayTables([table(max_size=10_000)])
    rng, row = np.random.default_rng(0), 0
    frames = rng.integers(0, 256, (2003 + 1, 84, 84), np.uint8)
    for sequence in range(20):
        new = frames[row : row + (104 if sequence == 0 else 100)]
        first = np.arange(sequence * 100, (sequence + 1) * 100)
        stacks = first[:, None] + np.arange(4)
        columns = {"observation": RowsOf("frame", stacks), "next_observation": RowsOf("frame", stacks + 1)}
        row += len(new)
        kept = {"frame": (sequence + 1) * 100}
        replay.insert(Insertion("0#0", sequence, {"frame": new}, {"t": NewItems(columns)}, kept))
    info = replay.info()["t"]
    unshared = 2000 * 8 * 84 * 84
    assert info.size == 2000 and info.num_bytes == 2004 * 84 * 84
    assert unshared / info.num_bytes > 7.98
    batch = replay.sample("t", 32)
    for name, offset in (("observation", 0), ("next_observation", 1)):
        assert batch.columns[name].shape == (32, 4, 84, 84)
        for i, number in enumerate(batch.info.inserted.tolist()):
            np.testing.assert_array_equal(batch.columns[name][i], frames[number + offset : number + offset + 4])


def test_a_repeated_insertion_changes_nothing_and_a_gap_is_an_error() -> None:
    replay = ReplayTables([table()])
    assert replay.insert(numbered(0)) and replay.insert(numbered(1))
    assert replay.insert(numbered(0)) is False and replay.insert(numbered(1)) is False
    assert replay.info()["t"].inserts == 8
    with pytest.raises(ValueError, match="insertion 3 of stream '0#0' came where insertion 2 is expected"):
        replay.insert(numbered(3))
    with pytest.raises(ValueError, match="insertion 1 of stream 'new' came where insertion 0 is expected"):
        replay.insert(numbered(1, run_id="new"))
    assert replay.insert(numbered(2))


def test_an_ended_stream_takes_no_more_insertions_and_keeps_its_items() -> None:
    replay = ReplayTables([table()])
    replay.insert(numbered(0))
    replay.end_stream("0#0")
    replay.end_stream("0#0")
    replay.end_stream("never there")
    assert replay.insert(numbered(0)) is False
    with pytest.raises(ValueError, match="insertion 1 of stream '0#0' came after the stream had been ended with 1"):
        replay.insert(numbered(1))
    assert sorted(set(replay.sample("t", 100).columns["x"].tolist())) == [0, 1, 2, 3]


def test_rows_are_kept_as_long_as_the_stream_says_and_no_longer() -> None:
    replay = ReplayTables([table()])
    rows = {"x": np.arange(6, dtype=np.float32)}
    replay.insert(Insertion("0#0", 0, rows, {}, {"x": 4}))
    assert replay._store.columns["x"].num_rows == 2
    late = {"t": NewItems({"x": RowsOf("x", np.array([4, 5]))})}
    early = {"t": NewItems({"x": RowsOf("x", np.array([3]))})}
    with pytest.raises(ValueError, match=r"name row 3 of column 'x', and rows 4 to 5 are there"):
        replay.insert(Insertion("0#0", 1, {}, early))
    with pytest.raises(ValueError, match=r"name row 6 of column 'x', and rows 4 to 5 are there"):
        replay.insert(Insertion("0#0", 1, {}, {"t": NewItems({"x": RowsOf("x", np.array([5, 6]))})}))
    replay.insert(Insertion("0#0", 1, {}, late, {"x": 5}))
    assert sorted(set(replay.sample("t", 50).columns["x"].tolist())) == [4, 5]
    replay.reset("t")
    assert replay._store.columns["x"].num_rows == 1


def test_a_stream_cannot_keep_rows_that_are_gone_nor_such_that_are_not_sent_yet() -> None:
    replay = ReplayTables([table()])
    replay.insert(Insertion("0#0", 0, {"x": np.arange(6, dtype=np.float32)}, {}, {"x": 4}))
    replay.insert(Insertion("0#0", 1, {}, {}, {"x": 1}))
    assert replay._store.columns["x"].num_rows == 2
    replay.insert(Insertion("0#0", 2, {}, {}, {"x": 9}))
    assert replay._store.columns["x"].num_rows == 0
    items = {"t": NewItems({"x": RowsOf("x", np.array([6]))})}
    replay.insert(Insertion("0#0", 3, {"x": np.array([7], np.float32)}, items))
    assert replay.sample("t", 1).columns["x"].tolist() == [7]


def test_rows_that_no_item_has_named_are_freed_at_once_unless_they_are_kept() -> None:
    replay = ReplayTables([table()])
    replay.insert(Insertion("0#0", 0, {"x": np.zeros(8)}, {}))
    assert replay._store.num_bytes == 0


def test_new_items_have_the_largest_priority_so_far_or_1() -> None:
    replay = ReplayTables([table(sampler=Prioritized(1.0), remover=Fifo(), max_size=4)])
    replay.insert(numbered(0, 2))
    assert replay.sample("t", 2).info.priority.tolist() == [1.0, 1.0]
    replay.update_priorities("t", replay.keys("t"), [0.5, 7.0])
    replay.insert(numbered(1, 2))
    assert dict(zip(*replay_priorities(replay), strict=True)) == {0: 0.5, 1: 7.0, 2: 7.0, 3: 7.0}
    replay.reset("t")
    replay.insert(numbered(2, 2, priorities=np.zeros(2)))
    replay.insert(numbered(3, 2))
    assert set(replay.sample("t", 40).columns["x"].tolist()) == {6, 7}


def test_priorities_of_float32_are_powers_of_float64() -> None:
    replay = ReplayTables([table(sampler=Prioritized(0.6))])
    priorities = np.array([0.1, 0.7], np.float32)
    replay.insert(numbered(0, 2, priorities=priorities))
    info = replay.sample("t", 20).info
    powers = priorities.astype(np.float64) ** 0.6
    np.testing.assert_allclose(info.probability, powers[info.inserted] / powers.sum(), rtol=1e-14)


def replay_priorities(replay: ReplayTables) -> tuple[list[int], list[float]]:
    info = replay.sample("t", 400).info
    return info.inserted.tolist(), info.priority.tolist()


def test_probabilities_and_importance_weights_are_those_of_the_paper() -> None:
    """Against float64 formulas of Schaul 2016 without trees: P = p^alpha / sum, w = (N P)^-beta / max w."""
    alpha, beta, num = 0.6, 0.4, 5000
    replay = ReplayTables([table(sampler=Prioritized(alpha), max_size=20_000)])
    priorities = np.random.default_rng(0).exponential(size=num) + 1e-6
    replay.insert(numbered(0, num, priorities=priorities))
    info = replay.sample("t", 256).info
    expected = priorities**alpha / np.sum(priorities**alpha)
    np.testing.assert_allclose(info.probability, expected[info.inserted], rtol=1e-12)
    weights = (info.table_size * info.probability) ** -beta
    np.testing.assert_allclose(weights / weights.max(), weights_of(priorities, info.inserted, alpha, beta), rtol=1e-10)


def weights_of(priorities: np.ndarray, drawn: np.ndarray, alpha: float, beta: float) -> list[float]:
    total = sum(float(priority) ** alpha for priority in priorities)
    weights = [(len(priorities) * float(priorities[i]) ** alpha / total) ** -beta for i in drawn.tolist()]
    return [weight / max(weights) for weight in weights]


def test_every_fact_of_a_sampled_item_is_reported() -> None:
    replay = ReplayTables([table(sampler=Fifo(), max_times_sampled=2)])
    replay.insert(numbered(0, 2, version=5))
    replay.insert(numbered(0, 2, "1#3", version=6, priorities=np.array([3.0, 4.0])))
    info = replay.sample("t", 5).info
    assert info.inserted.tolist() == [0, 0, 1, 1, 2]
    assert info.times_sampled.tolist() == [2, 2, 2, 2, 1]
    assert info.version.tolist() == [5, 5, 5, 5, 6] and info.run_ids == ("0#0",) * 4 + ("1#3",)
    assert info.priority.tolist() == [1, 1, 1, 1, 3] and info.table_size == 4
    assert info.keys[0] == info.keys[1] and replay.keys("t").tolist()[0] == info.keys[4]
    assert {array.dtype for array in (info.keys, info.times_sampled, info.version, info.inserted)} == {
        np.dtype("int64")
    }


@pytest.mark.parametrize("sampler", SELECTORS, ids=str)
@pytest.mark.parametrize("remover", SELECTORS, ids=str)
def test_any_two_selectors_serve_one_table(sampler, remover) -> None:
    def run() -> tuple[list[float], list[int]]:
        replay = ReplayTables([table(sampler=sampler, remover=remover, max_size=20, seed=3)])
        rng, drawn = np.random.default_rng(0), []
        for sequence in range(10):
            replay.insert(numbered(sequence, 7, priorities=rng.random(7)))
            batch = replay.sample("t", 5)
            drawn += batch.columns["x"].tolist()
            assert batch.columns["x"].tolist() == batch.info.inserted.tolist()
            replay.update_priorities("t", batch.info.keys, rng.random(5))
        info = replay.info()["t"]
        assert (info.size, info.deletes, info.num_bytes) == (20, 50, 80)
        return drawn, replay.keys("t").tolist()

    assert run() == run()


def test_the_newcomer_may_be_the_one_that_is_removed() -> None:
    replay = ReplayTables([table(remover=MinHeap(), max_size=3)])
    replay.insert(numbered(0, 3, priorities=np.array([2.0, 3.0, 4.0])))
    replay.insert(numbered(1, 3, priorities=np.array([1.0, 5.0, 0.5])))
    assert (replay.keys("t") >> 28).tolist() == [1, 2, 4]


def test_a_table_of_limited_bytes_removes_items_until_their_rows_fit_but_keeps_one() -> None:
    replay = ReplayTables([table(max_bytes=40)])
    replay.insert(numbered(0, 30))
    assert replay.info()["t"].num_bytes == 40 and (replay.keys("t") >> 28).tolist() == list(range(20, 30))
    wide = np.zeros((1, 25), np.int64)
    replay = ReplayTables([table(max_bytes=40)])
    replay.insert(Insertion("0#0", 0, {"x": np.zeros((1, 100))}, {"t": NewItems({"x": RowsOf("x", wide)})}))
    assert replay.info()["t"].size == 1 and replay.info()["t"].num_bytes == 800


def test_priorities_that_are_no_priorities_change_nothing() -> None:
    replay = ReplayTables([table(sampler=Prioritized(1.0))])
    replay.insert(numbered(0, 2))
    keys = replay.keys("t")
    for wrong in (np.nan, -1.0, np.inf):
        with pytest.raises(ValueError, match=r"entry 1 is .*, and 1 of 2 are wrong"):
            replay.update_priorities("t", keys, [9.0, wrong])
    with pytest.raises(ValueError, match=r"keys have shape \(2,\) and priorities \(1,\)"):
        replay.update_priorities("t", keys, [9.0])
    assert replay.sample("t", 2).info.priority.tolist() == [1.0, 1.0]


def test_updates_of_items_that_left_are_ignored_even_where_another_item_took_their_place() -> None:
    replay = ReplayTables([table(max_size=2, sampler=Prioritized(1.0))])
    replay.insert(numbered(0, 2))
    gone = replay.keys("t")
    replay.insert(numbered(1, 2))
    assert replay.update_priorities("t", gone, [50.0, 60.0]) == 0
    assert replay.delete("t", gone) == 0
    assert replay.sample("t", 2).info.priority.tolist() == [1.0, 1.0]
    assert replay.update_priorities("t", [], []) == 0


def test_updates_of_items_that_a_reset_has_deleted_are_ignored() -> None:
    """Items were numbered anew after it: a learner that was late changed the priority of a new one."""
    replay = ReplayTables([table(sampler=Prioritized(1.0))])
    replay.insert(numbered(0, 2))
    gone = replay.keys("t")
    replay.reset("t")
    replay.insert(numbered(1, 2))
    assert replay.update_priorities("t", gone, [50.0, 60.0]) == 0
    assert replay.delete("t", gone) == 0
    again = ReplayTables([table(sampler=Prioritized(1.0))])
    again.load_state_dict(replay.state_dict())
    replay.insert(numbered(2, 2))
    again.insert(numbered(2, 2))
    assert again.keys("t").tolist() == replay.keys("t").tolist()


def test_a_queue_hands_each_item_out_once_in_order_and_stops_inserting_when_it_is_full() -> None:
    replay = ReplayTables([ReplayTable.queue("t", 3)])
    assert replay.can_sample("t", 1) == 0
    for sequence in range(3):
        assert replay.can_insert(numbered(sequence, 1))
        replay.insert(numbered(sequence, 1))
    assert not replay.can_insert(numbered(3, 1)) and replay.can_insert(numbered(2, 1))
    assert replay.can_sample("t", 5) == 3
    assert replay.sample("t", 2).columns["x"].tolist() == [0, 1]
    assert replay.can_insert(numbered(3, 1)) and replay.info()["t"].size == 1
    with pytest.raises(ValueError, match=r"1 of 2 items of table 't' may be sampled now: .* -1 samples owed"):
        replay.sample("t", 2)
    assert replay.sample("t", 1).columns["x"].tolist() == [2] and replay._store.num_bytes == 0


def test_a_stack_hands_out_the_newest_item_first() -> None:
    replay = ReplayTables([ReplayTable.stack("t", 3)])
    replay.insert(numbered(0, 3))
    assert replay.sample("t", 2).columns["x"].tolist() == [2, 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 12), st.sampled_from(SELECTORS))
def test_as_many_items_as_may_be_sampled_can_be_sampled_one_by_one(most: int, min_size: int, num: int, sampler) -> None:
    replay = ReplayTables([table(sampler=sampler, limiter=MinSize(min_size), max_times_sampled=most)])
    replay.insert(numbered(0, num))
    allowed = replay.can_sample("t", 100)
    assert (allowed > 0) is (num >= min_size)
    for _ in range(allowed):
        replay.sample("t", 1)
    # At most what the order of leaving adds: no selector can sample more than all items but min_size - 1 of them allow.
    assert allowed <= most * num


def test_a_batch_may_be_written_to_memory_that_is_there() -> None:
    replay = ReplayTables([table(sampler=Fifo(), max_times_sampled=1)])
    replay.insert(numbered(0, 8))
    memory = np.zeros(5, np.float32)

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        assert (shape, dtype) == ((3,), np.float32)
        return memory[:3]

    batch = replay.sample("t", 3, allocate)
    assert np.shares_memory(batch.columns["x"], memory) and memory.tolist() == [0, 1, 2, 0, 0]
    assert replay.sample("t", 5).columns["x"].tolist() == [3, 4, 5, 6, 7]


def test_a_limiter_may_be_changed_while_items_are_there() -> None:
    replay = ReplayTables([table(limiter=SampleToInsertRatio(1.0, 2, 2.0))])
    replay.insert(numbered(0, 4))
    assert not replay.can_insert(numbered(1, 4)) and replay.can_sample("t", 9) == 4
    replay.set_limiter("t", SampleToInsertRatio(4.0, 2, 4.0))
    assert replay.can_sample("t", 99) == 12
    replay.set_limiter("t", MinSize(5))
    assert replay.can_insert(numbered(1, 4)) and replay.can_sample("t", 9) == 0
    with pytest.raises(ValueError, match="never has"):
        replay.set_limiter("t", MinSize(500))
    with pytest.raises(ValueError, match="needs max_times_sampled=1"):
        replay.set_limiter("t", QueueLimiter(2))


def test_info_says_in_words_why_either_side_waits() -> None:
    replay = ReplayTables([table(limiter=SampleToInsertRatio(1.0, 2, (0.0, 3.0)))])
    info = replay.info()["t"]
    assert info.sample_waits_for == "the table has 0 of min_size=2 items" and info.insert_waits_for == ""
    replay.insert(numbered(0, 3))
    info = replay.info()["t"]
    assert info.sample_waits_for == "" and info.max_size == 100 and info.samples == 0
    assert info.insert_waits_for == (
        "3 items were inserted and 0 sampled; 1 item more would make 4 samples owed, and at most max_diff=3 may be"
    )


def test_inserters_and_samplers_that_wait_for_each_other_are_told_the_counts() -> None:
    replay = ReplayTables([table("a", limiter=SampleToInsertRatio(1.0, 2, 2.0)), table("b", limiter=MinSize(9))])
    for sequence in range(3):
        replay.insert(numbered(sequence, 2, table="a"))
    assert replay.deadlock([numbered(3, 2, table="a")], {"a": 1}) == ""
    words = replay.deadlock([numbered(3, 2, table="a")], {"b": 1})
    assert "inserting waits for table 'a': 6 items" in words and "table 'b': the table has 0 of min_size=9" in words


def test_two_tables_name_the_same_rows_and_each_counts_them() -> None:
    replay = ReplayTables([table("a"), table("b")])
    rows = np.arange(4)
    items = {name: NewItems({"x": RowsOf("x", rows)}) for name in ("a", "b")}
    replay.insert(Insertion("0#0", 0, {"x": np.arange(4.0)}, items))
    assert replay._store.num_bytes == 32 and {info.num_bytes for info in replay.info().values()} == {32}
    replay.delete("a", replay.keys("a"))
    assert replay._store.num_bytes == 32 and replay.info()["a"].num_bytes == 0
    replay.reset("b")
    assert replay._store.num_bytes == 0


def test_items_of_different_lengths_end_in_zeros_up_to_the_longest_of_the_batch() -> None:
    replay = ReplayTables([table(sampler=Fifo(), max_times_sampled=1)])

    def episode(*rows: list[int]) -> dict[str, NewItems]:
        return {"t": NewItems({"x": RowsOf("x", np.array(rows))})}

    replay.insert(Insertion("0#0", 0, {"x": np.arange(1.0, 7)}, episode([0, 1, -1], [2, 3, 4]), {"x": 0}))
    replay.insert(Insertion("0#0", 1, {}, episode([5]), {"x": 0}))
    replay.insert(Insertion("0#0", 2, {}, episode([1, 2, 3, 4, 5]), {"x": 0}))
    assert replay.sample("t", 1).columns["x"].tolist() == [[1, 2]]
    assert replay.sample("t", 2).columns["x"].tolist() == [[3, 4, 5], [6, 0, 0]]
    assert replay.sample("t", 1).columns["x"].tolist() == [[2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"items": {"s": NewItems({"x": RowsOf("x", np.array([0]))})}},
            r"no table 's'",
        ),
        ({"items": {"t": NewItems({"y": RowsOf("x", np.array([0]))})}}, r"columns \['y'\]; the first ones had \['x'\]"),
        (
            {"items": {"t": NewItems({"x": RowsOf("z", np.array([0]))})}},
            "0 axes of rows of 'z' in column 'x'; .* of 'x'",
        ),
        (
            {"items": {"t": NewItems({"x": RowsOf("x", np.array([[4]]))})}},
            "1 axes of rows of 'x' in column 'x'; .* had 0",
        ),
        ({"items": {"t": NewItems({"x": RowsOf("x", np.array([4.0]))})}}, "dtype float64; it has to be integers"),
        ({"items": {"t": NewItems({"x": RowsOf("x", np.array([-1]))})}}, "name row -1 of column 'x'"),
        (
            {"items": {"t": NewItems({"x": RowsOf("x", np.array([4])), "y": RowsOf("x", np.array([4, 5]))})}},
            "columns of different lengths: {'x': 1, 'y': 2}",
        ),
        (
            {"items": {"t": NewItems({"x": RowsOf("x", np.array([4]))}, np.ones(2))}},
            r"priorities for table 't' have shape \(2,\); there are 1 items",
        ),
        ({"items": {"t": NewItems({"x": RowsOf("x", np.full(101, 4))})}}, "101 items .* max_size=100"),
        (
            {"rows": {"x": np.zeros(4)}},
            r"shape \(\) and dtype float64; the first ones had shape \(\) and dtype float32",
        ),
        (
            {"rows": {"x": np.zeros((4, 2), np.float32)}},
            r"shape \(2,\) and dtype float32; the first ones had shape \(\)",
        ),
        ({"rows": {"x": np.array([None] * 4)}}, "dtype object; they need a first axis of rows, and numbers"),
        ({"rows": {"x": np.float32(4).reshape(())}}, r"shape \(\) and dtype float32; they need a first axis"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides_named(change: dict, words: str) -> None:
    replay = ReplayTables([table()])
    replay.insert(numbered(0))
    rows = change.get("rows", {"x": np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match=words):
        replay.insert(Insertion("0#0", 1, rows, change.get("items", {})))
    assert replay.info()["t"].inserts == 4 and replay._store.columns["x"].num_rows == 4
    assert replay.insert(numbered(1))


def test_rows_of_a_column_that_the_stream_does_not_have_are_not_there() -> None:
    replay = ReplayTables([table()])
    for rows in ([0], [[-1]]):
        items = {"t": NewItems({"x": RowsOf("z", np.array(rows))})}
        with pytest.raises(ValueError, match=r"column 'z', which the stream does not have; it sent \['x'\]"):
            replay.insert(Insertion("0#0", 0, {"x": np.zeros(1)}, items))


def test_an_insertion_for_which_there_is_no_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = ReplayTables([table()])
    replay.insert(numbered(0))

    def no_memory(store: RowStore, rows: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(RowStore, "reserve", no_memory)
        with pytest.raises(MemoryError):
            replay.insert(numbered(1))
    assert replay.info()["t"].inserts == 4 and replay.insert(numbered(1))
    assert replay.sample("t", 8).columns["x"].shape == (8,)


def test_items_are_checked_against_the_signature_of_their_table() -> None:
    replay = ReplayTables([table(signature={"x": ArraySpec((), "float64")})])
    with pytest.raises(
        ValueError, match=r"column 'x' for table 't' .* dtype float32; its signature says \(\) and float64"
    ):
        replay.insert(numbered(0))


def test_unknown_tables_and_empty_batches_are_refused() -> None:
    replay = ReplayTables([table("steps"), table("runs")])
    with pytest.raises(ValueError, match=r"no table 'step'; did you mean 'steps'\? There are runs, steps"):
        replay.sample("step", 1)
    with pytest.raises(ValueError, match="a batch of 0 items"):
        replay.sample("steps", 0)
    with pytest.raises(ValueError, match=r"different names, and got \['a', 'a'\]"):
        ReplayTables([table("a"), table("a")])
    with pytest.raises(ValueError, match="different names"):
        ReplayTables([])


def test_run_ids_of_items_that_left_are_forgotten() -> None:
    replay = ReplayTables([table(max_size=2)])
    for life in range(1000):
        replay.insert(numbered(0, 1, f"0#{life}"))
    assert len(replay._tables["t"]._facts._run_ids) <= 128
    assert set(replay.sample("t", 20).info.run_ids) == {"0#998", "0#999"}
