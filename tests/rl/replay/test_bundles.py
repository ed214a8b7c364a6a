"""Columns that travel and are stored as one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from ropewalk.rl.adders.unroll import UnrollAdder
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array, ArraySpec
from ropewalk.rl.replay.bundles import bundled, can_be_bundled, unbundled
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf, separated
from ropewalk.rl.replay.lent_batches import BatchLender
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.adders.experience import experience
from tests.rl.replay.stand_in import fifo, queue

COLUMNS: dict[str, Array] = {
    "observation.image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "observation.time": np.array(["2018-02-05", "2020-01-01"], "M8[s]"),
    "reward": np.array([[0.5, -1.5, 2.5]], np.float32),
    "mask": np.array([[True, False, True]]),
    "state.core": np.arange(3.0) * 1j,
    "count": np.array(7),
    "name": np.array(["a", "böe"]),
}


def same(found: dict[str, Array], columns: dict[str, Array]) -> None:
    assert list(found) == list(columns)
    for name, array in columns.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_fields_of_a_bundle_are_the_columns_again_without_a_copy() -> None:
    row = bundled(COLUMNS)
    assert row.shape == (1,)
    fields = unbundled({"block": row, "other": np.zeros(3)})
    assert fields.pop("other").shape == (3,)
    same({name: array[0] for name, array in fields.items()}, COLUMNS)
    for name, array in fields.items():
        assert np.shares_memory(array, row)
        assert array.ctypes.data % 16 == row.ctypes.data % 16, f"{name} is not aligned"


@pytest.mark.parametrize("array", [np.array([None]), bundled(COLUMNS)], ids=["objects", "fields of its own"])
def test_columns_of_objects_and_of_bundles_are_not_bundled(array: Array) -> None:
    assert can_be_bundled(COLUMNS) and not can_be_bundled({**COLUMNS, "odd": array})
    block = Block({"reward": np.zeros((1, 1), np.float32), "odd": array}, "0#0", 0, 0, 1)
    assert UnrollAdder(bundles=True).add(block).rows.keys() == {"reward", "odd"}


def insertions(*, bundles: bool) -> tuple[list[Block], list[Insertion]]:
    _, blocks = experience(0, 3, [4] * 6)
    adder = UnrollAdder("queue", bundles=bundles)
    return blocks, [adder.add(block) for block in blocks]


def check(tables: ReplayTables, blocks: Sequence[Block], table: str = "queue") -> None:
    columns = dict(tables.sample(table, len(blocks)).columns)
    same(columns, {name: np.stack([block.columns[name] for block in blocks]) for name in blocks[0].columns})


def test_a_block_is_one_row_from_the_actor_to_the_batch() -> None:
    blocks, made = insertions(bundles=True)
    assert all(insertion.rows.keys() == {"block"} for insertion in made)
    tables = ReplayTables([queue(6)])
    for insertion in made[:4]:
        again: Insertion = pickle.loads(pickle.dumps(insertion, 5))
        assert again.rows["block"].dtype == insertion.rows["block"].dtype
        tables.insert(again)
    check(tables, blocks[:3])
    restored = ReplayTables([queue(6)])
    assert restored.load_state_dict(pickle.loads(pickle.dumps(tables.state_dict()))) == ()
    for insertion in made[4:]:
        restored.insert(insertion)
    check(restored, blocks[3:])


def equal(found: Insertion, made: Insertion) -> None:
    plain = ("run_id", "sequence", "keep", "version", "steps")
    assert [getattr(found, name) for name in plain] == [getattr(made, name) for name in plain]
    same(dict(found.rows), dict(made.rows))
    assert found.items.keys() == made.items.keys()
    for table, items in made.items.items():
        assert {name: rows.column for name, rows in found.items[table].columns.items()} == {
            name: rows.column for name, rows in items.columns.items()
        }
        for name, rows in items.columns.items():
            np.testing.assert_array_equal(found.items[table].columns[name].rows, rows.rows, strict=True)
        assert (found.items[table].priorities is None) == (items.priorities is None)


def test_a_bundle_alone_travels_as_plain_values_and_everything_else_as_objects() -> None:
    _, (_, made, *_) = insertions(bundles=True)
    bundle = made.rows["block"]
    pickled = pickle.dumps(made, 5)
    assert b"RowsOf" not in pickled
    equal(pickle.loads(pickled), made)
    assert pickle.loads(pickled).rows["block"].flags.writeable
    rows = RowsOf("block", np.array([1], np.int64))
    others = {
        "keeps rows": dataclasses.replace(made, keep={"block": 1}),
        "has two rows": dataclasses.replace(made, rows={"block": np.repeat(bundle, 2)}),
        "has two columns": dataclasses.replace(made, rows={"block": bundle, "other": np.zeros(2)}),
        "has no item": dataclasses.replace(made, items={}),
        "has an item of two rows": dataclasses.replace(
            made, items={"queue": NewItems({"block": RowsOf("block", np.array([[0, 1]], np.int64))})}
        ),
        "has two items": dataclasses.replace(
            made, items={"queue": NewItems({"block": RowsOf("block", np.array([0, 1], np.int64))})}
        ),
        "has an item of another name": dataclasses.replace(made, items={"queue": NewItems({"unroll": rows})}),
        "has an item of two columns": dataclasses.replace(made, items={"queue": NewItems({"block": rows, "b": rows})}),
        "has a priority": dataclasses.replace(made, items={"queue": NewItems({"block": rows}, np.ones(1))}),
        "is in two tables": dataclasses.replace(
            made, items={"queue": NewItems({"block": rows}), "other": NewItems({"block": rows})}
        ),
    }
    for what, other in others.items():
        pickled = pickle.dumps(other, 5)
        assert (b"RowsOf" in pickled) == bool(other.items), what
        equal(pickle.loads(pickled), other)
    equal(copy.deepcopy(made), made)
    equal(pickle.loads(pickle.dumps(made, 4)), made)


def test_a_table_from_a_checkpoint_with_a_row_for_each_column_takes_bundles() -> None:
    # As they were saved before blocks were bundled.
    blocks, before = insertions(bundles=False)
    _, after = insertions(bundles=True)
    old = ReplayTables([queue(6)])
    for insertion in before[:4]:
        old.insert(insertion)
    check(old, blocks[:2])
    tables = ReplayTables([queue(6)])
    tables.load_state_dict(old.state_dict())
    for insertion in after[4:]:
        tables.insert(insertion)
    check(tables, blocks[2:])


def test_a_signature_is_of_the_columns_in_a_bundle() -> None:
    blocks, made = insertions(bundles=True)
    signature = {name: ArraySpec(array.shape, array.dtype.str) for name, array in blocks[0].columns.items()}

    def tables(**changed: ArraySpec) -> ReplayTables:
        plain = queue(6)
        return ReplayTables(
            [
                ReplayTable(
                    "queue",
                    sampler=plain.sampler,
                    remover=plain.remover,
                    max_size=6,
                    limiter=plain.limiter,
                    max_times_sampled=1,
                    signature={**signature, **changed},
                )
            ]
        )

    of = tables()
    for insertion in made:
        of.insert(insertion)
    check(of, blocks)
    with pytest.raises(ValueError, match=r"rows of column 'mask' .* have shape \(4, 3\) and dtype bool"):
        tables(mask=ArraySpec((4, 3), "float32")).insert(made[0])


def test_an_insertion_is_separated_once() -> None:
    _, (first, *_) = insertions(bundles=True)
    _, (plain, *_) = insertions(bundles=False)
    apart = separated(first)
    same(dict(apart.rows), dict(plain.rows))
    assert apart.items["queue"].columns.keys() == plain.items["queue"].columns.keys()
    assert separated(apart) is apart


def test_bundles_that_are_too_large_for_an_answer_are_copied_out_of_lent_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns: dict[str, Array] = {"reward": np.ones((1000, 100), np.float32), "mask": np.ones((1000, 100), np.bool_)}
    adder = UnrollAdder("fifo", bundles=True)
    tables = ReplayTables([fifo()])
    tables.insert(adder.add(Block(columns, "0#0", 0, 0, 100_000)))
    lender, taken_back = BatchLender(), list[object]()
    memory = memoryview(bytearray(1 << 20))
    monkeypatch.setattr(lender._lender, "lend", lambda _size, _pid: (memory, "lent"))
    monkeypatch.setattr(lender._lender, "take_back", lambda lent, pid: taken_back.append((lent, pid)))
    for _ in range(2):
        batch = lender.sample(tables, "fifo", 1, 7)
        same({name: array[0] for name, array in batch.columns.items()}, columns)  # type: ignore[union-attr]
    assert taken_back == [("lent", 7)]
