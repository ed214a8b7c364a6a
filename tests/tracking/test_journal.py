"""Records that were not in the store when their writer ended: nothing is lost, and nothing is stored twice."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ropewalk.tracking import RunStore
from ropewalk.tracking.journal import RecordJournal, recover
from ropewalk.tracking.records import ArtifactKept, EventHappened, Metrics, NoteAdded, Record, RunCreated, RunRecord
from ropewalk.tracking.writer import StoreWriter
from tests.patience import wait_until
from tests.tracking.recorded import put

CREATED = RunRecord("a1", RunCreated("p", "n", "script", 1.0, {}, {}))


def metrics(step: int) -> RunRecord:
    return RunRecord("a1", Metrics("", ["loss"], [step / 2], step, 100.0 + step))


def journals(store: RunStore) -> list[str]:
    return os.listdir(store.folder / ".journals")


def steps(store: RunStore) -> list[float]:
    return list(store.points("a1", "loss").steps)


def abandon(journal: RecordJournal) -> None:
    """What the end of a process does."""
    os.close(journal._file)
    journal._file = -1


def test_what_a_killed_writer_left_is_put_into_the_store_once(store: RunStore) -> None:
    journal = RecordJournal(store)
    journal.append([CREATED, metrics(1)])
    journal.append([metrics(2), RunRecord("a1", NoteAdded("x", 3.0))])
    assert recover(store) == 0, "its writer is alive"
    abandon(journal)
    assert recover(store) == 4 and recover(store) == 0
    assert steps(store) == [1, 2] and [one.text for one in store.notes("a1")] == ["x"]
    assert journals(store) == []


def test_a_write_that_was_cut_off_is_left_out(store: RunStore) -> None:
    journal = RecordJournal(store)
    journal.append([CREATED, metrics(1)])
    journal.append([metrics(2)])
    os.ftruncate(journal._file, os.fstat(journal._file).st_size - 3)
    abandon(journal)
    assert recover(store) == 2
    assert steps(store) == [1]


@pytest.mark.parametrize("num_before", [0, 1])
def test_a_page_of_zeros_is_kept_with_all_that_follows(num_before: int, store: RunStore) -> None:
    """It was taken for the end of a write that was cut off, and what came after it was deleted."""
    journal = RecordJournal(store)
    journal.append([CREATED, metrics(1)][: 2 * num_before])
    os.write(journal._file, bytes(16))
    journal.append([CREATED, metrics(2)])
    size = os.fstat(journal._file).st_size
    abandon(journal)
    assert recover(store) == 2 * num_before
    [name] = journals(store)
    assert name.startswith("unreadable-") and (store.folder / ".journals" / name).stat().st_size == size


@pytest.mark.parametrize("num_before", [0, 1])
def test_what_cannot_be_read_is_kept_and_told_and_tried_once(
    num_before: int, store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal with records of a later version was deleted, with all that came after the first of them."""
    journal = RecordJournal(store)
    journal.append([CREATED, metrics(1)][: 2 * num_before])
    later = msgspec.msgpack.encode([{"type": "FromTheFuture", "run": "a1"}])
    os.write(journal._file, len(later).to_bytes(4, "little") + later)
    journal.append([CREATED, metrics(2)])
    size = os.fstat(journal._file).st_size
    abandon(journal)
    assert recover(store) == 2 * num_before and recover(store) == 0
    [name] = journals(store)
    assert name.startswith("unreadable-") and (store.folder / ".journals" / name).stat().st_size == size
    [told] = caplog.messages
    assert "cannot be read" in told and name in told


