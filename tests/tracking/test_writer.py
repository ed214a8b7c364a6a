from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ropewalk.errors import StoreError
from ropewalk.tracking.records import EventHappened, Metrics, NoteAdded, RunRecord
from ropewalk.tracking.writer import StoreWriter
from tests.patience import PATIENCE_S
from tests.tracking.recorded import Batches


@pytest.fixture
def target() -> Batches:
    return Batches()


@pytest.fixture
def make(target: Batches) -> Iterator[Callable[..., StoreWriter]]:
    made: list[StoreWriter] = []

    def make(**options: Any) -> StoreWriter:
        given: dict[str, Any] = {"gather_s": 0.001, "retry_s": 0.01, **options}
        made.append(StoreWriter(target, "runs.db", **given))
        return made[-1]

    yield make
    target.failure = None
    for writer in made:
        writer.close()


def note(number: int) -> NoteAdded:
    return NoteAdded(str(number), 0.0)


def metrics(number: int, count: int = 1) -> Metrics:
    return Metrics("", ["x"] * count, [float(number)] * count, number, 0.0)


def test_records_are_written_in_order(make: Callable[..., StoreWriter], target: Batches) -> None:
    writer = make()
    for number in range(1000):
        writer.put("a", note(number))
    assert writer.flush(10)
    assert target.records == [note(number) for number in range(1000)]


def test_records_of_many_threads_are_all_written(make: Callable[..., StoreWriter], target: Batches) -> None:
    writer = make()
    threads = [
        threading.Thread(target=lambda n=n: [writer.put("a", note(1000 * n + i)) for i in range(500)]) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(10)
    assert len({one.text for one in target.records if isinstance(one, NoteAdded)}) == 4000


def test_what_comes_within_the_time_is_one_batch(make: Callable[..., StoreWriter], target: Batches) -> None:
    writer = make(gather_s=60.0)
    for number in range(100):
        writer.put("a", note(number))
    assert target.batches == []
    assert writer.flush(10)
    assert len(target.batches) == 1


def test_while_it_cannot_be_written_records_wait_and_one_warning_is_given(
    make: Callable[..., StoreWriter], target: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make()
    target.failure = StoreError("the store runs.db cannot be used: disk is full")
    for number in range(20):
        writer.put("a", note(number))
        assert not writer.flush(0.005)
    target.failure = None
    assert writer.flush(10)
    assert target.records == [note(number) for number in range(20)]
    (failed, again) = [one.message for one in caplog.records]
    assert "cannot be written to runs.db at the moment (StoreError: the store runs.db cannot be used" in failed
    assert again == "runs are written to runs.db again"


def test_beyond_the_bound_the_oldest_metrics_go_and_nothing_else(
    make: Callable[..., StoreWriter], target: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    writer = make(most_numbers=100)
    target.failure = OSError("read-only")
    writer.put("a", note(0))
    assert not writer.flush(0.02)
    for number in range(50):
        writer.put("a", metrics(number, count=10))
        writer.put("b", note(number))
        writer.flush(0.0)
    assert not writer.flush(0.02)
    target.failure = None
    assert writer.flush(10) and writer.flush(10)
    kept = [int(one.step) for one in target.records if isinstance(one, Metrics)]
    assert kept == list(range(50 - len(kept), 50)) and 1 <= len(kept) <= 10
    assert [one.text for one in target.records if isinstance(one, NoteAdded)] == ["0", *map(str, range(50))]
    (dropped,) = [one for one in target.records if isinstance(one, EventHappened)]
    assert dropped.data == {"number": 10 * (50 - len(kept))}


def test_a_record_that_is_refused_does_not_keep_back_others(
    make: Callable[..., StoreWriter], target: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    applied = target.apply

    def apply(batch: Any) -> None:
        if any(one.record == note(7) for one in batch):
            raise ValueError("seven")
        applied(batch)

    target.apply = apply  # type: ignore[method-assign]
    writer = make()
    for number in range(20):
        writer.put("a", note(number))
    assert writer.flush(10)
    assert target.records == [note(number) for number in range(20) if number != 7]
    assert "a record (NoteAdded) of run a was refused by runs.db" in caplog.text


def test_what_is_refused_again_and_again_is_told_once_and_counted_at_the_end(
    make: Callable[..., StoreWriter], target: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink of one's own with a mistake printed a traceback for each metric of a run."""

    def apply(batch: Any) -> None:
        raise ValueError("no metric at all")

    target.apply = apply  # type: ignore[method-assign]
    writer = make()
    for number in range(500):
        writer.put("a", metrics(number))
    assert writer.flush(10)
    assert caplog.text.count("Traceback") == caplog.text.count("was refused by runs.db, and is lost") == 1
    assert writer.close(10)
    assert "499 other records (Metrics) were refused by runs.db with ValueError, and are lost" in caplog.text


def test_the_end_waits_for_a_target_and_says_what_was_lost(
    make: Callable[..., StoreWriter], target: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make()
    target.failure = OSError("gone")
    writer.put("a", note(1))
    assert not writer.close(0.05)
    assert "records are lost, because they could not be written to runs.db: 1" in caplog.text
    assert writer.close(0.05)  # twice is no error


def test_a_function_is_called_regularly_and_may_fail(
    make: Callable[..., StoreWriter], caplog: pytest.LogCaptureFixture
) -> None:
    writer = make()
    calls = threading.Semaphore(0)

    def call() -> None:
        calls.release()
        raise RuntimeError("not now")

    end = writer.every(0.001, call)
    for _ in range(3):
        assert calls.acquire(timeout=PATIENCE_S)
    end()
    assert writer.flush(10)
    assert caplog.text.count("RuntimeError: not now") == 1


def test_a_forked_child_does_not_write_too(
    make: Callable[..., StoreWriter], target: Batches, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = make(gather_s=60.0)
    writer.put("a", note(1))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            logging.getLogger().addHandler(logging.StreamHandler())
            for number in (2, 3):
                writer.put("a", note(number))
            ok = writer.flush(5) and writer.close(5)
            code = 0 if ok and target.batches == [] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert writer.flush(10)
    assert target.batches == [[RunRecord("a", note(1))]]
    assert capfd.readouterr().err.count("does not write to it") == 1
