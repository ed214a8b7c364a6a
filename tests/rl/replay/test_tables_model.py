"""Random calls of `ReplayTables` against plain lists: items, order, contents, counts, bytes, and no row that leaks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, UniformSelector
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.replay.plain_replay import RANKS, PlainItem, PlainStream, PlainTable

SELECTORS = [Fifo(), Lifo(), UniformSelector(), Prioritized(0.6), MinHeap(), MaxHeap()]
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {"frame": ((3,), "float32"), "reward": ((), "float64")}
ROW_BYTES = {"frame": 12, "reward": 8}
STREAMS = ("0#0", "1#0")
PRIORITIES = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])


class ReplayAgainstLists(RuleBasedStateMachine):
    """Two tables over the same rows: "steps" has rows one by one, "runs" has several in a row, of various lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0.0
        self.streams = {run_id: PlainStream() for run_id in STREAMS}
        self.life = 0
        self.ended: list[tuple[str, PlainStream]] = []

    @initialize(data=st.data())
    def make(self, data: st.DataObject) -> None:
        def table(name: str) -> ReplayTable:
            return ReplayTable(
                name,
                sampler=data.draw(st.sampled_from(SELECTORS)),
                remover=data.draw(st.sampled_from(SELECTORS)),
                max_size=data.draw(st.integers(6, 9)),
                limiter=MinSize(1),
                max_times_sampled=data.draw(st.sampled_from([0, 1, 2])),
                max_bytes=data.draw(st.sampled_from([None, 60, 150])),
            )

        settings_of = [table("steps"), table("runs")]
        self.replay = ReplayTables(settings_of)
        self.tables = {each.name: PlainTable(each, ROW_BYTES) for each in settings_of}

    def new_rows(self, num: int) -> dict[str, np.ndarray]:
        rows: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in SHAPES.items():
            self.value += 100
            size = num * int(np.prod(shape))
            rows[name] = (self.value + np.arange(size)).reshape(num, *shape).astype(dtype)
        return rows

    def insertion(self, data: st.DataObject, run_id: str) -> Insertion:
        stream, num = self.streams[run_id], data.draw(st.integers(0, 3))
        rows = self.new_rows(num) if num or not stream.rows else {}
        starts = {name: stream.kept.get(name, 0) for name in SHAPES}
        ends = {name: stream.end(name) + num for name in SHAPES}
        items: dict[str, NewItems] = {}
        if all(starts[name] < ends[name] for name in SHAPES):
            for table in self.tables:
                if data.draw(st.booleans()):
                    items[table] = self.items(data, table, starts, ends)
        keep = {
            name: data.draw(st.integers(starts[name], ends[name])) for name in SHAPES if data.draw(st.integers(0, 3))
        }
        return Insertion(run_id, stream.sequence, rows, items, keep, data.draw(st.integers(0, 5)), num)

    def items(self, data: st.DataObject, table: str, starts: dict[str, int], ends: dict[str, int]) -> NewItems:
        num = data.draw(st.integers(1, 4))

        def number(column: str) -> int:
            return data.draw(st.integers(starts[column], ends[column] - 1))

        if table == "steps":
            columns = {
                name: RowsOf(stored, np.array([number(stored) for _ in range(num)]))
                for name, stored in (("observation", "frame"), ("next", "frame"), ("reward", "reward"))
            }
        else:
            length = data.draw(st.integers(1, 3))
            frames = np.array([[number("frame") for _ in range(length)] for _ in range(num)])
            for row in frames[: data.draw(st.integers(0, 1))]:
                row[1:] = -1
            columns = {"frames": RowsOf("frame", frames), "last": RowsOf("reward", np.array([number("reward")] * num))}
        given = data.draw(st.none() | st.lists(PRIORITIES, min_size=num, max_size=num).map(np.array))
        return NewItems(columns, given)

    @rule(data=st.data(), run=st.sampled_from([0, 1]))
    def insert(self, data: st.DataObject, run: int) -> None:
        run_id = list(self.streams)[run]
        insertion = self.insertion(data, run_id)
        assert self.replay.can_insert(insertion)
        assert self.replay.insert(insertion) is True
        stream = self.streams[run_id]
        for name in SHAPES:
            stream.rows.setdefault(name, []).extend(insertion.rows.get(name, []))
            stream.kept[name] = insertion.keep.get(name, stream.end(name))
        stream.sequence += 1
        for name in insertion.items:
            self.tables[name].insert(insertion)
            self.remove_surplus(self.tables[name])

    def remove_surplus(self, table: PlainTable) -> None:
        """Remove items as the remover does; where it draws, those that the real table has not any more."""
        if type(table.settings.remover) in RANKS:
            while table.surplus():
                table.remove(table.best(table.settings.remover))
            return
        there = {int(number) for number in self.numbers(table)}
        for item in [item for item in table.items if item.number not in there]:
            assert table.surplus() or table.settings.max_bytes is not None
            table.remove(item)
        assert not table.surplus()

    def numbers(self, table: PlainTable) -> np.ndarray:
        return self.replay.keys(table.settings.name) >> 28

    @rule(data=st.data(), name=st.sampled_from(["steps", "runs"]))
    def sample(self, data: st.DataObject, name: str) -> None:
        table = self.tables[name]
        wanted = data.draw(st.integers(1, 6))
        num = self.replay.can_sample(name, wanted)
        most = table.settings.max_times_sampled
        rests = sorted(most - item.times_sampled for item in table.items)
        assert num == min(wanted, sum(rests) if most else wanted if table.items else 0)
        if num == 0:
            with pytest.raises(ValueError, match=f"0 of {wanted} items of table '{name}' may be sampled now"):
                self.replay.sample(name, wanted)
            return
        before = list(table.items)
        batch = self.replay.sample(name, num)
        assert len(batch) == num and batch.info.table_size == len(before)
        sampled = [self.check_sampled(table, before, batch, i) for i in range(num)]
        for i, item in enumerate(sampled):
            self.check_contents(item, batch, i)
            assert batch.info.times_sampled[i] == item.times_sampled

    def check_sampled(self, table: PlainTable, before: list[PlainItem], batch: Batch, i: int) -> PlainItem:
        number = int(batch.info.inserted[i])
        item = next(item for item in table.items if item.number == number)
        if type(table.settings.sampler) in RANKS:
            assert item is table.best(table.settings.sampler) and batch.info.probability[i] == 1
        elif not table.settings.max_times_sampled:
            exponents = {"UniformSelector": None, "Prioritized": 0.6}
            exponent = exponents[type(table.settings.sampler).__name__]
            weights = [1.0 if exponent is None else each.priority**exponent for each in table.items]
            weight = weights[table.items.index(item)] / sum(weights) if sum(weights) else 1 / len(weights)
            assert batch.info.probability[i] == pytest.approx(weight, rel=1e-12)
        item.times_sampled += 1
        table.samples += 1
        if item.times_sampled == table.settings.max_times_sampled:
            table.remove(item)
        return item

    def check_contents(self, item: PlainItem, batch: Batch, i: int) -> None:
        info = batch.info
        facts = info.priority[i], info.version[i], info.run_ids[i]
        assert facts == (item.priority, item.version, item.run_id)
        assert batch.columns.keys() == item.rows.keys()
        for name, rows in item.rows.items():
            values = [0.0 if row is None else self.row(row) for row in rows]
            found = batch.columns[name][i]
            if item.single[name]:
                np.testing.assert_array_equal(found, values[0])
                continue
            for j in range(len(found)):
                np.testing.assert_array_equal(found[j], values[j] if j < len(values) else np.zeros_like(found[j]))

    def row(self, name: tuple[str, str, int]) -> np.ndarray:
        run_id, column, number = name
        return self.every_row[run_id][column][number]

    @property
    def every_row(self) -> dict[str, dict[str, list[np.ndarray]]]:
        return {run_id: stream.rows for run_id, stream in [*self.ended, *self.streams.items()]}

    @rule(data=st.data(), name=st.sampled_from(["steps", "runs"]))
    def update(self, data: st.DataObject, name: str) -> None:
        table = self.tables[name]
        keys = self.replay.keys(name)
        picked = data.draw(st.lists(st.integers(0, max(len(keys), 1) - 1), max_size=5)) if len(keys) else []
        priorities = data.draw(st.lists(PRIORITIES, min_size=len(picked), max_size=len(picked)))
        gone = [-1, 1 << 40, int(keys[0]) + (1 << 28) if len(keys) else 77]
        some = np.array([*keys[picked].tolist(), *gone], np.int64)
        changed = self.replay.update_priorities(name, some, [*priorities, 0.1, 0.2, 0.3])
        assert changed == len(set(picked))
        ordered = sorted(table.items, key=lambda item: item.number)
        for place, priority in zip(picked, priorities, strict=True):
            table.update(ordered[place], priority)
        table.largest = max([table.largest, *priorities])

    @rule(data=st.data(), name=st.sampled_from(["steps", "runs"]))
    def delete(self, data: st.DataObject, name: str) -> None:
        table, keys = self.tables[name], self.replay.keys(name)
        picked = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=3)) if len(keys) else []
        assert self.replay.delete(name, [*keys[picked].tolist(), -5, 1 << 50]) == len(set(picked))
        ordered = sorted(table.items, key=lambda item: item.number)
        for place in set(picked):
            table.remove(ordered[place])

    @rule(name=st.sampled_from(["steps", "runs"]))
    def reset(self, name: str) -> None:
        self.replay.reset(name)
        self.tables[name] = PlainTable(self.tables[name].settings, ROW_BYTES, number=self.tables[name].number)

    @rule(run=st.sampled_from([0, 1]))
    def end_stream(self, run: int) -> None:
        run_id = list(self.streams)[run]
        self.replay.end_stream(run_id)
        self.life += 1
        self.ended.append((run_id, self.streams[run_id]))
        lives = {f"{run}#{self.life}" if i == run else name: of for i, (name, of) in enumerate(self.streams.items())}
        self.streams = {name: PlainStream() if name.endswith(f"#{self.life}") else of for name, of in lives.items()}

    @rule(data=st.data(), run=st.sampled_from([0, 1]))
    def insert_again(self, data: st.DataObject, run: int) -> None:
        run_id = list(self.streams)[run]
        if self.streams[run_id].sequence:
            again = Insertion(run_id, data.draw(st.integers(0, self.streams[run_id].sequence - 1)), {}, {})
            assert self.replay.insert(again) is False and self.replay.can_insert(again)

    @rule(
        data=st.data(), run=st.sampled_from([0, 1]), what=st.sampled_from(["priority", "row", "dtype", "table", "gap"])
    )
    def insert_what_does_not_fit(self, data: st.DataObject, run: int, what: str) -> None:
        run_id = list(self.streams)[run]
        good = self.insertion(data, run_id)
        bad: Any = {name: NewItems(of.columns, of.priorities) for name, of in good.items.items()}
        rows, sequence = self.new_rows(2), good.sequence
        end = self.streams[run_id].end("frame") + 2
        frames = RowsOf("frame", np.array([[end - 1]]))
        last = RowsOf("reward", np.array([self.streams[run_id].end("reward")]))
        match what:
            case "priority":
                bad["runs"] = NewItems({"frames": frames, "last": last}, np.array([np.nan]))
            case "row":
                bad["runs"] = NewItems({"frames": RowsOf("frame", np.array([[end]])), "last": last})
            case "dtype":
                rows["frame"] = rows["frame"].astype(np.float64)
                if not self.replay._store.columns:
                    return
            case "table":
                bad["run"] = NewItems({"frames": frames, "last": last})
            case _:
                sequence += 1
        before = pickle.dumps(self.replay.state_dict())
        with pytest.raises(ValueError):
            self.replay.insert(Insertion(run_id, sequence, rows, bad))
        assert pickle.dumps(self.replay.state_dict()) == before

    @rule()
    def save_and_load(self) -> None:
        state = pickle.loads(pickle.dumps(self.replay.state_dict()))
        self.replay = ReplayTables([table.settings for table in self.tables.values()])
        assert self.replay.load_state_dict(state) == ()

    @invariant()
    def counts_are_equal(self) -> None:
        for name, table in self.tables.items():
            info = self.replay.info()[name]
            assert (info.size, info.inserts, info.samples, info.deletes) == (
                len(table.items),
                table.inserts,
                table.samples,
                table.deletes,
            )
            assert self.numbers(table).tolist() == sorted(item.number for item in table.items)
            assert info.num_bytes == table.num_bytes()

    @invariant()
    def only_rows_that_are_needed_are_kept(self) -> None:
        needed: set[tuple[str, str, int]] = set()
        for table in self.tables.values():
            needed |= set().union(*(item.row_names() for item in table.items))
        for run_id, stream in self.streams.items():
            for name in stream.rows:
                needed |= {(run_id, name, number) for number in range(stream.kept[name], stream.end(name))}
        for name, column in self.replay._store.columns.items():
            assert column.num_rows == len([row for row in needed if row[1] == name])

    def teardown(self) -> None:
        if not hasattr(self, "replay"):
            return
        for name in self.tables:
            self.replay.delete(name, self.replay.keys(name))
        for run_id in self.streams:
            self.replay.end_stream(run_id)
        assert self.replay._store.num_bytes == 0
        assert all(column.num_rows == 0 for column in self.replay._store.columns.values())
        assert all(info.num_bytes == 0 for info in self.replay.info().values())


ReplayAgainstLists.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestReplayAgainstLists = ReplayAgainstLists.TestCase


@pytest.mark.soak
class TestMoreReplays(ReplayAgainstLists.TestCase):
    settings = settings(max_examples=1_000, stateful_step_count=40, deadline=None)