def test_a_journal_is_never_without_a_lock(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was recovered before its writer had locked it was removed: what it held later was lost with a kill."""
    lock = fcntl.flock

    def slowly(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        recover(store)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", slowly)
    journal = RecordJournal(store)
    journal.append([CREATED, metrics(1)])
    abandon(journal)
    assert recover(store) == 2


def test_a_writer_that_was_killed_after_its_transaction_adds_nothing_twice(store: RunStore) -> None:
    journal = RecordJournal(store)
    batch = [CREATED, metrics(1), metrics(2), RunRecord("a1", NoteAdded("x", 3.0))]
    journal.append(batch)
    store.apply(batch)
    abandon(journal)
    assert recover(store) == 0
    assert steps(store) == [1, 2] and len(store.notes("a1")) == 1 and journals(store) == []


ADDED = [
    EventHappened("decision", "", 3.0, {"line": ["start", 0, {"x": 0.5}, None, 0]}),
    NoteAdded("x", 3.0),
    ArtifactKept("out.txt", "/out.txt", "file", 1, "00", 3.0),
]
"""Records of which the store adds a row each time."""


@pytest.mark.parametrize("record", ADDED)
def test_what_is_no_metric_is_not_added_twice_either(record: Record, store: RunStore) -> None:
    """Only metrics told what was there: a search whose decision came twice could not go on."""
    journal = RecordJournal(store)
    batch = [CREATED, RunRecord("a1", record)]
    journal.append(batch)
    store.apply(batch)
    abandon(journal)
    assert recover(store) == 0
    assert len([*store.events("a1"), *store.notes("a1"), *store.artifacts("a1")]) == 1


@pytest.mark.parametrize("record", ADDED)
def test_one_that_came_later_is_added_though_an_equal_one_is_there(record: Any, store: RunStore) -> None:
    store.apply([CREATED, RunRecord("a1", record)])
    journal = RecordJournal(store)
    journal.append([RunRecord("a1", msgspec.structs.replace(record, time=4.0))])
    abandon(journal)
    assert recover(store) == 1
    assert len([*store.events("a1"), *store.notes("a1"), *store.artifacts("a1")]) == 2


def test_a_writer_that_was_killed_between_two_transactions_adds_nothing_twice_and_loses_nothing(
    store: RunStore,
) -> None:
    # More than 5,000 records are several transactions; all of them were added again.
    journal = RecordJournal(store)
    batch = [CREATED, *map(metrics, range(1, 7)), RunRecord("a1", NoteAdded("x", 3.0))]
    journal.append(batch)
    store.apply(batch[:4])
    abandon(journal)
    assert recover(store) == 4
    assert steps(store) == [1, 2, 3, 4, 5, 6] and len(store.notes("a1")) == 1 and journals(store) == []


def test_later_points_of_another_launcher_do_not_hide_what_a_killed_one_left(store: RunStore) -> None:
    journal = RecordJournal(store)
    journal.append([metrics(1), metrics(2)])
    store.apply([CREATED, metrics(9)])  # on another host, which has not seen the journal
    abandon(journal)
    assert recover(store) == 2
    assert sorted(steps(store)) == [1, 2, 9]


def test_what_is_in_the_store_is_no_longer_in_the_journal(store: RunStore) -> None:
    journal = RecordJournal(store)
    journal.append([CREATED, metrics(1)])
    journal.clear()
    journal.append([metrics(2)])
    abandon(journal)
    store.apply([CREATED])
    recover(store)
    assert steps(store) == [2]


def test_a_journal_of_another_store_is_left_alone(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = RecordJournal(store)
    journal.append([CREATED])
    abandon(journal)
    monkeypatch.setattr(store, "where", "postgresql://host/runs")
    assert recover(store) == 0 and len(journals(store)) == 1


def test_a_full_disk_ends_the_journal_and_nothing_else(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = RecordJournal(store)

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        journal.append([CREATED])
    assert not journal.is_open and journals(store) == []
    journal.append([metrics(1)])
    journal.clear()
    assert not journal.close()


def test_a_record_that_cannot_be_encoded_keeps_back_no_other(store: RunStore) -> None:
    journal = RecordJournal(store)
    journal.append([CREATED, RunRecord("a1", NoteAdded(object(), 1.0)), metrics(1)])  # type: ignore[arg-type]
    abandon(journal)
    assert recover(store) == 2


def test_a_forked_child_does_not_keep_the_journal_of_a_killed_parent(store: RunStore) -> None:
    journal = RecordJournal(store)
    writer = StoreWriter(store, "store", gather_s=60.0, journal=journal)
    journal.append([CREATED, metrics(1)])
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()  # the writer leaves the journal to the parent, as after every fork
    if pid == 0:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    abandon(journal)
    assert recover(store) == 2, "although the child is alive"
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    for end in (*ready, *go):
        os.close(end)
    writer.close()


class Slow:
    """A store whose transactions take a second of CPU time, as far as its writer can see."""

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[RunRecord]] = []
        self._store, self._now = store, 0.0
        monkeypatch.setattr("ropewalk.tracking.writer.time.thread_time", lambda: self._now)
        self.failure: Exception | None = None

    def apply(self, batch: Sequence[RunRecord]) -> None:
        if self.failure is not None:
            raise self.failure
        self._now += 1.0
        self._store.apply(batch)
        self.batches.append(list(batch))


def journal_bytes(store: RunStore) -> int:
    return sum((store.folder / ".journals" / name).stat().st_size for name in journals(store))


def test_a_slow_store_gets_rarer_transactions_and_the_journal_the_rest(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.tracking.writer._MOST_APART_S", 1000.0)
    slow = Slow(store, monkeypatch)
    writer = StoreWriter(slow, "slow", gather_s=0.001, journal=RecordJournal(store))
    try:
        put(writer, CREATED)
        assert writer.flush(10) and journal_bytes(store) == 0
        put(writer, metrics(1))
        assert writer.settle(10) and writer.settle(10)  # the second one after what the first one had it do
        assert journal_bytes(store)
        assert len(slow.batches) == 1, "the next transaction is due in 100 s, and nobody needs one before"
        assert writer.flush(10) and len(slow.batches) == 2 and steps(store) == [1]
    finally:
        assert writer.close()
    assert journals(store) == []


def test_a_store_that_cannot_be_written_makes_those_wait_who_would_fill_the_memory(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Although the journal takes everything: it would grow as fast as processes can log."""
    caplog.set_level(logging.CRITICAL)
    slow = Slow(store, monkeypatch)
    writer = StoreWriter(slow, "slow", gather_s=0.001, retry_s=0.001, journal=RecordJournal(store))
    try:
        slow.failure = OSError("gone")
        put(writer, CREATED)
        assert not writer.flush(0.05) and not writer.settle(0.05)
        slow.failure = None
        assert writer.settle(10)
    finally:
        assert writer.close()


def test_a_journal_keeps_no_more_than_the_memory_while_the_store_cannot_be_written(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Metrics that were dropped from memory stayed in it: a database that was away for a night filled the disk."""
    caplog.set_level(logging.CRITICAL)
    slow = Slow(store, monkeypatch)
    slow.failure = OSError("gone")
    writer = StoreWriter(slow, "slow", gather_s=0.001, retry_s=0.001, most_numbers=100, journal=RecordJournal(store))
    try:
        put(writer, CREATED)
        assert not writer.flush(0.02)
        for step in range(2000):
            put(writer, metrics(step))
        assert not writer.flush(0.02)
        wait_until(lambda: journal_bytes(store) < 10_000, "the journal to be made shorter")
        copy = store.folder / ".journals" / journals(store)[0].replace("-", "-copy-")
        copy.write_bytes((store.folder / ".journals" / journals(store)[0]).read_bytes())  # as a kill would leave it
        num = recover(store) - 1
        assert 90 <= num <= 100 and steps(store) == list(range(2000 - num, 2000))
        slow.failure = None
    finally:
        assert writer.close()
    assert journals(store) == []


def test_a_journal_that_was_replaced_while_somebody_looked_is_left_alone(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = RecordJournal(store)
    journal.append([CREATED, metrics(1)])
    lock = fcntl.flock

    def late(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        journal.replace([CREATED])
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert recover(store) == 0 and journals(store)
    abandon(journal)
    assert recover(store) == 1


def test_what_cannot_be_written_at_the_end_waits_for_the_next_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    slow: Any = Slow(store, monkeypatch)
    writer = StoreWriter(slow, "slow", gather_s=0.001, journal=RecordJournal(store))
    slow.failure = OSError("gone")
    for one in (CREATED, metrics(1)):
        put(writer, one)
    assert not writer.close(0.05)
    assert "2 records of runs could not be written to slow, and wait on the disk for the next run" in caplog.text
    assert recover(store) == 2 and steps(store) == [1]
