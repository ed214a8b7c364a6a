"""The results of `imap` are consumed one by one, and their window bounds what waits."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ropewalk.errors import TaskCancelled
from ropewalk.pool.imap_results import IMapIterator, ImapJob
from tests.patience import PATIENCE_S
from tests.pool.batches import InterruptedOnce, batch_of


def imap(
    num_workers: int = 1, items: int = 100, num_bytes: int = 1 << 20, *, ordered: bool = True
) -> tuple[ImapJob, IMapIterator[Any]]:
    job = ImapJob(num_workers, items, num_bytes, ordered=ordered)
    return job, IMapIterator(job, lambda: None)


def send_all(job: ImapJob, most: int = 10_000) -> int:
    """Send arguments as long as there is room; returns how many."""
    for number in range(most):
        if not job._has_room():
            return number
        assert job.wait_for_room()
        job.sent(1)
    return most


def wait_for_room(job: ImapJob, executor: ThreadPoolExecutor) -> Future[bool]:
    """A feeder that waits for room, being sure that it waits."""
    future = executor.submit(job.wait_for_room)
    time.sleep(0.01)
    assert not future.done()
    return future


@pytest.mark.parametrize("ordered", [True, False])
def test_results_are_iterated_in_order_or_as_they_come(ordered: bool) -> None:
    job, iterator = imap(ordered=ordered)
    assert [job.sent(1), job.sent(2), job.sent(1)] == [0, 1, 3]
    job.end(None)
    order = [(3, ["d"]), (1, ["b", "c"]), (0, ["a"])]
    for first, values in order:
        job.accept(first, len(values), batch_of("other", *values), 1)
    assert "".join(iterator) == ("abcd" if ordered else "dbca")
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_error_is_raised_in_its_place_and_the_next_can_be_asked_for() -> None:
    job, iterator = imap()
    job.sent(3)
    job.end(None)
    job.accept(0, 3, batch_of(1, ValueError("second"), 3), 0)
    assert next(iterator) == 1
    with pytest.raises(ValueError, match="second"):
        next(iterator)
    assert list(iterator) == [3]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_iterable_comes_after_the_results_of_what_was_sent(ordered: bool) -> None:
    job, iterator = imap(ordered=ordered)
    job.sent(2)
    job.end(OSError("the file ended"))
    job.end(None)  # an end that was said stays
    job.accept(0, 2, batch_of("a", "b"), 0)
    assert [next(iterator), next(iterator)] == ["a", "b"]
    with pytest.raises(OSError, match="the file ended"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_chunk_that_could_not_be_sent_is_not_waited_for() -> None:
    job, iterator = imap()
    job.sent(2)
    job.sent(3)
    job.sent(-3)
    job.end(TypeError("cannot be pickled"))
    job.accept(0, 2, batch_of("a", "b"), 0)
    assert [iterator.next(1), iterator.next(1)] == ["a", "b"]
    with pytest.raises(TypeError):
        iterator.next(1)


def test_a_result_that_is_late_times_out_and_is_not_lost() -> None:
    job, iterator = imap()
    job.sent(2)
    job.accept(1, 1, batch_of("second"), 0)
    for timeout in (0, 0.01):
        with pytest.raises(multiprocessing.TimeoutError):
            iterator.next(timeout)
    job.accept(0, 1, batch_of("first"), 0)
    assert [iterator.next(0), iterator.next(0)] == ["first", "second"]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_result_whose_unpickling_is_interrupted_is_the_next_one(
    ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InterruptedOnce, "interrupts", 1)
    job, iterator = imap(ordered=ordered)
    job.sent(3)
    job.end(None)
    for index, value in enumerate(["first", InterruptedOnce(), "third"]):
        job.accept(index, 1, batch_of(value), 0)
    assert next(iterator) == "first"
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert list(iterator) == ["here", "third"]


def test_a_consumer_that_waits_is_woken_by_a_result_and_by_the_end(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap()
    job.sent(1)
    future = executor.submit(iterator.next, PATIENCE_S)
    job.accept(0, 1, batch_of("there"), 0)
    assert future.result() == "there"
    future = executor.submit(lambda: next(iterator, "end"))
    job.end(None)
    assert future.result(120) == "end"


def test_before_the_first_result_only_a_few_are_under_way() -> None:
    job, _ = imap(num_workers=2)
    assert send_all(job) == 8
    job.accept(0, 1, batch_of("x"), 0)
    assert send_all(job) == 92  # up to the window, now that their size is known


def test_the_window_counts_items_that_were_not_consumed(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(items=10)
    send_all(job)
    job.accept(0, 1, batch_of(0), 0)
    send_all(job)
    assert job._num_sent == 10
    job.accept(1, 9, batch_of(*range(1, 10)), 0)
    waiting = wait_for_room(job, executor)  # all have arrived; none is consumed
    assert next(iterator) == 0
    assert waiting.result(120)
    assert send_all(job) == 1


def test_the_window_counts_bytes_that_wait_and_those_that_are_expected(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(items=1000, num_bytes=100_000)
    text = "x" * 10_000
    job.sent(1)
    job.accept(0, 1, batch_of(text), 0)
    sent = 1 + send_all(job)
    assert 9 <= sent <= 11
    for first in range(1, sent):
        job.accept(first, 1, batch_of(text), 0)
    waiting = wait_for_room(job, executor)
    for _ in range(3):
        assert len(next(iterator)) == 10_000
    assert waiting.result(120)
    assert 2 <= send_all(job) <= 4


def test_a_result_larger_than_the_window_does_not_stop_everything() -> None:
    job, iterator = imap(num_bytes=100)
    job.sent(1)
    job.accept(0, 1, batch_of("x" * 10_000), 0)
    assert send_all(job) == 0
    next(iterator)
    assert send_all(job) == 1  # one at a time


def test_lifting_the_window_reads_on_and_keeps_every_result(executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(items=2)
    send_all(job)
    waiting = wait_for_room(job, executor)
    job.lift_window()
    assert waiting.result(120)
    for _ in range(50):
        assert job.wait_for_room()
        job.sent(1)
    job.end(None)
    job.accept(0, 52, batch_of(*range(52)), 0)
    assert list(iterator) == list(range(52))


def test_a_dropped_iterator_wants_no_more(executor: ThreadPoolExecutor) -> None:
    told: list[str] = []
    job = ImapJob(1, 1, 1 << 20, ordered=True)
    iterator: IMapIterator[Any] = IMapIterator(job, lambda: told.append("dropped") or job.drop())
    job.sent(1)
    waiting = wait_for_room(job, executor)
    del iterator
    assert told == ["dropped"] and waiting.result(120) is False and job.dropped
    job.lift_window()
    assert not job.wait_for_room()


@pytest.mark.parametrize("ordered", [True, False])
def test_an_abandoned_iteration_raises_why_once_and_ends(ordered: bool) -> None:
    job, iterator = imap(ordered=ordered)
    job.sent(3)
    job.accept(0, 1, batch_of("a"), 0)
    assert next(iterator) == "a"
    job.accept(1, 1, batch_of("b"), 0)
    job.abandon(TaskCancelled("terminated"))
    with pytest.raises(TaskCancelled):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert not job.wait_for_room()


def test_an_iteration_whose_results_are_all_here_is_not_abandoned() -> None:
    job, iterator = imap()
    job.sent(2)
    job.end(None)
    job.accept(0, 2, batch_of("a", "b"), 0)
    job.abandon(TaskCancelled("terminated"))
    assert list(iterator) == ["a", "b"]


@pytest.mark.parametrize("ordered", [True, False])
def test_feeder_dispatcher_and_consumers_in_threads_of_their_own(ordered: bool, executor: ThreadPoolExecutor) -> None:
    job, iterator = imap(num_workers=3, items=17, num_bytes=1500, ordered=ordered)
    total, most = 2000, 0
    lock = threading.Lock()
    under_way: list[int] = []
    consumed: list[int] = []

    def feed() -> None:
        nonlocal most
        while job._num_sent < total and job.wait_for_room():
            with lock:
                under_way.append(job.sent(1))
            most = max(most, job._num_sent - job._num_consumed)
        job.end(None)

    def answer() -> None:
        draw = random.Random(1)
        for _ in range(total):
            while not under_way:
                time.sleep(0)
            with lock:
                index = under_way.pop(draw.randrange(len(under_way)))
            job.accept(index, 1, batch_of(index), 0)

    def consume() -> None:
        for index in iterator:
            consumed.append(index)

    futures = [executor.submit(call) for call in (feed, answer, *[consume] * (1 if ordered else 3))]
    for future in futures:
        future.result(120)
    assert most <= 17
    assert (consumed if ordered else sorted(consumed)) == list(range(total))
