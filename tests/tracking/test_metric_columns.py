"""Metrics that are gathered as columns, for the journal and the store: the same points come out."""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import pytest

from ropewalk.tracking import RunStore
from ropewalk.tracking.journal import RecordJournal, recover
from ropewalk.tracking.metric_columns import gathered, num_numbers, num_records
from ropewalk.tracking.records import MetricColumns, Metrics, NoteAdded, RunRecord, packed, unpacked
from ropewalk.tracking.writer import StoreWriter
from tests.tracking.store.making import NOW, begin, new_store
from tests.tracking.test_journal import abandon

BOTH, ONE = ["loss", "accuracy"], ["loss"]


def metrics(names: list[str], step: float, run: str = "r1", group: str = "") -> RunRecord:
    return RunRecord(run, Metrics(group, names, packed([step + at for at in range(len(names))]), step, NOW + step))


def test_metrics_that_follow_each_other_with_the_same_names_become_columns() -> None:
    note = RunRecord("r1", NoteAdded("x", NOW))
    alone, other_list = metrics(ONE, 5), metrics(list(BOTH), 6)
    batch = [metrics(BOTH, 1), metrics(BOTH, 2), note, metrics(BOTH, 3), metrics(BOTH, 4), alone, other_list]
    first, kept, second, *rest = gathered(batch)
    assert kept is note and rest == [alone, other_list]
    for found, steps in (first, [1, 2]), (second, [3, 4]):
        assert isinstance(found.record, MetricColumns) and found.record.names is BOTH
        assert unpacked(found.record.steps) == steps and found.record.last_time == NOW + steps[-1]
        assert unpacked(found.record.numbers) == [number for step in steps for number in (step, step + 1)]
    assert (num_records(gathered(batch)), [num_numbers(one) for one in gathered(batch)]) == (7, [4, 0, 4, 1, 2])


@pytest.mark.parametrize(
    "odd",
    [
        RunRecord("r1", Metrics("", BOTH, [1.0], 2, NOW)),
        RunRecord("r1", Metrics("", BOTH, [1.0, "high"], 2, NOW)),  # type: ignore[list-item]
        RunRecord("r1", Metrics("", BOTH, b"123", 2, NOW)),
        RunRecord("r1", Metrics("", BOTH, packed([1, 2]), 10**400, NOW)),
    ],
    ids=["uneven", "no number", "no numbers", "no float64"],
)
def test_a_record_that_no_store_takes_is_lost_alone(store: RunStore, odd: RunRecord) -> None:
    batch = gathered([metrics(BOTH, 1), odd, metrics(BOTH, 3)])
    assert len(batch) == 3
    begin(store)
    store.apply(batch)
    assert store.points("r1", "loss").steps.tolist() == [1, 3]


def test_metrics_of_other_runs_and_groups_stay_apart() -> None:
    batch = [metrics(ONE, 1), metrics(ONE, 2, run="r2"), metrics(ONE, 3, group="validation"), metrics(ONE, 4)]
    assert gathered(batch) == batch


@pytest.mark.parametrize("seed", range(20))
def test_a_store_has_the_same_points_whether_they_were_gathered_or_not(tmp_path: Any, seed: int) -> None:
    chance = random.Random(seed)
    lists = [BOTH, ONE, ["accuracy", "x"], list(BOTH)]
    batch = [
        metrics(chance.choice(lists[: 1 + seed % 4]), step, chance.choice(["r1", "r2"]), chance.choice(["", "", "v"]))
        for step in range(chance.randrange(1, 60))
    ]
    plain, columns = new_store(tmp_path), new_store(tmp_path)
    for store, content in ((plain, batch), (columns, gathered(batch))):
        for run in ("r1", "r2"):
            begin(store, run)
        store.apply(content)
    for run in ("r1", "r2"):
        assert plain.series(run) == columns.series(run)
        for one in plain.series(run):
            found, expected = (s.points(run, one.name, one.group) for s in (columns, plain))
            for name in ("steps", "times", "values"):
                assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    plain.close()
    columns.close()


def test_columns_that_a_killed_writer_left_are_put_into_the_store_once(store: RunStore) -> None:
    begin(store)
    journal = RecordJournal(store)
    batch = gathered([metrics(BOTH, step) for step in range(1, 4)])
    journal.append(batch)
    abandon(journal)
    assert recover(store) == 3
    assert store.points("r1", "accuracy").values.tolist() == [2, 3, 4]
    again = RecordJournal(store)
    again.append(batch)
    abandon(again)
    assert recover(store) == 0, "the writer was killed after its transaction"
    assert store.points("r1", "accuracy").steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "columns",
    [
        MetricColumns("", BOTH, bytes(16), bytes(8), bytes(16)),
        MetricColumns("", BOTH, bytes(8), bytes(8), bytes(8)),
        MetricColumns("", BOTH, b"", b"", b""),
        MetricColumns("", BOTH, bytes(17), bytes(9), bytes(9)),
    ],
)
def test_columns_in_a_damaged_journal_that_do_not_fit_are_left_out(store: RunStore, columns: MetricColumns) -> None:
    begin(store)
    journal = RecordJournal(store)
    journal.append([metrics(ONE, 1)])
    journal.append([RunRecord("r1", columns)])
    abandon(journal)
    assert recover(store) == 1
    assert store.points("r1", "loss").steps.tolist() == [1]


def test_a_journal_of_an_earlier_version_is_read(store: RunStore) -> None:
    begin(store)
    journal = RecordJournal(store)
    content = msgspec.msgpack.encode([["r1", [4, "", ["loss"], [0.5], 7, NOW]]])
    os.write(journal._file, len(content).to_bytes(4, "little") + content)
    abandon(journal)
    assert recover(store) == 1
    assert store.points("r1", "loss").values.tolist() == [0.5]


def test_a_writer_gathers_for_a_store_what_comes_at_once(store: RunStore) -> None:
    begin(store)
    batches: list[Any] = []

    class Target:
        def apply(self, batch: Any) -> None:
            batches.append(list(batch))
            store.apply(batch)

    writer = StoreWriter(Target(), "store", gather_s=60.0, journal=RecordJournal(store))
    for step in range(1000):
        writer.put("r1", metrics(BOTH, step).record)  # type: ignore[arg-type]
    assert writer.close()
    assert sum(map(len, batches)) < 10
    assert store.points("r1", "loss").steps.tolist() == list(range(1000))
