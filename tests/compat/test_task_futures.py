"""When a call begins and when it is cancelled: one of the two comes first, and the other hears of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ropewalk.compat.task_futures import TaskFuture


class SweepCounter:
    """What a future tells its pool."""

    num_sweeps = 0

    def _sweep_soon(self) -> None:
        self.num_sweeps += 1


def make_future() -> tuple[TaskFuture[Any], SweepCounter]:
    pool: Any = SweepCounter()
    return TaskFuture(pool), pool


def test_what_was_cancelled_does_not_begin() -> None:
    future, pool = make_future()
    assert future.cancel() and future.cancel() and not future.begin() and not future.begin()
    assert future.withdrawn and future.cancelled() and pool.num_sweeps == 1


def test_what_has_begun_cannot_be_cancelled_and_may_begin_again() -> None:
    future, pool = make_future()
    assert future.begin() and future.running() and not future.cancel()
    assert future.begin()  # its worker has died
    future.end(3)
    assert future.result() == 3 and pool.num_sweeps == 0 and not future.withdrawn


def test_an_end_that_comes_after_the_cancellation_changes_nothing() -> None:
    future, _ = make_future()
    future.cancel()
    future.end(3)
    assert future.cancelled()


@pytest.mark.parametrize("_", range(20))
def test_of_two_threads_one_wins(_: int) -> None:
    future, _pool = make_future()
    together = threading.Barrier(2)
    cancelled: list[bool] = []

    def cancel() -> None:
        together.wait()
        cancelled.append(future.cancel())

    thread = threading.Thread(target=cancel)
    thread.start()
    together.wait()
    begun = future.begin()
    thread.join()
    assert begun is not cancelled[0]
